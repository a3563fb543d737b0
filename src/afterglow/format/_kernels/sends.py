"""SEND commands of producers: found in a receive buffer, written as entry frames, and answered with receipts.

A SEND is ``total:u32 · size:u32 · BaseCommand · message``. Each pass handles all of them at once; the table between the
passes has one row of integers for each.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from afterglow.format._kernels import layout
from afterglow.format._kernels.build import kernel
from afterglow.format._kernels.checksum import crc32c
from afterglow.format._kernels.primitives import be32, copy, get, put, put8, put_be32, put_be64, u8, varint
from afterglow.format._kernels.varints import put_varint, varint_bytes

_FRAME_BYTES = 12
_HEAD_BYTES = 8
_CHECKSUM_BYTES = 6
# Type of the command, and number of its field.
_SEND = 6
_SEND_RECEIPT = 7


@njit(forceinline=True)
def _parse_send(data, at, end, row):
    """Parse a CommandSend into ``row``; returns whether it has no fields but those of ordinary messages."""
    seen = 0
    put(row, layout.SEND_HIGHEST, 0)
    put(row, layout.SEND_MESSAGES, 1)
    while at < end:
        tag, at = varint(data, at, end)
        if at < 0:
            return False
        value, at = varint(data, at, end)
        if at < 0:
            return False
        if tag == 1 << 3:
            put(row, layout.SEND_PRODUCER, value)
            seen |= 1
        elif tag == 2 << 3:
            put(row, layout.SEND_SEQUENCE, value)
            seen |= 2
        elif tag == 3 << 3:
            put(row, layout.SEND_MESSAGES, max(np.int64(np.int32(value)), 1))
        elif tag == 6 << 3:
            put(row, layout.SEND_HIGHEST, value)
        elif tag != 7 << 3:  # whether it is a chunk, which the broker does not ask
            return False
    return seen == 3


@njit(forceinline=True)
def _parse_command(data, at, end, row):
    """Parse a BaseCommand into ``row``; returns whether it is the SEND of an ordinary message."""
    kind = np.int64(-1)
    found = False
    while at < end:
        tag, at = varint(data, at, end)
        if at < 0:
            return False
        if tag == 1 << 3:
            kind, at = varint(data, at, end)
        elif tag == (_SEND << 3 | 2) and not found:
            length, at = varint(data, at, end)
            if at < 0 or length < 0 or length > end - at or not _parse_send(data, at, at + length, row):
                return False
            found = True
            at += length
        else:
            return False
        if at < 0:
            return False
    return found and kind == _SEND


@njit(forceinline=True)
def _is_valid(data, at, end):
    """Return whether a message is complete up to its payload, and has its checksum if it has one."""
    if end - at >= 2 and u8(data, at) == 0x0E and u8(data, at + 1) == 0x01:
        if end - at < _CHECKSUM_BYTES:
            return False
        if crc32c(data, at + _CHECKSUM_BYTES, end) != be32(data, at + 2) & 0xFFFFFFFF:
            return False
        at += _CHECKSUM_BYTES
    return end - at >= 4 and (be32(data, at) & 0xFFFFFFFF) <= end - at - 4


@kernel(7)
def find_sends(data, start, end, limit, sends, capacity, found):
    """Write a row for each SEND of an ordinary, valid message at the beginning of ``data[start:end]``.

    Stops at any other frame, at an incomplete one, and after ``capacity`` rows. ``limit`` is the largest ``total``;
    ``found`` receives the offset of the first byte not consumed.

    Returns:
        The number of rows.
    """
    at = start
    count = 0
    while count < capacity and end - at >= _HEAD_BYTES:
        total = be32(data, at) & 0xFFFFFFFF
        size = be32(data, at + 4) & 0xFFFFFFFF
        behind = at + 4 + total
        if total < 4 or total > limit or size > total - 4 or behind > end:
            break
        row = sends + 8 * layout.SEND_COLUMNS * count
        payload = at + _HEAD_BYTES + size
        if not _parse_command(data, at + _HEAD_BYTES, payload, row) or not _is_valid(data, payload, behind):
            break
        put(row, layout.SEND_AT, payload)
        put(row, layout.SEND_LEN, behind - payload)
        count += 1
        at = behind
    put(found, 0, at)
    return count


@kernel(8)
def frame_sends(data, sends, count, first_id, time_ms, index, out, offsets):
    """Write messages as entry frames with consecutive ids and broker entry metadata.

    Args:
        data: The address that the offsets in ``sends`` count from.
        sends: A row for each message.
        count: The number of rows.
        first_id: Id of the first entry.
        time_ms: Broker time of all entries; -1 writes none.
        index: Index of the last message before them, -1 if there was none; NO_INDEX writes none.
        out: Receives the frames: FRAMED_BYTES and the message for each.
        offsets: Receives the offset of each frame, and the end of the last.

    Returns:
        The index of the last message.
    """
    to = np.int64(0)
    for number in range(count):
        row = sends + 8 * layout.SEND_COLUMNS * number
        length = get(row, layout.SEND_LEN)
        put(offsets, number, to)
        at = to + _FRAME_BYTES
        if index >= -1:
            index += get(row, layout.SEND_MESSAGES)
        size = 0
        if time_ms >= 0:
            size += 1 + varint_bytes(time_ms)
        if index >= 0:
            size += 1 + varint_bytes(index)
        if time_ms >= 0 or index >= -1:
            put8(out, at, 0x0E)
            put8(out, at + 1, 0x02)
            put_be32(out, at + 2, size)
            at += 6
            if time_ms >= 0:
                put8(out, at, 1 << 3)
                at = put_varint(out, at + 1, time_ms)
            if index >= 0:
                put8(out, at, 2 << 3)
                at = put_varint(out, at + 1, index)
        copy(out + at, data + get(row, layout.SEND_AT), length)
        at += length
        put_be32(out, to, at - to - _FRAME_BYTES)
        put_be64(out, to + 4, first_id + number)
        to = at
    put(offsets, count, to)
    return index


@kernel(3)
def encode_receipts(receipts, count, out):
    """Write receipts, each at most RECEIPT_BYTES.

    Returns:
        The number of bytes written.
    """
    to = np.int64(0)
    for number in range(count):
        row = receipts + 8 * layout.RECEIPT_COLUMNS * number
        producer = get(row, layout.SEND_PRODUCER)
        sequence = get(row, layout.SEND_SEQUENCE)
        highest = get(row, layout.SEND_HIGHEST)
        ledger = get(row, layout.RECEIPT_LEDGER)
        entry = get(row, layout.RECEIPT_ENTRY)
        id_bytes = 2 + varint_bytes(ledger) + varint_bytes(entry)
        size = 5 + varint_bytes(producer) + varint_bytes(sequence) + id_bytes + varint_bytes(highest)
        # The sizes of the receipt and of the message id are below 128.
        put_be32(out, to, 4 + 4 + size)
        put_be32(out, to + 4, 4 + size)
        at = to + _HEAD_BYTES
        put8(out, at, 1 << 3)
        put8(out, at + 1, _SEND_RECEIPT)
        put8(out, at + 2, _SEND_RECEIPT << 3 | 2)
        put8(out, at + 3, size)
        put8(out, at + 4, 1 << 3)
        at = put_varint(out, at + 5, producer)
        put8(out, at, 2 << 3)
        at = put_varint(out, at + 1, sequence)
        put8(out, at, 3 << 3 | 2)
        put8(out, at + 1, id_bytes)
        put8(out, at + 2, 1 << 3)
        at = put_varint(out, at + 3, ledger)
        put8(out, at, 2 << 3)
        at = put_varint(out, at + 1, entry)
        put8(out, at, 4 << 3)
        at = put_varint(out, at + 1, highest)
        to = at
    return to
