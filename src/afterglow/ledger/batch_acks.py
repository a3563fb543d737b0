"""Partly acknowledged batches: which of their messages are still to be acknowledged.

On the wire and in metadata a bit set is a list of 64-bit words as Java's ``BitSet`` gives them: signed, the lowest
first, zero words at the end left out. Bit *i* is message *i*; 1 means **not** acknowledged. Missing words are zero.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from afterglow.format.position import Position

_WORD_BYTES: Final = 8


def from_words(words: Sequence[int]) -> int:
    """Java's words, signed or unsigned, as one number."""
    return int.from_bytes(b"".join((word & (2**64 - 1)).to_bytes(_WORD_BYTES, "little") for word in words), "little")


def to_words(bits: int) -> tuple[int, ...]:
    """A number as Java's words, signed, without zero words at the end."""
    count = (bits.bit_length() + 63) // 64
    data = bits.to_bytes(count * _WORD_BYTES, "little")
    return tuple(
        int.from_bytes(data[at : at + _WORD_BYTES], "little", signed=True) for at in range(0, len(data), _WORD_BYTES)
    )


class BatchAcks:
    """The partly acknowledged batches of one cursor. Not thread-safe."""

    def __init__(self) -> None:
        self._bits: dict[Position, int] = {}
        self._order: list[Position] = []

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[tuple[Position, tuple[int, ...]]]:
        """Each batch with its words, in order."""
        for position in self._order:
            yield position, to_words(self._bits[position])

    def words(self, position: Position) -> tuple[int, ...] | None:
        """What is still to be acknowledged of a batch; None where nothing of it was acknowledged yet."""
        bits = self._bits.get(position)
        return None if bits is None else to_words(bits)

    def ack(self, position: Position, words: Sequence[int]) -> bool:
        """Acknowledge all messages of a batch whose bits are 0; returns whether none is left."""
        bits = from_words(words)
        known = self._bits.get(position)
        if known is None:
            if bits:
                self._bits[position] = bits
                insort(self._order, position)
            return not bits
        bits &= known
        if bits:
            self._bits[position] = bits
        else:
            self.forget(position)
        return not bits

    def forget(self, position: Position) -> None:
        """Drop what is known of one batch: the whole entry is acknowledged."""
        if self._bits.pop(position, None) is not None:
            del self._order[bisect_right(self._order, position) - 1]

    def remove_through(self, position: Position) -> None:
        """Drop what is known of every batch up to ``position``, inclusive."""
        end = bisect_right(self._order, position)
        for gone in self._order[:end]:
            del self._bits[gone]
        del self._order[:end]

    def clear(self) -> None:
        """Drop everything."""
        self._bits.clear()
        self._order.clear()
