"""The schemas of topics that an engine keeps in its metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.broker.schema_rules import TYPE_NAMES
from afterglow.broker.schemas import SchemaRegistry
from afterglow.format.schema_version import SchemaVersion

if TYPE_CHECKING:
    from afterglow.metadata.names import TopicName
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore


def stored_schemas(metadata: MetadataStore, paths: AfterglowPaths, topic: TopicName) -> tuple[SchemaVersion, ...]:
    """Every version of a topic's schema, oldest first; a partition has those of its topic.

    Raises:
        MetadataError: They cannot be read.
        CorruptMetadata: A version is damaged.
    """
    return tuple(
        SchemaVersion(
            stored.version,
            TYPE_NAMES[stored.schema.type],
            stored.schema.schema_data,
            {pair.key: pair.value for pair in stored.schema.properties},
        )
        for stored in SchemaRegistry(metadata, paths).versions(topic)
    )
