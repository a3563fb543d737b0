"""Orphaned objects and leaked uploads, which metadata does not name, and the sweep that deletes them.

An object is ours if it carries our instance. A listing does not show that, so every object that metadata does not name
costs one request. An upload carries no instance: it is ours only if our records name its key. Before an orphan or a
leak is reported, metadata is read again: the listing is newer than the first read, and a commit may have come between.

The sweep deletes orphans and leaks: ours, older than the grace period, and not named at that moment. For each:

1. :class:`StrayFinder` reads metadata again. *Crash: nothing has happened.*
2. The object is deleted, or the upload aborted. *Crash: the next sweep finds the rest; deleting twice does no harm.*

No commit can start to need an object that step 1 did not find named: a UUID is in metadata before its first byte is
uploaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from afterglow.errors import InvalidName, ObjectMissing
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import STANDALONE
from afterglow.verify.findings import Finding, FindingKind, format_topic
from afterglow.verify.objects import INSTANCE
from afterglow.verify.topic_records import TopicRecordsReader, add_references, base_key, read_references

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from afterglow.metadata.pulsar_cluster import MetadataReader
    from afterglow.storage.store import ObjectInfo, ObjectStore, Upload
    from afterglow.verify.topic_records import References

_LEDGER_NAME = "managedledgername"


@dataclass(frozen=True, slots=True)
class Stray:
    """An object or an unfinished upload that no metadata needs."""

    finding: Finding
    ledger_name: str | None
    """Managed-ledger name of the topic that it belongs to; None if it is not known."""
    upload: Upload | None = None
    """The unfinished upload; None: it is an object."""


class StrayFinder:
    """Finds strays in tiers, given the keys that metadata named when it was first read; see :func:`sweep`."""

    def __init__(
        self, reader: TopicRecordsReader, references: References, *, instance: str, now_ms: int, grace_ms: int
    ) -> None:
        self._reader = reader
        self._naming = references
        self._instance = instance
        self._now_ms = now_ms
        self._grace_ms = grace_ms

    def find(self, tier: ObjectStore) -> Iterator[Stray]:
        """Yield every stray of a tier: objects in the order of their keys, then uploads."""
        for info in tier.list():
            if base_key(info.key) not in self._naming:
                stray = self._classify_object(tier, info)
                if stray is not None:
                    yield stray
        for upload in tier.list_uploads():
            stray = self._classify_upload(tier, upload)
            if stray is not None:
                yield stray

    def _classify_object(self, tier: ObjectStore, listed: ObjectInfo) -> Stray | None:
        try:
            info = tier.head(listed.key)
        except ObjectMissing:
            return None  # deleted meanwhile
        owner = info.metadata.get(INSTANCE)
        ledger_name = _ledger_name(info)
        topic = None if ledger_name is None else format_topic(ledger_name)
        if owner != self._instance:
            whose = "without an instance" if owner is None else f"of instance {owner}"
            finding = Finding(FindingKind.FOREIGN, topic, info.key, None, f"{tier.url}: an object {whose}")
            return Stray(finding, ledger_name)
        detail = f"{tier.url}: {info.size_bytes} bytes, {self._age(info.modified_ms)}, not named by metadata"
        finding = Finding(FindingKind.ORPHAN_OBJECT, topic, info.key, None, detail)
        return self._pending_or_confirmed(Stray(finding, ledger_name), info.modified_ms)

    def _classify_upload(self, tier: ObjectStore, upload: Upload) -> Stray | None:
        reference = self._naming.get(base_key(upload.key))
        if reference is None:
            detail = f"{tier.url}: an unfinished upload of a key that our records do not name"
            return Stray(Finding(FindingKind.FOREIGN, None, upload.key, None, detail), None, upload)
        if reference.needs(upload.upload_id):
            return None
        detail = f"{tier.url}: upload {upload.upload_id}, {self._age(upload.created_ms)}, not needed"
        finding = Finding(FindingKind.LEAKED_UPLOAD, format_topic(reference.ledger_name), upload.key, None, detail)
        return self._pending_or_confirmed(Stray(finding, reference.ledger_name, upload), upload.created_ms)

    def _pending_or_confirmed(self, stray: Stray, since_ms: int) -> Stray | None:
        # 0: the store does not report the time, so it cannot be known to be old enough.
        if not since_ms or self._now_ms - since_ms <= self._grace_ms:
            return replace(stray, finding=replace(stray.finding, kind=FindingKind.PENDING))
        return stray if self._confirmed(stray) else None

    def _confirmed(self, stray: Stray) -> bool:
        """Whether current metadata still does not need the stray."""
        assert stray.finding.object is not None
        references: References = {}
        for name in self._reader.names() if stray.ledger_name is None else (stray.ledger_name,):
            add_references(references, self._reader.topic(name))
        reference = references.get(base_key(stray.finding.object))
        if stray.upload is None:
            return reference is None
        # An upload whose key is not named any more may belong to another instance.
        return reference is not None and not reference.needs(stray.upload.upload_id)

    def _age(self, since_ms: int) -> str:
        return f"{max(self._now_ms - since_ms, 0) / 1000:.0f} s old" if since_ms else "of unknown age"


def _ledger_name(info: ObjectInfo) -> str | None:
    """Managed-ledger name of the topic in an object's user metadata; None if it is missing or malformed."""
    name = info.metadata.get(_LEDGER_NAME)
    try:
        return None if name is None else TopicName.from_managed_ledger_name(name).managed_ledger_name
    except InvalidName:
        return None


@dataclass(frozen=True, slots=True)
class Swept:
    """One swept orphan or leaked upload."""

    finding: Finding
    """An ``orphan_object`` or a ``leaked_upload``."""
    removed: bool
    """Whether it was deleted; False in a dry run."""


def sweep(
    metadata: MetadataReader,
    *,
    tiers: Iterable[ObjectStore],
    instance: str,
    cluster: str = STANDALONE,
    now_ms: int,
    grace_ms: int,
    dry_run: bool = True,
) -> Iterator[Swept]:
    """Delete the orphans and abort the leaked uploads of tiers, one by one as the result is consumed.

    Args:
        metadata: The store; only read.
        tiers: The stores to sweep.
        instance: The instance of this server: objects that do not carry it are never deleted.
        cluster: Name of the cluster whose records count.
        now_ms: The time by the stores' clocks.
        grace_ms: Orphans and leaks that are not older are kept.
        dry_run: Report without deleting.

    Raises:
        FormatError: A metadata value cannot be parsed, so the objects that it names are unknown.
        StorageError: A store fails; objects deleted before stay deleted.
        MetadataError: Metadata cannot be read; likewise.
    """
    reader = TopicRecordsReader(metadata, cluster)
    finder = StrayFinder(reader, read_references(reader), instance=instance, now_ms=now_ms, grace_ms=grace_ms)
    for tier in tiers:
        for stray in finder.find(tier):
            if not stray.finding.kind.is_fault:
                continue
            if dry_run:
                yield Swept(stray.finding, removed=False)
                continue
            if stray.upload is not None:
                tier.abort_upload(stray.upload)
            else:
                assert stray.finding.object is not None
                tier.delete([stray.finding.object])
            yield Swept(stray.finding, removed=True)
