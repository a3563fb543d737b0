"""What the checker tells: one record per finding, and which of them are faults."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from afterglow.errors import InvalidName
from afterglow.metadata.names import TopicName


class Kind(StrEnum):
    """The kinds of findings."""

    MISSING_OBJECT = "missing_object"
    """Metadata names a data object that is not there."""
    MISSING_INDEX = "missing_index"
    """The data object is there, its index is not."""
    DAMAGED_BLOCK = "damaged_block"
    """A block, or an index, is not as it was written, or contradicts what else is known of it."""
    WRONG_LENGTH = "wrong_length"
    """The data object is longer or shorter than its index or its record says."""
    HOLE = "hole"
    """Entries of the retained log are in no copy."""
    OVERLAP = "overlap"
    """Committed copies hold entries twice, or entries that the log does not have."""
    ORPHAN_OBJECT = "orphan_object"
    """An object of this instance, older than the grace, that no metadata names."""
    LEAKED_UPLOAD = "leaked_upload"
    """An unfinished upload, older than the grace, of a key that our records name and that needs none."""
    PENDING = "pending"
    """What would be an orphan or a leak, but is younger than the grace."""
    FOREIGN = "foreign"
    """Not written by this instance: reported, never touched."""
    UNCHECKED = "unchecked"
    """Bytes that no checksum covers, or objects that cannot be read here."""

    @property
    def is_fault(self) -> bool:
        """Whether something is wrong; the others only tell."""
        return self not in _HARMLESS


_HARMLESS: Final = frozenset({Kind.PENDING, Kind.FOREIGN, Kind.UNCHECKED})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found."""

    kind: Kind
    topic: str | None
    """``persistent://…``; None where nothing tells the topic."""
    object: str | None
    """Key of the data object, the index or the upload that it is about; None where it is about no single one."""
    position: str | None
    """``LEDGER:ENTRY`` of the first entry that is affected; None where it concerns the whole object."""
    detail: str
    """One line for people."""

    def as_json(self) -> dict[str, str | None]:
        """The finding as ``afterglow verify --json`` prints it."""
        found: dict[str, str | None] = asdict(self)
        return found


def topic_text(ledger_name: str) -> str:
    """A topic as people write it, given its managed-ledger name; the latter as it is where it is none of a topic."""
    try:
        return str(TopicName.from_managed_ledger_name(ledger_name))
    except InvalidName:
        return ledger_name


def position_text(ledger_id: int, entry_id: int) -> str:
    """A position as people write it."""
    return f"{ledger_id}:{entry_id}"
