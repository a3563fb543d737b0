"""What topics must hold, kept beside the code under test and by other means than its own: plain dictionaries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from afterglow.format.entry import split_broker_metadata
from afterglow.format.position import EARLIEST, Position
from afterglow.ledger.retention import Retention

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.reader import StoredEntry

FOREVER = Retention(-1, -1)


@dataclass(slots=True)
class TopicModel:
    """One topic, in as many lives as it has had."""

    name: str
    """The managed-ledger name."""
    life: int = 0
    """Counts how often it was created."""
    acknowledged: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """Entries with a receipt: by ledger and entry, as the client sent them."""
    unheard: dict[bytes, int] = field(default_factory=dict)
    """Sent, with no answer: each may be there, or not. The value is when it was sent, as a count of all sends."""
    sent: dict[bytes, int] = field(default_factory=dict)
    """Everything ever sent in this life, with its number; numbers ascend with positions."""
    earlier: list[frozenset[bytes]] = field(default_factory=list)
    """Everything ever sent in each earlier life."""
    gone: set[int] = field(default_factory=set)
    """Ledgers that were trimmed, rightly."""
    retention: Retention = FOREVER
    subscribed: bool = False
    """Whether a subscription holds entries back, for certain."""
    consumed: Position = EARLIEST
    """The last position up to which the subscription was acknowledged."""
    truncated: int = -1
    """Ledgers up to this id were truncated."""
    deletion_wanted: bool = False
    taken_out: set[str] = field(default_factory=set)
    """UUIDs of segments that the topic was to be taken out of."""
    discarded: set[int] = field(default_factory=set)
    """Ledgers that may leave the list with their segments, as people have said."""
    terminated: bool = False
    """Whether it was ended for good."""

    # --- what producers hear ------------------------------------------------------------------------------------------

    def send(self, entry: bytes) -> None:
        """An entry is on its way."""
        self.sent[entry] = self.unheard[entry] = len(self.sent)

    def acknowledge(self, entry: bytes, position: Position) -> str | None:
        """An entry is durable; returns what is wrong with that."""
        self.unheard.pop(entry, None)
        if self.terminated:
            return f"{self.name}: {position} was acknowledged after the topic had ended"
        ledger = self.acknowledged.setdefault(position.ledger_id, {})
        known = ledger.get(position.entry_id)
        ledger[position.entry_id] = entry
        if known is not None and known != entry:
            return f"{self.name}: position {position} was given out twice"
        return None

    def refuse(self, entry: bytes) -> None:
        """An entry was refused for certain, and must never show."""
        self.unheard.pop(entry, None)

    # --- what happens to ledgers --------------------------------------------------------------------------------------

    def created(self) -> None:
        """The topic begins a new life."""
        self.life += 1
        self.acknowledged.clear()
        self.unheard.clear()
        self.earlier.append(frozenset(self.sent))
        self.sent.clear()
        self.gone.clear()
        self.subscribed = False
        self.consumed = EARLIEST
        self.truncated = -1
        self.taken_out.clear()
        self.discarded.clear()
        self.deletion_wanted = self.terminated = False

    def may_leave(self, old: ManagedLedgerInfo, row: ManagedLedgerInfo.LedgerInfo, now_ms: int) -> bool:
        """Whether a ledger may leave the list at this moment."""
        if self.deletion_wanted or row.ledgerId <= self.truncated:
            return True
        if row.ledgerId in self.discarded and row.offloadContext.offloadSegment:
            return True
        if not row.entries:  # also of a ledger that nobody has closed yet: it is closed and dropped in one change
            return not self.acknowledged.get(row.ledgerId)
        end = Position(row.ledgerId, row.entries - 1)
        if self.subscribed and self.consumed < end:
            return False
        behind = sum(other.size for other in old.ledgerInfo if other.ledgerId > row.ledgerId)
        return 0 <= self.retention.time_ms < now_ms - row.timestamp or 0 <= self.retention.size_bytes <= behind

    def left(self, ledger_id: int) -> None:
        """A ledger has left the list."""
        self.gone.add(ledger_id)

    # --- what readers get ---------------------------------------------------------------------------------------------

    def expected(self, first: Position) -> list[Position]:
        """Where the entries stand that must be readable, from a position on, in order."""
        return [
            Position(ledger_id, entry_id)
            for ledger_id in sorted(self.acknowledged)
            if ledger_id not in self.gone
            for entry_id in sorted(self.acknowledged[ledger_id])
            if (ledger_id, entry_id) >= (first.ledger_id, first.entry_id)
        ]

    def wrong_entries(self, found: Sequence[tuple[Position, bytes]], *, current: bool) -> list[str]:
        """What is wrong with entries that were read: bytes, order, or that they are there at all.

        Args:
            found: Positions, and entries as the client sent them.
            current: Whether the reader owns the topic; then entries that are readable without a receipt must stay.
        """
        if not current and any(sent.issuperset(entry for _, entry in found) for sent in self.earlier):
            return []  # a process that was replaced still has the topic open as it was before its deletion
        problems: list[str] = []
        before: tuple[Position, int] | None = None
        for position, entry in found:
            number = self.sent.get(entry)
            if number is None:
                problems.append(f"{self.name}: {position} holds what nobody sent: {entry[:60]!r}")
                continue
            known = self.acknowledged.get(position.ledger_id, {}).get(position.entry_id)
            if known is not None and known != entry:
                problems.append(f"{self.name}: {position} holds entry {number}, not {self.sent[known]}")
            if known is None and entry not in self.unheard:
                problems.append(f"{self.name}: {position} holds entry {number}, which was refused or stands elsewhere")
            if before is not None and not (before[0] < position and before[1] < number):
                problems.append(f"{self.name}: {position} with entry {number} comes behind {before}")
            before = (position, number)
            if known is None and current and self.unheard.pop(entry, None) is not None:
                self.acknowledged.setdefault(position.ledger_id, {})[position.entry_id] = entry
        return problems

    def missing(self, first: Position, found: Sequence[Position], *, whole: bool) -> list[str]:
        """Entries that should be among those read from ``first`` on: up to the last one, or all of the ``whole``."""
        wanted = self.expected(first)
        if not whole:
            if not found:
                return [f"{self.name}: nothing was read from {first} on, and {wanted[0]} is there"] if wanted else []
            wanted = [position for position in wanted if position <= found[-1]]
        lost = sorted(set(wanted).difference(found))
        return [f"{self.name}: of {len(wanted)} entries these were not read: {lost[:10]}"] if lost else []


def as_sent(entries: Iterable[StoredEntry]) -> list[tuple[Position, bytes]]:
    """Entries as the client sent them, without what the broker put before them."""
    return [(entry.position, bytes(split_broker_metadata(entry.data)[1])) for entry in entries]
