"""The statistics of blocks that ride inside an index of ours, by field number.

{1: version, 2: entries, 3: bytes, 4/5: min and max broker time, 6/7: publish time, 8/9: first and last index,
10: crc32c, 11: stripe_bytes, 12: stripe_crc32c, 13: stripe_entries_before, 14: stripe_first_frame}
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from afterglow.errors import FormatError
from afterglow.verify.wire import Message, zigzag

if TYPE_CHECKING:
    from collections.abc import Sequence

_VERSION: Final = 1
_RANGES: Final = (("broker time", 4, 5), ("publish time", 6, 7), ("index", 8, 9))


@dataclass(frozen=True, slots=True)
class Stripe:
    """What the index says of one stretch of a block."""

    crc32c: int
    entries_before: int | None
    """Entries of the block that begin before it; None where the index does not tell."""
    first_frame: int | None
    """Where in it the next one begins; its length where none does."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Between which times one block's entries lie by the index, by which readers leave blocks out.

    Each is the least and the most, both -1 where no entry has such a time; None where the index does not tell.
    """

    broker_time: tuple[int, int] | None
    publish_time: tuple[int, int] | None

    def hold(self, broker_time: int | None, publish_time: int | None) -> bool:
        """Whether an entry's times lie between them; None and negative ones are no times."""
        return _within(broker_time, self.broker_time) and _within(publish_time, self.publish_time)


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the index says of one ledger's blocks: one item per block in each column."""

    entries: tuple[int, ...]
    payload_bytes: tuple[int, ...]
    crc32c: tuple[int, ...]
    stripe_bytes: int
    """0: there are no stripes."""
    stripes: tuple[Stripe, ...]
    """Of all blocks in turn."""
    bounds: tuple[Bounds, ...]
    """Of each block."""

    def split(self, block_bytes: Sequence[int]) -> tuple[tuple[Stripe, ...], ...]:
        """The stripes of each block, given the blocks' lengths; empty ones where the index has none.

        Raises:
            FormatError: There are more or fewer than such blocks have.
        """
        if not self.stripes:
            return ((),) * len(block_bytes)
        counts = [-(-max(size, 0) // self.stripe_bytes) for size in block_bytes]
        if sum(counts) != len(self.stripes):
            raise FormatError(f"its statistics have {len(self.stripes)} stripes where the blocks have {sum(counts)}")
        ends = list(accumulate(counts))
        return tuple(self.stripes[end - count : end] for count, end in zip(counts, ends, strict=True))


def parse_statistics(data: bytes, blocks: int) -> Statistics:
    """Read the table of one ledger's blocks.

    Args:
        data: The table.
        blocks: How many blocks it must describe.

    Raises:
        FormatError: It does not parse, or describes another number of blocks.
    """
    table = Message(data)
    if table.unsigned(1) != _VERSION:
        raise FormatError(f"its statistics have the unknown version {table.unsigned(1)}")
    entries, payload, checksums = table.column(2), table.column(3), table.fixed32_column(10)
    if {len(entries), len(payload), len(checksums)} != {blocks}:
        raise FormatError(f"its statistics do not describe {blocks} blocks")
    ranges: dict[str, list[tuple[int, int]]] = {}
    for what, lower, upper in _RANGES:
        low, high = ([zigzag(value) for value in table.column(number)] for number in (lower, upper))
        if len(low) != len(high) or len(low) not in {0, blocks}:
            raise FormatError(f"its statistics have {len(low)} and {len(high)} items of {what} for {blocks} blocks")
        if any(least > most for least, most in zip(low, high, strict=True)):
            raise FormatError(f"its statistics have a range of {what} that ends before it begins")
        ranges[what] = list(zip(low, high, strict=True))
    bounds = tuple(
        Bounds(*(ranges[what][i] if ranges[what] else None for what in ("broker time", "publish time")))
        for i in range(blocks)
    )
    return Statistics(entries, payload, checksums, table.unsigned(11), _stripes(table), bounds)


def _within(time: int | None, bounds: tuple[int, int] | None) -> bool:
    return time is None or time < 0 or bounds is None or bounds[0] <= time <= bounds[1]


def _stripes(table: Message) -> tuple[Stripe, ...]:
    checksums, before, frames = table.fixed32_column(12), table.column(13), table.column(14)
    if checksums and not table.unsigned(11):
        raise FormatError(f"its statistics have {len(checksums)} checksums of stripes of no length")
    if not {len(before), len(frames)} <= {0, len(checksums)}:
        raise FormatError(
            f"its statistics have {len(before)} and {len(frames)} places of frames for {len(checksums)} stripes"
        )
    return tuple(
        Stripe(checksum, before[i] if before else None, frames[i] if frames else None)
        for i, checksum in enumerate(checksums)
    )
