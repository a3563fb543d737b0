"""Records of held subscriptions, and the comparison of a found mark-delete position with the acknowledged one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.errors import AfterglowError
    from afterglow.format.position import Position


@dataclass(frozen=True, slots=True)
class SkippedRange:
    """Entries that a cluster no longer keeps for a subscription, although they were not acknowledged here.

    The cluster may have trimmed them already; those that are still in its ledgers can be read.
    """

    after: Position
    """The position acknowledged here: the range begins behind it."""
    through: Position
    """The mark-delete position that was found; the last position of the range."""

    def __str__(self) -> str:
        return f"entries behind {self.after} through {self.through}"


@dataclass(frozen=True, slots=True)
class LastMessage:
    """Response to a request for the last message of a topic."""

    last: Position | None
    """The last entry that may be dispatched; None if the topic is empty. Markers and open transactions are behind."""
    mark_delete: Position | None
    """The mark-delete position of the held subscription; None if the broker does not report it."""


@dataclass(frozen=True, slots=True)
class HoldState:
    """State of the subscription of one topic."""

    topic: str
    """Full name."""
    held: bool = False
    """Whether a consumer of this process is connected."""
    since_ms: int | None = None
    """Time in ms since 1970 at which it was connected; None while it is not."""
    acknowledged: Position | None = None
    """The last position whose acknowledgement the broker has confirmed, or that the caller gave as confirmed."""
    mark_delete: Position | None = None
    """The mark-delete position last reported by the broker."""
    last_error: AfterglowError | None = None
    """Why the subscription was not held last; None if it has been held without interruption."""
    recreated: bool = False
    """Whether the subscription was found at the start of a ledger, and not where it was acknowledged: it was deleted
    and created again, or reset. After a crash of a broker that had not stored any acknowledgement it looks the same."""
    may_be_lost: SkippedRange | None = None
    """Entries that may be lost: not acknowledged here, and not held back by the cluster any more."""


def skipped_range(
    requested: Position | None, found: Position, has_entries: Callable[[Position, Position], bool]
) -> SkippedRange | None:
    """Return the range that a cluster has skipped on its own; None if the mark-delete position is not ahead.

    Args:
        requested: The newest position sent in an acknowledgement; None if none is known.
        found: The mark-delete position.
        has_entries: Whether a topic has, or had, entries behind the first position up to the second one. A cluster
            moves the mark-delete position from the last entry of a ledger to the start of the next one.
    """
    if requested is None or found <= requested or not has_entries(requested, found):
        return None
    return SkippedRange(requested, found)


def is_recreated(acknowledged: Position | None, found: Position, skipped: SkippedRange | None) -> bool:
    """Return whether a mark-delete position found after a new subscribe is that of a new subscription.

    A subscription that starts with the earliest entry is at the start of a ledger: before what was acknowledged, or
    behind it if the entries between were trimmed while the subscription did not exist.
    """
    if acknowledged is None or found.entry_id >= 0:
        return False
    return found < acknowledged or skipped is not None


def joined(first: SkippedRange | None, second: SkippedRange | None) -> SkippedRange | None:
    """Return the smallest range that includes both."""
    if first is None or second is None:
        return first or second
    return SkippedRange(min(first.after, second.after), max(first.through, second.through))
