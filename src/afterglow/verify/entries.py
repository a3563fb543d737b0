"""Parsers of a block: its frames, parsed buffer by buffer so that memory does not depend on its size, and its entries.

A block is a header, then frames ``length:int32 · id:int64 · length bytes`` with ids that go up by one, then padding
``FE DC DE AD``, repeated from its first byte, up to the end of the block. All integers are big-endian.

An entry is ``[0e02 · size:4 · BrokerEntryMetadata]? [0e01 · crc32c:4]? size:4 · MessageMetadata · payload``. The
producer's checksum covers all bytes behind it. Broker time and publish time must be within the range in the index. An
entry without a checksum, or one that is not a message, is not damaged.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from afterglow.errors import FormatError
from afterglow.verify.wire import Message, read_varint

if TYPE_CHECKING:
    from afterglow.verify.index import BlockTimeRange

_MARK: Final = struct.Struct(">HI")
_SIZE: Final = struct.Struct(">I")
_BROKER: Final = 0x0E02
_CHECKSUM: Final = 0x0E01
_PREFIX_BYTES: Final = 64 << 10
"""Kept of an entry that spans several buffers: longer than the metadata of nearly all messages."""
_REQUIRED: Final = (1, 2, 3)
"""Required fields of ``MessageMetadata``: producer, sequence id, publish time."""
_BROKER_TIME_TAG = 0x08
_PRODUCER_TAG, _SEQUENCE_TAG, _PUBLISH_TAG = 0x0A, 0x10, 0x18
_SHORT: Final = 0x7F
"""Length of the longest name whose length takes one byte."""
_FRAME: Final = struct.Struct(">iq")
_LENGTH: Final = struct.Struct(">i")
_PADDING: Final = b"\xfe\xdc\xde\xad"


@dataclass(slots=True)
class AffectedEntries:
    """Entries of one block with the same defect; false if there are none."""

    first: int = -1
    """The first of them."""
    count: int = 0

    def add(self, entry_id: int) -> None:
        """Count an entry; entries come in ascending order."""
        self.first = self.first if self.count else entry_id
        self.count += 1

    def __bool__(self) -> bool:
        return self.count > 0

    def __str__(self) -> str:
        return f"entry {self.first}" if self.count == 1 else f"entry {self.first} and {self.count - 1} more"


class EntryVerifier:
    """Verifies the entries of one block, one after the other, and keeps none of them.

    Args:
        time_range: Their times by the index; None if it has none.
    """

    def __init__(self, time_range: BlockTimeRange | None = None) -> None:
        self.wrong_checksum = AffectedEntries()
        """Entries that do not match their own checksum."""
        self.truncated = AffectedEntries()
        """Entries that are shorter than the length they state."""
        self.outside_times = AffectedEntries()
        """Entries whose broker time or publish time is outside the range in the index."""
        self.unparsable = AffectedEntries()
        """Entries that have no checksum and are not messages either."""
        self.with_checksum = 0
        """Entries that have a checksum of their own."""
        self.uncovered_bytes = 0
        """Bytes of entries that are not covered by their own checksum."""
        self._time_range = time_range
        self._partial: _PartialEntry | None = None

    def verify(self, entry_id: int, entry: memoryview) -> None:
        """Verify an entry that is in one buffer."""
        layout = _layout(entry)
        _, at, expected = layout
        self._verify(entry_id, entry, len(entry), layout, 0 if expected is None else crc32c(entry[at:]))

    def begin(self, entry_id: int, size: int) -> None:
        """Begin an entry that spans several buffers; :meth:`feed` takes its bytes."""
        self._partial = _PartialEntry(entry_id, size)

    def feed(self, data: memoryview) -> None:
        """Take the next bytes of an entry that was begun; without one they are ignored."""
        partial = self._partial
        if partial is None or not partial.feed(data):
            return
        self._partial = None
        self._verify(partial.entry_id, memoryview(partial.prefix), partial.size, partial.layout, partial.crc32c)

    def _verify(
        self, entry_id: int, prefix: memoryview, size: int, layout: tuple[int, int, int | None], checksum: int
    ) -> None:
        """Verify an entry by its first bytes, or all of them, and the CRC32C of the bytes behind its own checksum."""
        broker_end, at, expected = layout
        if expected is None:
            self._verify_without_checksum(entry_id, prefix, size, broker_end)
        else:
            self.with_checksum += 1
            self.uncovered_bytes += broker_end
            if checksum != expected:
                self.wrong_checksum.add(entry_id)
                return
        if self._time_range is not None:
            self._verify_times(self._time_range, entry_id, prefix, broker_end, at)

    def _verify_without_checksum(self, entry_id: int, prefix: memoryview, size: int, broker_end: int) -> None:
        self.uncovered_bytes += size
        if broker_end > size:
            self.truncated.add(entry_id)
            return
        try:
            _times(prefix, broker_end, broker_end)
        except (FormatError, struct.error):
            self.unparsable.add(entry_id)

    def _verify_times(
        self, time_range: BlockTimeRange, entry_id: int, prefix: memoryview, broker_end: int, at: int
    ) -> None:
        try:
            # The fast parser assumes the field order that writers use. Entries that fail it are parsed in full.
            times = _usual_times(prefix, broker_end, at)
            if times is not None and time_range.contains(*times):
                return
            if not time_range.contains(*_times(prefix, broker_end, at)):
                self.outside_times.add(entry_id)
        except (FormatError, IndexError, struct.error):
            return  # not a message, so it has no time


class _PartialEntry:
    """An entry that spans several buffers."""

    def __init__(self, entry_id: int, size: int) -> None:
        self.entry_id = entry_id
        self.size = size
        self.prefix = bytearray()
        """Its first bytes."""
        self.layout: tuple[int, int, int | None] = (0, 0, None)
        """See :func:`_layout`; a checksum behind the prefix is not found."""
        self.crc32c = 0
        """Of the bytes behind its checksum, as far as they were fed."""
        self._left = size

    def feed(self, data: memoryview) -> bool:
        """Take the next bytes; true with the last ones."""
        self._left -= len(data)
        missing = _PREFIX_BYTES - len(self.prefix)
        if missing:
            self.prefix += data[:missing]
            data = data[missing:]
            if len(self.prefix) == _PREFIX_BYTES or not self._left:
                self.layout = _layout(memoryview(self.prefix))
                self.crc32c = crc32c(self.prefix[self.layout[1] :])
        self.crc32c = crc32c(data, self.crc32c)
        return not self._left


def _layout(entry: memoryview) -> tuple[int, int, int | None]:
    """Offsets behind the broker's metadata (0: it has none) and of the message's metadata; its checksum, if any."""
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
    """Broker time and publish time if their fields come first, in the order that writers use; else None."""
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
    """Broker time and publish time, whatever the order of the fields.

    Raises:
        FormatError: The entry is not a message.
    """
    broker = Message(bytes(entry[_MARK.size : broker_end]))
    (size,) = _SIZE.unpack_from(entry, at)
    if size > len(entry) - at - _SIZE.size:
        raise FormatError("the metadata passes the entry's end")
    metadata = Message(bytes(entry[at + _SIZE.size : at + _SIZE.size + size]))
    if not all(metadata.has(number) for number in _REQUIRED):
        raise FormatError("the metadata lacks a required field")
    return broker.integer_or_none(1), metadata.integer_or_none(3)


class BlockParser:
    """Parser of one block: :meth:`feed` it all bytes in order, then call :meth:`end`.

    Args:
        block_bytes: Length of the whole block.
        header_bytes: Length of the header; the frames follow it.
        first_entry_id: The entry that the block begins with.
        stripe_bytes: Length of the stripes that have checksums of their own; 0: the block has no stripes.
        entries: Verifies every entry.
    """

    def __init__(
        self,
        block_bytes: int,
        header_bytes: int,
        first_entry_id: int,
        stripe_bytes: int = 0,
        entries: EntryVerifier | None = None,
    ) -> None:
        self.crc32c = 0
        """Of all bytes."""
        self.stripe_crc32c: list[int] = []
        self.stripe_positions: list[tuple[int, int]] = []
        """Of each stripe: entries that begin before it, and the offset of the next one in it, or else its length."""
        self.next_entry_id = first_entry_id
        """The entry that should follow the frames parsed so far."""
        self.frames_end = header_bytes
        """Offset in the block behind the last frame: that of the next frame, or of the padding."""
        self.damage: str | None = None
        """The defect at which parsing of frames ended; checksums are computed to the end."""
        self.entries = EntryVerifier() if entries is None else entries
        self._block_bytes = block_bytes
        self._first_entry_id = first_entry_id
        self._stripe_bytes = stripe_bytes
        self._at = 0
        self._head = b""  # bytes of the frame head at frames_end that earlier buffers held
        self._padded = False

    def feed(self, data: memoryview) -> None:
        """Take the next bytes."""
        start = self._at
        self._checksum(data)
        self._at += len(data)
        self.entries.feed(data[: max(self.frames_end - start, 0)])
        if not self._padded and self.damage is None:
            self._parse_frames(data, start)
        if self._padded and self.damage is None:
            begin = max(self.frames_end, start)
            self._verify_padding(data[begin - start :], begin - self.frames_end)

    def end(self) -> None:
        """Finish: all bytes were fed."""
        if self._at != self._block_bytes and self.damage is None:
            self.damage = f"the block has {self._at} bytes, not {self._block_bytes}"
        if self.damage is None:
            self._locate_stripes(self._block_bytes)

    def _parse_frames(self, data: memoryview, start: int) -> None:
        at, entry_id, end = self.frames_end, self.next_entry_id, self._at
        stripe = len(self.stripe_positions) * self._stripe_bytes if self._stripe_bytes else self._block_bytes
        while at < end:
            left = self._block_bytes - at
            if at >= start and left >= _FRAME.size <= end - at:
                length, found = _FRAME.unpack_from(data, at - start)
            else:  # the head spans two buffers, or passes the end of the block
                want = min(_FRAME.size, left)
                self._head += bytes(data[max(at + len(self._head) - start, 0) : max(at + want - start, 0)])
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
                self.damage = f"the frame of entry {entry_id} says entry {found}"
                break
            if at >= stripe:
                self.next_entry_id = entry_id
                self._locate_stripes(at)
                stripe = len(self.stripe_positions) * self._stripe_bytes
            begin = at + _FRAME.size - start
            at += _FRAME.size + length
            if at <= end:
                self.entries.verify(entry_id, data[begin : at - start])
            else:
                self.entries.begin(entry_id, length)
                self.entries.feed(data[begin:])
            entry_id += 1
            self._head = b""
        self.frames_end, self.next_entry_id = at, entry_id
        if self._padded:
            self._verify_padding(memoryview(self._head), 0)

    def _verify_padding(self, data: memoryview, phase: int) -> None:
        phase %= len(_PADDING)
        expected = (_PADDING * ((phase + len(data)) // len(_PADDING) + 1))[phase : phase + len(data)]
        if data != expected:
            self.damage = f"neither a frame nor padding begins where entry {self.next_entry_id} is expected"

    def _locate_stripes(self, frame_at: int) -> None:
        """Record the position of every stripe that begins at or before a frame, or before the block's end."""
        size = self._stripe_bytes
        while size and (begin := len(self.stripe_positions) * size) <= frame_at and begin < self._block_bytes:
            length = min(size, self._block_bytes - begin)
            before = self.next_entry_id - self._first_entry_id
            self.stripe_positions.append((before, min(frame_at - begin, length)))

    def _checksum(self, data: memoryview) -> None:
        self.crc32c = crc32c(data, self.crc32c)
        at = 0
        while self._stripe_bytes and at < len(data):
            left = self._stripe_bytes - (self._at + at) % self._stripe_bytes
            if left == self._stripe_bytes:
                self.stripe_crc32c.append(0)
            self.stripe_crc32c[-1] = crc32c(data[at : at + left], self.stripe_crc32c[-1])
            at += left
