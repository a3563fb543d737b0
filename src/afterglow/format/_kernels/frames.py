"""Framing of entries, ``length:int32 · id:int64 · length bytes``: scanning the frames of a block, and writing frames.

Frames are written from the values of a MapFile, each ``length:int32 · length bytes``, to a second buffer; and from the
MESSAGE commands of a broker in place. A MESSAGE is ``total:u32 · size:u32 · BaseCommand · entry``. At least twenty
bytes precede the entry (eight of sizes, and twelve of a command with consumer, ledger and entry), while the header of a
frame has twelve: frames only overwrite bytes that have been parsed already.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from afterglow.format._kernels import layout
from afterglow.format._kernels.build import kernel
from afterglow.format._kernels.entries import parse_entry
from afterglow.format._kernels.primitives import be32, be64, copy, get, move, put, put_be32, put_be64, skip, u8, varint

_FRAME_BYTES = 12
# FE DC DE AD, repeated from the first byte of padding.
_PADDING = (0xFE, 0xDC, 0xDE, 0xAD)


@njit(forceinline=True)
def _padding(data, start, end):
    """Return WHOLE if the bytes from ``start`` to ``end`` are padding."""
    for at in range(start, end):
        if u8(data, at) != _PADDING[(at - start) & 3]:
            return layout.INVALID_PADDING
    return layout.WHOLE


@kernel(6)
def find_frames(data, start, end, first_id, offsets, capacity):
    """Write the offset of each frame between ``start`` and ``end`` to ``offsets``, which holds ``capacity`` numbers.

    After the offsets of the frames come the end of the last one, and the code of the scan's end.

    Returns:
        The number of frames, or -1 if the capacity does not suffice.
    """
    at = start
    count = 0
    code = layout.WHOLE
    while at < end:
        if count + 2 >= capacity:
            return -1
        put(offsets, count, at)
        length = be32(data, at) if at + 4 <= end else -1
        if length < 0:
            # The first byte of padding has its top bit set, so padding reads as a negative length.
            code = _padding(data, at, end)
            break
        if at + _FRAME_BYTES + length > end:
            code = layout.TORN_FRAME
            break
        if be64(data, at + 4) != first_id + count:
            code = layout.WRONG_ID
            break
        at += _FRAME_BYTES + length
        count += 1
    put(offsets, count, at)
    put(offsets, count + 1, code)
    return count


_LENGTH_BYTES = 4


@kernel(6)
def frame_values(data, start, end, first_id, count, out):
    """Write ``count`` values of ``data[start:end]`` to ``out`` as frames with ids from ``first_id`` on.

    ``out`` has space for all bytes of the values and 8 more for each.

    Returns:
        The number of bytes written, or -1 if there are not exactly ``count`` values up to ``end``.
    """
    at = start
    to = 0
    for number in range(count):
        length = be32(data, at) if at + _LENGTH_BYTES <= end else -1
        if length < 0 or at + _LENGTH_BYTES + length > end:
            return -1
        put_be32(out, to, length)
        put_be64(out, to + _LENGTH_BYTES, first_id + number)
        copy(out + to + _FRAME_BYTES, data + at + _LENGTH_BYTES, length)
        at += _LENGTH_BYTES + length
        to += _FRAME_BYTES + length
    return to if at == end else -1


_HEAD_BYTES = 8
_MESSAGE = 9  # the type of the command, and the number of its field


@njit(forceinline=True)
def _numbers(data, at, end):
    """Return fields 1 and 2 of a protobuf message as numbers, -1 if missing, and whether the message is complete."""
    first = second = np.int64(-1)
    while at < end:
        tag, at = varint(data, at, end)
        if at < 0:
            return first, second, False
        if tag == 8 or tag == 16:
            value, at = varint(data, at, end)
            if tag == 8:
                first = value
            else:
                second = value
        else:
            at = skip(data, at, end, tag & 7)
        if at < 0:
            return first, second, False
    return first, second, True


@njit(forceinline=True)
def _submessage(data, at, end, wanted):
    """Return start and end of the message in field ``wanted``; -1 if it is missing or truncated."""
    start = stop = np.int64(-1)
    while at < end:
        tag, at = varint(data, at, end)
        if at < 0:
            return at, at
        if tag == (wanted << 3 | 2):
            length, at = varint(data, at, end)
            if at < 0 or length < 0 or length > end - at:
                return np.int64(-1), np.int64(-1)
            start = at
            stop = at + length
            at = stop
        else:
            at = skip(data, at, end, tag & 7)
            if at < 0:
                return at, at
    return start, stop


@njit(forceinline=True)
def _is_entry(data, at, end, consumer, ledger, entry):
    """Return whether the command is the MESSAGE with this entry for this consumer."""
    kind, _, whole = _numbers(data, at, end)
    if not whole or kind != _MESSAGE:
        return False
    at, end = _submessage(data, at, end, _MESSAGE)
    if at < 0:
        return False
    to, _, whole = _numbers(data, at, end)
    if not whole or to != consumer:
        return False
    at, end = _submessage(data, at, end, 2)
    if at < 0:
        return False
    ledger_id, entry_id, whole = _numbers(data, at, end)
    return whole and ledger_id == ledger and entry_id == entry


@kernel(9)
def take_messages(data, start, end, limit, consumer, ledger, last, row, found):
    """Convert the MESSAGEs in ``data[start:end]`` with consecutive entries to frames.

    ``found`` is input and output: the end offset of the frames, the id of the next entry, and the sums of messages and
    of entries with broker metadata, which are added to; then, output only, the offset of the first byte not consumed.
    ``row`` is scratch, ``last`` the last entry requested, ``limit`` the largest ``total``.

    Returns:
        The code of the end: ENOUGH, TORN_FRAME, OTHER_FRAME or INVALID_FRAME.
    """
    at = start
    to = get(found, 0)
    entry = get(found, 1)
    messages = get(found, 2)
    stamped = get(found, 3)
    code = layout.ENOUGH
    while entry <= last:
        if end - at < _HEAD_BYTES:
            code = layout.TORN_FRAME
            break
        total = be32(data, at) & 0xFFFFFFFF
        size = be32(data, at + 4) & 0xFFFFFFFF
        if total < 4 or total > limit or size > total - 4:
            code = layout.INVALID_FRAME
            break
        behind = at + 4 + total
        if behind > end:
            code = layout.TORN_FRAME
            break
        payload = at + _HEAD_BYTES + size
        if not _is_entry(data, at + _HEAD_BYTES, payload, consumer, ledger, entry):
            code = layout.OTHER_FRAME
            break
        length = behind - payload
        good = parse_entry(data, payload, behind, row, False) == layout.GOOD
        messages += max(get(row, layout.MESSAGES), 1) if good else 1
        if length >= 2 and u8(data, payload) == 0x0E and u8(data, payload + 1) == 0x02:
            stamped += 1
        put_be32(data, to, length)
        put_be64(data, to + 4, entry)
        move(data + to + _FRAME_BYTES, data + payload, length)
        to += _FRAME_BYTES + length
        entry += 1
        at = behind
    put(found, 0, to)
    put(found, 1, entry)
    put(found, 2, messages)
    put(found, 3, stamped)
    put(found, 4, at)
    return code
