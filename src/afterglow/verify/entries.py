"""Parsers of a block's bytes: its frames, walked in pieces so that memory does not depend on its size, and its entries.

A block is a header, then frames ``length:int32 · id:int64 · length bytes`` with ids that go up by one, then padding
``FE DC DE AD``, repeated from its first byte, up to the end of the block. All integers are big-endian.

An entry is ``[0e02 · size:4 · BrokerEntryMetadata]? [0e01 · crc32c:4]? size:4 · MessageMetadata · payload``. The
checksum, which its producer gave it, covers all that stands behind it; the times in it are those that the index is to
hold. An entry without a checksum, or one that is not a message, is not damaged.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from afterglow.errors import FormatError
from afterglow.verify.wire import Message, read_varint

if TYPE_CHECKING:
    from afterglow.verify.index import Bounds

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
_FRAME: Final = struct.Struct(">iq")
_LENGTH: Final = struct.Struct(">i")
_PADDING: Final = b"\xfe\xdc\xde\xad"


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


class BlockWalk:
    """The walk over one block: :meth:`feed` it all bytes in order, then call :meth:`end`.

    Args:
        block_bytes: Length of the whole block.
        header_bytes: Where the frames begin.
        first_entry_id: The entry that the block begins with.
        stripe_bytes: Length of the stretches to checksum one by one; 0: only the block as a whole.
        entries: Is given every entry.
    """

    def __init__(
        self,
        block_bytes: int,
        header_bytes: int,
        first_entry_id: int,
        stripe_bytes: int = 0,
        entries: EntryChecks | None = None,
    ) -> None:
        self.crc32c = 0
        """Of all bytes."""
        self.stripe_crc32c: list[int] = []
        self.stripe_places: list[tuple[int, int]] = []
        """Of each stripe: entries that begin before it, and where in it the next begins; its length where none does."""
        self.next_entry_id = first_entry_id
        """The entry that should follow the frames met so far."""
        self.frames_end = header_bytes
        """Offset in the block behind the last frame: where the next one begins, or the padding."""
        self.damage: str | None = None
        """What ended the frames early; checksums go on behind it."""
        self.entries = EntryChecks() if entries is None else entries
        self._block_bytes = block_bytes
        self._first_entry_id = first_entry_id
        self._stripe_bytes = stripe_bytes
        self._at = 0
        self._head = b""  # what earlier pieces held of the frame head at frames_end
        self._padded = False

    def feed(self, piece: memoryview) -> None:
        """Take the next bytes."""
        start = self._at
        self._checksum(piece)
        self._at += len(piece)
        self.entries.piece(piece[: max(self.frames_end - start, 0)])
        if not self._padded and self.damage is None:
            self._walk_frames(piece, start)
        if self._padded and self.damage is None:
            begin = max(self.frames_end, start)
            self._check_padding(piece[begin - start :], begin - self.frames_end)

    def end(self) -> None:
        """Say that no more bytes come."""
        if self._at != self._block_bytes and self.damage is None:
            self.damage = f"the block has {self._at} bytes where {self._block_bytes} belong"
        if self.damage is None:
            self._place_stripes(self._block_bytes)

    def _walk_frames(self, piece: memoryview, start: int) -> None:
        """Step from frame to frame as far as the piece goes."""
        at, entry_id, end = self.frames_end, self.next_entry_id, self._at
        stripe = len(self.stripe_places) * self._stripe_bytes if self._stripe_bytes else self._block_bytes
        while at < end:
            left = self._block_bytes - at
            if at >= start and left >= _FRAME.size <= end - at:
                length, found = _FRAME.unpack_from(piece, at - start)
            else:  # the head is cut by the end of a piece, or of the block
                want = min(_FRAME.size, left)
                self._head += bytes(piece[max(at + len(self._head) - start, 0) : max(at + want - start, 0)])
                if len(self._head) < want:
                    break
                length = _LENGTH.unpack_from(self._head)[0] if want >= _LENGTH.size else -1
                if length >= 0 and want < _FRAME.size:
                    self.damage = f"the frame of entry {entry_id} passes the block's end"
                    break
                found = _FRAME.unpack(self._head)[1] if want == _FRAME.size else entry_id
            if length < 0:
                self._padded = True
                break
            if length > left - _FRAME.size:
                self.damage = f"the frame of entry {entry_id} passes the block's end"
                break
            if found != entry_id:
                self.damage = f"where entry {entry_id} should stand, the frame says {found}"
                break
            if at >= stripe:
                self.next_entry_id = entry_id
                self._place_stripes(at)
                stripe = len(self.stripe_places) * self._stripe_bytes
            begin = at + _FRAME.size - start
            at += _FRAME.size + length
            if at <= end:
                self.entries.whole(entry_id, piece[begin : at - start])
            else:
                self.entries.begin(entry_id, length)
                self.entries.piece(piece[begin:])
            entry_id += 1
            self._head = b""
        self.frames_end, self.next_entry_id = at, entry_id
        if self._padded:
            self._check_padding(memoryview(self._head), 0)

    def _check_padding(self, data: memoryview, phase: int) -> None:
        phase %= len(_PADDING)
        wanted = (_PADDING * ((phase + len(data)) // len(_PADDING) + 1))[phase : phase + len(data)]
        if data != wanted:
            self.damage = f"where entry {self.next_entry_id} would begin stands neither a frame nor padding"

    def _place_stripes(self, frame_at: int) -> None:
        """Note the place of every stripe that begins at or before a frame, or before the block's end."""
        size = self._stripe_bytes
        while size and (begin := len(self.stripe_places) * size) <= frame_at and begin < self._block_bytes:
            length = min(size, self._block_bytes - begin)
            before = self.next_entry_id - self._first_entry_id
            self.stripe_places.append((before, min(frame_at - begin, length)))

    def _checksum(self, piece: memoryview) -> None:
        self.crc32c = crc32c(piece, self.crc32c)
        at = 0
        while self._stripe_bytes and at < len(piece):
            room = self._stripe_bytes - (self._at + at) % self._stripe_bytes
            if room == self._stripe_bytes:
                self.stripe_crc32c.append(0)
            self.stripe_crc32c[-1] = crc32c(piece[at : at + room], self.stripe_crc32c[-1])
            at += room
