"""Topics that the options of the data source select."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from afterglow.errors import TopicMissing
from afterglow.metadata.names import DEFAULT_NAMESPACE, DEFAULT_TENANT, TopicName
from afterglow.source.connect import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.source.connect import Source, SourceTopic
    from afterglow.spark.datasource.options import SourceOptions


def connect_source(options: SourceOptions) -> Source:
    """Connect to the source in the options.

    Raises:
        AfterglowError: It cannot be read.
    """
    return connect(options.source, options.tier, options.metadata, hot=options.hot, entries=options.entries)


@contextmanager
def open_topics(options: SourceOptions) -> Iterator[list[SourceTopic]]:
    """Connect to the source and open the selected topics: each partition by itself, without duplicates.

    Raises:
        TopicMissing: A topic is missing, or none matches the pattern.
        AfterglowError: The source cannot be read.
    """
    with connect_source(options) as source:
        topics = select_topics(source, options)
        if options.topics_pattern is not None and not topics:
            raise TopicMissing(
                f"source {options.source} has no topic that matches topicsPattern={options.topics_pattern!r}; the "
                "pattern must match a whole name, such as persistent://public/default/orders-.*"
            )
        yield topics


def select_topics(source: Source, options: SourceOptions) -> list[SourceTopic]:
    """The selected topics of a source; empty if none matches the pattern."""
    if options.topics_pattern is None:
        names = [name for topic in options.topics for name in source.topic(topic).partitions]
    else:
        pattern = re.compile(options.topics_pattern)
        names = [name for name in source.topics() if _matches(pattern, TopicName.parse(name))]
    return [source.topic(name) for name in dict.fromkeys(names)]


def _matches(pattern: re.Pattern[str], topic: TopicName) -> bool:
    """Whether the pattern matches any form of a topic's name, or of its partitioned topic's name."""
    if topic.local_name.startswith("__"):  # system topics of Pulsar
        return False
    return any(pattern.fullmatch(text) for name in (topic, topic.base) for text in _name_forms(name))


def _name_forms(topic: TopicName) -> list[str]:
    short = f"{topic.namespace}/{topic.local_name}"
    is_default = str(topic.namespace) == f"{DEFAULT_TENANT}/{DEFAULT_NAMESPACE}"
    return [str(topic), short, *([topic.local_name] if is_default else [])]
