"""What entries tell of themselves: the checksum that their producer gave them, and the times that the index is to hold.

An entry is ``[0e02 · size:4 · BrokerEntryMetadata]? [0e01 · crc32c:4]? size:4 · MessageMetadata · payload``. The
checksum covers all that stands behind it. An entry without one, or one that is no message, is none the worse for that.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from afterglow.errors import FormatError
from afterglow.verify.wire import Message, read_varint

if TYPE_CHECKING:
    from afterglow.verify.statistics import Bounds

_MARK: Final = struct.Struct(">HI")
_SIZE: Final = struct.Struct(">I")
_BROKER: Final = 0x0E02
_CHECKSUM: Final = 0x0E01
_PREFIX_BYTES: Final = 64 << 10
"""Kept of an entry that comes in pieces: more than the metadata of any but the oddest."""
_REQUIRED: Final = (1, 2, 3)
"""Fields without which a message's metadata is none: producer, sequence id, publish time."""
_BROKER_TIME_TAG = 0x08
_PRODUCER_TAG, _SEQUENCE_TAG, _PUBLISH_TAG = 0x0A, 0x10, 0x18
_SHORT: Final = 0x7F
"""The longest name whose length is one byte."""


@dataclass(slots=True)
class Told:
    """Entries of one block of which the same is to be told."""

    first: int = -1
    """The first of them."""
    count: int = 0

    def add(self, entry_id: int) -> None:
        """One more."""
        self.first = self.first if self.count else entry_id
        self.count += 1

    def __str__(self) -> str:
        return f"entry {self.first}" if self.count == 1 else f"entry {self.first} and {self.count - 1} more"


class EntryChecks:
    """The entries of one block, one after the other. Nothing is kept of them.

    Args:
        bounds: What the index says of their times; None where it does not.
    """

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.wrong = Told()
        """Entries whose bytes are not those that their own checksum is of."""
        self.torn = Told()
        """Entries that are shorter than what they say of themselves."""
        self.outside = Told()
        """Entries whose broker time or publish time lies outside of the bounds."""
        self.odd = Told()
        """Entries that have no checksum and are no messages either."""
        self.covered = 0
        """Entries that have a checksum of their own."""
        self.uncovered_bytes = 0
        """Of entries, that no checksum of theirs covers."""
        self._bounds = bounds
        self._cut: _CutEntry | None = None

    def whole(self, entry_id: int, entry: memoryview) -> None:
        """Take an entry."""
        broker_end, at, wanted = _marks(entry)
        if wanted is not None:
            self.covered += 1
            self.uncovered_bytes += broker_end
            if crc32c(entry[at:]) != wanted:
                self.wrong.add(entry_id)
                return
        else:
            self._look_at_bare(entry_id, entry, len(entry), broker_end)
        if self._bounds is not None:
            self._look_at_times(entry_id, entry, broker_end, at)

    def begin(self, entry_id: int, size: int) -> None:
        """Take an entry whose bytes come in pieces: what :meth:`piece` is given until it has them all."""
        self._cut = _CutEntry(entry_id, size)

    def piece(self, data: memoryview) -> None:
        """Take the next bytes of an entry that was begun; they are nobody's where none was, or it has them all."""
        cut = self._cut
        if cut is None or not cut.feed(data):
            return
        self._cut = None
        prefix = memoryview(cut.prefix)
        if cut.wanted is not None:
            self.covered += 1
            self.uncovered_bytes += cut.broker_end
            if cut.crc32c != cut.wanted:
                self.wrong.add(cut.entry_id)
                return
        else:
            self._look_at_bare(cut.entry_id, prefix, cut.size, cut.broker_end)
        if self._bounds is not None:
            self._look_at_times(cut.entry_id, prefix, cut.broker_end, cut.at)

    def _look_at_bare(self, entry_id: int, entry: memoryview, size: int, broker_end: int) -> None:
        """Look at an entry without checksum, given its first bytes, its size, and where the broker's metadata ends."""
        self.uncovered_bytes += size
        if broker_end > size:
            self.torn.add(entry_id)
            return
        try:
            _times(entry, broker_end, broker_end)
        except (FormatError, struct.error):
            self.odd.add(entry_id)

    def _look_at_times(self, entry_id: int, entry: memoryview, broker_end: int, at: int) -> None:
        bounds = self._bounds
        assert bounds is not None
        try:
            # The first look trusts what stands where writers put it. What seems wrong to it gets a strict one.
            times = _usual_times(entry, broker_end, at)
            if (times is None or not bounds.hold(*times)) and not bounds.hold(*_times(entry, broker_end, at)):
                self.outside.add(entry_id)
        except (FormatError, IndexError, struct.error):
            return  # no message, so that it has no time


class _CutEntry:
    """An entry whose bytes come in pieces."""

    def __init__(self, entry_id: int, size: int) -> None:
        self.entry_id = entry_id
        self.size = size
        self.prefix = bytearray()
        """Its first bytes."""
        self.broker_end = self.at = 0
        """See :func:`_marks`."""
        self.wanted: int | None = None
        """What its checksum should be; None where it has none, or has it behind the prefix."""
        self.crc32c = 0
        """Of the bytes that the checksum covers, as far as they have come."""
        self._left = size

    def feed(self, data: memoryview) -> bool:
        """Take the next bytes; true with the last ones."""
        self._left -= len(data)
        room = _PREFIX_BYTES - len(self.prefix)
        if room:
            self.prefix += data[:room]
            data = data[room:]
            if len(self.prefix) == _PREFIX_BYTES or not self._left:
                self.broker_end, self.at, self.wanted = _marks(memoryview(self.prefix))
                self.crc32c = crc32c(self.prefix[self.at :])
        self.crc32c = crc32c(data, self.crc32c)
        return not self._left


def _marks(entry: memoryview) -> tuple[int, int, int | None]:
    """Where the broker's metadata ends (0: there is none), where the message's begins, and its checksum if any."""
    broker_end = 0
    size = len(entry)
    mark, word = _MARK.unpack_from(entry) if size >= _MARK.size else (0, 0)
    if mark == _BROKER:
        broker_end = _MARK.size + word
        mark, word = _MARK.unpack_from(entry, broker_end) if size - broker_end >= _MARK.size else (0, 0)
    if mark == _CHECKSUM:
        return broker_end, broker_end + _MARK.size, word
    return broker_end, broker_end, None


def _usual_times(entry: memoryview, broker_end: int, at: int) -> tuple[int | None, int] | None:
    """Broker time and publish time where they stand as writers put them, before anything of another length; or None."""
    broker_time = None
    if broker_end:
        if entry[_MARK.size] != _BROKER_TIME_TAG:
            return None
        broker_time, _ = read_varint(entry, _MARK.size + 1)
    at += _SIZE.size
    if entry[at] != _PRODUCER_TAG or entry[at + 1] > _SHORT:
        return None
    at += 2 + entry[at + 1]
    if entry[at] != _SEQUENCE_TAG:
        return None
    _, at = read_varint(entry, at + 1)
    if entry[at] != _PUBLISH_TAG:
        return None
    return broker_time, read_varint(entry, at + 1)[0]


def _times(entry: memoryview, broker_end: int, at: int) -> tuple[int | None, int | None]:
    """The same by all the rules.

    Raises:
        FormatError: It is no message.
    """
    broker = Message(bytes(entry[_MARK.size : broker_end]))
    (size,) = _SIZE.unpack_from(entry, at)
    if size > len(entry) - at - _SIZE.size:
        raise FormatError("the metadata passes the entry's end")
    metadata = Message(bytes(entry[at + _SIZE.size : at + _SIZE.size + size]))
    if not all(metadata.has(number) for number in _REQUIRED):
        raise FormatError("the metadata lacks what every message has")
    return broker.integer_or_none(1), metadata.integer_or_none(3)
