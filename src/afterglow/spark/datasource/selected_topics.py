"""Topics that the options of a data source select, opened."""

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


def connected(options: SourceOptions) -> Source:
    """Connect to the source that options name.

    Raises:
        AfterglowError: It cannot be read.
    """
    return connect(options.source, options.tier, options.metadata, hot=options.hot)


@contextmanager
def opened(options: SourceOptions) -> Iterator[list[SourceTopic]]:
    """Connect to a source, and give the topics that hold messages: each partition by itself, none of them twice.

    Raises:
        TopicMissing: There is no topic of a name, or none that matches the pattern.
        AfterglowError: The source cannot be read.
    """
    with connected(options) as source:
        topics = topics_of(source, options)
        if options.topics_pattern is not None and not topics:
            raise TopicMissing(
                f"source {options.source} has no topic that matches topicsPattern={options.topics_pattern!r}; a name "
                "must match as a whole, such as persistent://public/default/orders-.*"
            )
        yield topics


def topics_of(source: Source, options: SourceOptions) -> list[SourceTopic]:
    """The same of a source that is open; none where nothing matches the pattern."""
    if options.topics_pattern is None:
        names = [name for topic in options.topics for name in source.topic(topic).partitions]
    else:
        pattern = re.compile(options.topics_pattern)
        names = [name for name in source.topics() if _matches(pattern, TopicName.parse(name))]
    return [source.topic(name) for name in dict.fromkeys(names)]


def _matches(pattern: re.Pattern[str], topic: TopicName) -> bool:
    """Whether any spelling of a topic's name, or of the partitioned topic's that it belongs to, matches whole.

    Topics that Pulsar keeps for itself match nothing.
    """
    if topic.local_name.startswith("__"):
        return False
    return any(pattern.fullmatch(text) for name in (topic, topic.base) for text in _spellings(name))


def _spellings(topic: TopicName) -> list[str]:
    short = f"{topic.namespace}/{topic.local_name}"
    at_home = str(topic.namespace) == f"{DEFAULT_TENANT}/{DEFAULT_NAMESPACE}"
    return [str(topic), short, *([topic.local_name] if at_home else [])]
