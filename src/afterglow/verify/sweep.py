"""Objects and unfinished uploads that metadata does not name, and the sweep that deletes them.

An object is ours if it carries our instance; a listing does not show that, so every object that metadata does not name
costs one request. An upload carries nothing: it is ours only if our records name its key. Whatever seems to be an
orphan or a leak is compared again, before it is reported, with metadata as it is by then: the listing is younger than
what was read at first, and a commit may have come between.

The sweep deletes orphans and leaks: ours, older than the grace, and named by nothing at that moment. Per object or
upload:

1. Metadata is read again, by :class:`Strays`. *Crash: nothing has happened.*
2. The object is deleted, or the upload aborted. *Crash: the next sweep finds the rest; a second deletion is none.*

No commit can come to need what step 1 did not find named: a UUID is put in metadata before its first byte is uploaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from afterglow.errors import InvalidName, ObjectMissing
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import STANDALONE
from afterglow.verify.findings import Finding, Kind, topic_text
from afterglow.verify.objects import INSTANCE
from afterglow.verify.state import StateReader, add_names, base_key, read_naming

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from afterglow.metadata.pulsar_cluster import MetadataReader
    from afterglow.storage.store import ObjectInfo, ObjectStore, Upload
    from afterglow.verify.state import Naming

_LEDGER_NAME = "managedledgername"


@dataclass(frozen=True, slots=True)
class Stray:
    """Something in a tier that metadata does not account for."""

    finding: Finding
    ledger_name: str | None
    """Managed-ledger name of the topic that it belongs to; None where nothing tells it."""
    upload: Upload | None = None
    """Set where it is an unfinished upload."""


class Strays:
    """Finds strays.

    Args:
        reader: Reads metadata again.
        naming: What metadata names, read before this.
        instance: Our own.
        now_ms: The time by the stores' clocks.
        grace_ms: What is not older may still be on its way.
    """

    def __init__(self, reader: StateReader, naming: Naming, *, instance: str, now_ms: int, grace_ms: int) -> None:
        self._reader = reader
        self._naming = naming
        self._instance = instance
        self._now_ms = now_ms
        self._grace_ms = grace_ms

    def find(self, tier: ObjectStore) -> Iterator[Stray]:
        """Every stray of a tier: objects in the order of their keys, then uploads. Nothing is kept of the listing."""
        for info in tier.list():
            if base_key(info.key) not in self._naming:
                stray = self._judge_object(tier, info)
                if stray is not None:
                    yield stray
        for upload in tier.list_uploads():
            stray = self._judge_upload(tier, upload)
            if stray is not None:
                yield stray

    def _judge_object(self, tier: ObjectStore, listed: ObjectInfo) -> Stray | None:
        try:
            info = tier.head(listed.key)
        except ObjectMissing:
            return None  # deleted meanwhile
        owner = info.metadata.get(INSTANCE)
        ledger_name = _ledger_name(info)
        topic = None if ledger_name is None else topic_text(ledger_name)
        if owner != self._instance:
            whose = "without an instance" if owner is None else f"of instance {owner}"
            return Stray(Finding(Kind.FOREIGN, topic, info.key, None, f"{tier.url}: an object {whose}"), ledger_name)
        detail = f"{tier.url}: {info.size_bytes} bytes, {self._age(info.modified_ms)} old, named by nothing"
        return self._young_or_confirmed(
            Stray(Finding(Kind.ORPHAN_OBJECT, topic, info.key, None, detail), ledger_name), info.modified_ms
        )

    def _judge_upload(self, tier: ObjectStore, upload: Upload) -> Stray | None:
        named = self._naming.get(base_key(upload.key))
        if named is None:
            detail = f"{tier.url}: an unfinished upload of a key that our records do not name"
            return Stray(Finding(Kind.FOREIGN, None, upload.key, None, detail), None, upload)
        if named.needs(upload.upload_id):
            return None
        detail = f"{tier.url}: upload {upload.upload_id}, {self._age(upload.created_ms)} old, needed by nothing"
        finding = Finding(Kind.LEAKED_UPLOAD, topic_text(named.ledger_name), upload.key, None, detail)
        return self._young_or_confirmed(Stray(finding, named.ledger_name, upload), upload.created_ms)

    def _young_or_confirmed(self, stray: Stray, since_ms: int) -> Stray | None:
        # 0: the store does not say when. Such a thing is never old enough.
        if not since_ms or self._now_ms - since_ms <= self._grace_ms:
            return replace(stray, finding=replace(stray.finding, kind=Kind.PENDING))
        return stray if self._confirmed(stray) else None

    def _confirmed(self, stray: Stray) -> bool:
        """Whether metadata, as it is now, still gives no reason to keep what looks like an orphan or a leak."""
        assert stray.finding.object is not None
        naming: Naming = {}
        for name in self._reader.names() if stray.ledger_name is None else (stray.ledger_name,):
            add_names(naming, self._reader.topic(name))
        named = naming.get(base_key(stray.finding.object))
        if stray.upload is None:
            return named is None
        # Without a name any more it is not ours to judge.
        return named is not None and not named.needs(stray.upload.upload_id)

    def _age(self, since_ms: int) -> str:
        return f"{max(self._now_ms - since_ms, 0) / 1000:.0f} s" if since_ms else "nobody knows how"


def _ledger_name(info: ObjectInfo) -> str | None:
    """The topic that an object says it belongs to, by its managed-ledger name; None where it says none that exists."""
    name = info.metadata.get(_LEDGER_NAME)
    try:
        return None if name is None else TopicName.from_managed_ledger_name(name).managed_ledger_name
    except InvalidName:
        return None


@dataclass(frozen=True, slots=True)
class Swept:
    """One orphan or leak."""

    finding: Finding
    """An ``orphan_object`` or a ``leaked_upload``."""
    removed: bool
    """Whether it is gone now; False in a dry run."""


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
        tiers: Where to look.
        instance: Our own: nothing without it is touched.
        cluster: Whose records of ours are meant.
        now_ms: The time by the stores' clocks.
        grace_ms: What is not older is left alone.
        dry_run: Only tell.

    Raises:
        FormatError: A value of metadata cannot be read, so that nobody knows what it names. Nothing was deleted.
        StorageError: A store fails; what was swept before stays swept.
        MetadataError: Metadata cannot be read any more; likewise.
    """
    reader = StateReader(metadata, cluster)
    strays = Strays(reader, read_naming(reader), instance=instance, now_ms=now_ms, grace_ms=grace_ms)
    for tier in tiers:
        for stray in strays.find(tier):
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
