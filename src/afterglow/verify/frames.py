"""One block, walked from its first byte to its last, piece by piece, so that memory does not depend on its size.

A block is a header, then frames ``length:int32 · id:int64 · length bytes`` with ids that go up by one, then padding
``FE DC DE AD``, repeated from its first byte, up to the block's end. All integers are big-endian.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from afterglow.verify.entries import EntryChecks

_FRAME: Final = struct.Struct(">iq")
_LENGTH: Final = struct.Struct(">i")
_PADDING: Final = b"\xfe\xdc\xde\xad"


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
