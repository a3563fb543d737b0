"""Records of an attachment in our own metadata, beside those of its topics: its instance, and its subscriptions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import uuid4

from afterglow.errors import CommitUnknown, CorruptMetadata, VersionConflict
from afterglow.metadata.names import TopicName
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.offload.pending_deletes import names_below

if TYPE_CHECKING:
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.pulsar_cluster import MetadataReader
    from afterglow.metadata.store import MetadataStore


def attachment_instance(metadata: MetadataStore, paths: AfterglowPaths) -> str:
    """Id of this attachment in the user metadata of its objects; created once, and the same after a restart.

    Raises:
        MetadataError: The store failed.
    """
    while True:
        if (found := metadata.get(paths.instance)) is not None and found.value:
            return found.value.decode()
        try:
            metadata.put(paths.instance, str(uuid4()).encode(), MUST_NOT_EXIST)
        except (VersionConflict, CommitUnknown):
            continue


def recorded_subscriptions(metadata: MetadataReader, paths: AfterglowPaths) -> tuple[str, ...]:
    """Names of the subscriptions by which trimming was held back since the last ``detach``; ascending.

    Raises:
        CorruptMetadata: The record cannot be parsed.
        MetadataUnavailable: The store cannot be reached.
    """
    found = metadata.get(paths.subscriptions)
    return () if found is None else _parse(found.value, paths.subscriptions)


def record_subscription(metadata: MetadataStore, paths: AfterglowPaths, name: str) -> None:
    """Add a name to the record, before a subscription of that name is created; a known one changes nothing.

    Raises:
        CorruptMetadata: The record cannot be parsed.
        MetadataError: The store failed.
    """
    while True:
        found = metadata.get(paths.subscriptions)
        known = () if found is None else _parse(found.value, paths.subscriptions)
        if name in known:
            return
        version = MUST_NOT_EXIST if found is None else found.version
        try:
            metadata.put(paths.subscriptions, json.dumps(sorted({*known, name})).encode(), version)
        except (VersionConflict, CommitUnknown):
            continue


def clear_subscriptions(metadata: MetadataStore, paths: AfterglowPaths) -> None:
    """Remove the record, after every subscription of these names was deleted.

    Raises:
        MetadataError: The store failed.
    """
    while (found := metadata.get(paths.subscriptions)) is not None:
        try:
            metadata.delete(paths.subscriptions, found.version)
        except (VersionConflict, CommitUnknown):
            continue


def recorded_topics(metadata: MetadataReader, paths: AfterglowPaths) -> tuple[TopicName, ...]:
    """Every topic that was attached and has records, ascending by name.

    Raises:
        MetadataUnavailable: The store cannot be reached.
    """
    names = names_below(metadata, paths.managed_ledgers)
    return tuple(sorted((TopicName.from_managed_ledger_name(name) for name in names), key=str))


def _parse(value: bytes, path: str) -> tuple[str, ...]:
    try:
        names = json.loads(value)
    except ValueError as error:
        raise CorruptMetadata(f"the value at {path} is not valid JSON: {error}") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CorruptMetadata(f"the value at {path} is not a list of names: {names!r}")
    return tuple(names)
