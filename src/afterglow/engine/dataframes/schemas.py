"""What values are decoded by, and the columns that come of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.errors import ConfigError, TopicChanged
from afterglow.read.typed.columns import TypedColumns
from afterglow.spark.source_schema import check_asked
from afterglow.spark.source_tasks import topic_of_schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from afterglow.engine.source import SourceTopic
    from afterglow.spark.source_options import SourceOptions
    from afterglow.spark.source_schema import Shape
    from afterglow.spark.source_tasks import Schemas


def schemas_of(topics: Iterable[SourceTopic]) -> Schemas:
    """Every version of the topics' schemas, partitions together.

    Raises:
        AfterglowError: The source cannot tell them.
    """
    named = {topic_of_schema(topic.name): topic for topic in topics}
    return {name: topic.schemas() for name, topic in named.items()}


def typed_schema(schemas: Schemas, columns: tuple[str, ...] | None) -> pa.Schema:
    """The columns that values are decoded into.

    Raises:
        ConfigError: A column is unknown or named twice.
    """
    found: pa.Schema = TypedColumns(schemas, columns).schema
    return found


def schemas_for(options: SourceOptions, topics: Iterable[SourceTopic], shape: Shape) -> Schemas | None:
    """What the values of a DataFrame are decoded by; None where they are not.

    Asked for after the end of what is read is known: a schema is stored before the first message that names it.

    Raises:
        TopicChanged: The columns that the DataFrame has are not those that come of it.
    """
    if not options.decode:
        return None
    schemas = schemas_of(topics)
    try:
        check_asked(shape.asked, typed_schema(schemas, None))
    except ConfigError as error:
        raise TopicChanged(
            f"{error}; where no schema was given, those of the topic have changed since: load it again, or start the "
            "query again, which goes on where it was"
        ) from error
    return schemas
