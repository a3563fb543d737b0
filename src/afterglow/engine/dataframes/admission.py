"""How much goes into one micro-batch, told from metadata and indexes: no entry is read for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.format.position import Position
from afterglow.spark.source_points import Point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from afterglow.read.splits import Split


@dataclass(frozen=True, slots=True)
class Limit:
    """What a micro-batch may hold; None: no bound."""

    size_bytes: int | None = None
    """Of blocks, or of entries in the hot log. Kept to an entry of each topic and what blocks differ in themselves."""
    entries: int | None = None
    """Kept."""

    @property
    def spent(self) -> bool:
        """Whether nothing fits any more."""
        return any(bound is not None and bound <= 0 for bound in (self.size_bytes, self.entries))

    def part(self, of: int) -> Limit:
        """One of so many equal parts, at least one entry and one byte."""
        return Limit(*(None if bound is None else max(bound // of, 1) for bound in (self.size_bytes, self.entries)))

    def less(self, size_bytes: int, entries: int) -> Limit:
        """What is left of it."""
        return Limit(
            None if self.size_bytes is None else self.size_bytes - size_bytes,
            None if self.entries is None else self.entries - entries,
        )


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a topic has that was not read yet."""

    topic: str
    """Full name, with the partition."""
    end: Point
    """Where it ends."""
    entries: int
    """About so many; at least one."""
    splits: Callable[[], Iterable[Split]]
    """The same cut, in order; made as it is looked at."""


def admit(waiting: Sequence[Waiting], limit: Limit, turn: int = 0) -> dict[str, Point]:
    """How far each topic goes in the next micro-batch; those that must wait are left out.

    Topics with little give what they do not need to those with more. Where there are more topics than entries may be
    read, they take turns.

    Args:
        waiting: What there is.
        limit: For all together.
        turn: Goes up by one with every micro-batch.
    """
    first = turn % max(len(waiting), 1)
    fair = None if limit.entries is None else limit.entries // max(len(waiting), 1)
    order = sorted(
        [*waiting[first:], *waiting[:first]],
        key=lambda topic: topic.entries if fair is None else min(topic.entries, fair),
    )
    found: dict[str, Point] = {}
    for number, topic in enumerate(order):
        if limit.spent:
            break
        found[topic.topic], size_bytes, entries = _reached(topic, limit.part(len(order) - number))
        limit = limit.less(size_bytes, entries)
    return found


def _reached(topic: Waiting, limit: Limit) -> tuple[Point, int, int]:
    """How far a limit reaches, and the bytes and entries up to there: at least one entry, however large it is."""
    size_bytes = entries = 0
    for split in topic.splits():
        count = fitting = split.last - split.first + 1
        if limit.entries is not None:
            fitting = min(fitting, limit.entries - entries)
        if limit.size_bytes is not None and size_bytes + split.size_bytes > limit.size_bytes:
            fitting = min(fitting, count * (limit.size_bytes - size_bytes) // split.size_bytes)
        if fitting < count:
            fitting = max(fitting, 0 if entries else 1)
            point = Point(Position(split.ledger_id, split.first + fitting))
            return min(point, topic.end), size_bytes + split.size_bytes * fitting // count, entries + fitting
        size_bytes += split.size_bytes
        entries += count
    return topic.end, size_bytes, entries
