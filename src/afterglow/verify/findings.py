"""Findings of the verifier: their kinds, which of these are faults, and their JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from afterglow.errors import InvalidName
from afterglow.metadata.names import TopicName


class FindingKind(StrEnum):
    """The kinds of findings."""

    MISSING_OBJECT = "missing_object"
    """Metadata names a data object that does not exist."""
    MISSING_INDEX = "missing_index"
    """The data object exists, its index does not."""
    DAMAGED_BLOCK = "damaged_block"
    """A block or an index differs from what was written, or contradicts other metadata."""
    WRONG_LENGTH = "wrong_length"
    """The data object is longer or shorter than its index or its segment's record says."""
    HOLE = "hole"
    """Entries of the retained log are in no copy."""
    OVERLAP = "overlap"
    """Committed copies hold entries twice, or entries that the log does not have."""
    ORPHAN_OBJECT = "orphan_object"
    """An object of this instance, older than the grace period, that no metadata names."""
    LEAKED_UPLOAD = "leaked_upload"
    """An unfinished upload, older than the grace period, of a key that our records name and that needs no upload."""
    PENDING = "pending"
    """An orphan or a leaked upload, but for being younger than the grace period."""
    FOREIGN = "foreign"
    """Not written by this instance: reported, never deleted."""
    UNCHECKED = "unchecked"
    """Bytes that no checksum covers, or objects that this process cannot read."""

    @property
    def is_fault(self) -> bool:
        """Whether it is damage; the others only inform."""
        return self not in _HARMLESS


_HARMLESS: Final = frozenset({FindingKind.PENDING, FindingKind.FOREIGN, FindingKind.UNCHECKED})


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding."""

    kind: FindingKind
    topic: str | None
    """``persistent://…``; None if it is not known."""
    object: str | None
    """Key of the data object, the index or the upload; None if the finding is not about a single one."""
    position: str | None
    """``LEDGER:ENTRY`` of the first affected entry; None if the whole object is affected."""
    detail: str
    """A description, one line."""

    def as_json(self) -> dict[str, str | None]:
        """The finding as ``afterglow verify --json`` prints it."""
        found: dict[str, str | None] = asdict(self)
        return found


def format_topic(ledger_name: str) -> str:
    """The URL of a topic, given its managed-ledger name; a name that is not a topic's is returned unchanged."""
    try:
        return str(TopicName.from_managed_ledger_name(ledger_name))
    except InvalidName:
        return ledger_name


def format_position(ledger_id: int, entry_id: int) -> str:
    """``LEDGER:ENTRY``."""
    return f"{ledger_id}:{entry_id}"
