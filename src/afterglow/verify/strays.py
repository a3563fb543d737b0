"""What lies in a tier without being named: each object and unfinished upload is ours, another's, or nobody knows.

An object is ours if it carries our instance; a listing does not show that, so every object that metadata does not name
costs one request. An upload carries nothing: it is ours only if our records name its key.

Whatever looks like an orphan or a leak is looked up again before it is told, in metadata as it is by then: the listing
is younger than what was read at first, and a commit may have come between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.errors import ObjectMissing
from afterglow.verify.findings import Finding, Kind, topic_text
from afterglow.verify.names import Use, add_names, base_key
from afterglow.verify.objects import INSTANCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.storage.store import ObjectInfo, ObjectStore, Upload
    from afterglow.verify.names import Naming
    from afterglow.verify.state import StateReader

_LEDGER_NAME = "managedledgername"


@dataclass(frozen=True, slots=True)
class Stray:
    """Something in a tier that metadata does not account for."""

    finding: Finding
    ledger_name: str | None
    """Managed-ledger name of the topic that it says it belongs to."""
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

    def still_stray(self, stray: Stray) -> bool:
        """Whether metadata, as it is now, still gives no reason to keep what looks like an orphan or a leak."""
        key = stray.finding.object
        assert key is not None
        naming: Naming = {}
        names = self._reader.names() if stray.ledger_name is None else (stray.ledger_name,)
        for name in names:
            add_names(naming, self._reader.topic(name))
        use = naming.get(base_key(key))
        return use is None if stray.upload is None else _is_leaked(use, stray.upload)

    def _judge_object(self, tier: ObjectStore, listed: ObjectInfo) -> Stray | None:
        try:
            info = tier.head(listed.key)
        except ObjectMissing:
            return None  # deleted meanwhile
        owner = info.metadata.get(INSTANCE)
        ledger_name = info.metadata.get(_LEDGER_NAME)
        topic = None if ledger_name is None else topic_text(ledger_name)
        if owner != self._instance:
            whose = "without an instance" if owner is None else f"of instance {owner}"
            return Stray(Finding(Kind.FOREIGN, topic, info.key, None, f"{tier.url}: an object {whose}"), ledger_name)
        detail = f"{tier.url}: {info.size_bytes} bytes, {self._age(info.modified_ms)} old, named by nothing"
        return self._young_or_confirmed(
            Stray(Finding(Kind.ORPHAN_OBJECT, topic, info.key, None, detail), ledger_name), info.modified_ms
        )

    def _judge_upload(self, tier: ObjectStore, upload: Upload) -> Stray | None:
        use = self._naming.get(base_key(upload.key))
        if use is None:
            detail = f"{tier.url}: an unfinished upload of a key that our records do not name"
            return Stray(Finding(Kind.FOREIGN, None, upload.key, None, detail), None, upload)
        if not _is_leaked(use, upload):
            return None
        detail = f"{tier.url}: upload {upload.upload_id}, {self._age(upload.created_ms)} old, needed by nothing"
        return self._young_or_confirmed(
            Stray(Finding(Kind.LEAKED_UPLOAD, None, upload.key, None, detail), None, upload), upload.created_ms
        )

    def _young_or_confirmed(self, stray: Stray, since_ms: int) -> Stray | None:
        # 0: the store does not say when. Such a thing is never old enough.
        if not since_ms or self._now_ms - since_ms <= self._grace_ms:
            found = stray.finding
            told = Finding(Kind.PENDING, found.topic, found.object, found.position, found.detail)
            return Stray(told, stray.ledger_name, stray.upload)
        return stray if self.still_stray(stray) else None

    def _age(self, since_ms: int) -> str:
        return f"{max(self._now_ms - since_ms, 0) / 1000:.0f} s" if since_ms else "nobody knows how"


def _is_leaked(use: Use | str | None, upload: Upload) -> bool:
    """Whether our records name the upload's key and know that this upload is not needed.

    A key that is being written or deleted may have uploads that its record does not know yet; one that is committed
    needs none, and one whose upload is on record needs only that.
    """
    if use is None or use is Use.WORKING:
        return False
    return use is Use.COMMITTED or use != upload.upload_id
