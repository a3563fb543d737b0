"""Parsing of entries: each entry's envelope to a row of integers, and the marks of some entries to a second table.

An entry is ``[0x0e02 size:u32 BrokerEntryMetadata]? [0x0e01 crc32c:u32]? size:u32 MessageMetadata payload``. The row
contains offsets in the block, lengths and values; -1 means missing. Nothing is copied.

Marks are the fields that only chunks, markers and messages of transactions have. A second pass over the metadata of
these entries reads them, so that other entries cost nothing extra.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from afterglow.format._kernels import layout
from afterglow.format._kernels.build import kernel
from afterglow.format._kernels.checksum import crc32c
from afterglow.format._kernels.primitives import be32, get, put, skip, u8, varint


@njit(forceinline=True)
def _broker_metadata(data, at, end, row):
    while at < end:
        tag, at = varint(data, at, end)
        if at < 0:
            return False
        if tag == 8 or tag == 16:
            value, at = varint(data, at, end)
            if at < 0:
                return False
            put(row, layout.BROKER_TIME if tag == 8 else layout.INDEX, value)
        else:
            at = skip(data, at, end, tag & 7)
            if at < 0:
                return False
    return True


@njit(forceinline=True)
def _message_metadata(data, at, end, row):
    producer = np.int64(-1)
    producer_len = np.int64(0)
    seen = 0
    flags = np.int64(0)
    properties = 0
    publish_time = sequence_id = np.int64(0)
    while at < end:
        tag, at = varint(data, at, end)
        if at < 0:
            return layout.CORRUPT_METADATA
        field = tag >> 3
        wire = tag & 7
        if wire == 0:
            value, at = varint(data, at, end)
            if at < 0:
                return layout.CORRUPT_METADATA
            if field == 2:
                sequence_id = value
                seen |= 2
            elif field == 3:
                publish_time = value
                seen |= 4
            elif field == 8:
                put(row, layout.CODEC, value)
            elif field == 9:
                put(row, layout.UNCOMPRESSED, value & 0xFFFFFFFF)
            elif field == 11:
                put(row, layout.MESSAGES, max(np.int64(np.int32(value)), 0))
            elif field == 12:
                put(row, layout.EVENT_TIME, value)
            elif field == 17:
                flags = flags | layout.KEY_BASE64 if value != 0 else flags & ~layout.KEY_BASE64
            elif field == 20:
                flags |= layout.MARKER
            elif field == 22:
                seen |= 8
            elif field == 23:
                seen |= 16
            elif field == 25:
                flags = flags | layout.NULL_VALUE if value != 0 else flags & ~layout.NULL_VALUE
            elif field == 27:
                flags = flags | layout.CHUNK if np.int32(value) > 1 else flags & ~layout.CHUNK
            elif field == 30:
                flags = flags | layout.NULL_KEY if value != 0 else flags & ~layout.NULL_KEY
        elif wire == 2:
            length, at = varint(data, at, end)
            if at < 0 or length < 0 or length > end - at:
                return layout.CORRUPT_METADATA
            if field == 1:
                producer = at
                producer_len = length
                seen |= 1
            elif field == 4:
                properties += 1
            elif field == 5:
                put(row, layout.REPLICATED_AT, at)
                put(row, layout.REPLICATED_LEN, length)
            elif field == 6:
                put(row, layout.KEY_AT, at)
                put(row, layout.KEY_LEN, length)
            elif field == 13:
                flags |= layout.ENCRYPTED
            elif field == 16:
                put(row, layout.SCHEMA_AT, at)
                put(row, layout.SCHEMA_LEN, length)
            elif field == 18:
                put(row, layout.ORDERING_AT, at)
                put(row, layout.ORDERING_LEN, length)
            elif field == 32:
                put(row, layout.SCHEMA_ID_AT, at)
                put(row, layout.SCHEMA_ID_LEN, length)
            at += length
        else:
            at = skip(data, at, end, wire)
            if at < 0:
                return layout.CORRUPT_METADATA
    if seen & 7 != 7:
        return layout.MISSING_FIELD
    if seen == 31:
        flags |= layout.TRANSACTION
    put(row, layout.PRODUCER_AT, producer)
    put(row, layout.PRODUCER_LEN, producer_len)
    put(row, layout.SEQUENCE, sequence_id)
    put(row, layout.PUBLISH_TIME, publish_time)
    put(row, layout.PROPERTIES, properties)
    put(row, layout.FLAGS, flags)
    return layout.GOOD


@njit(forceinline=True)
def is_intact(data, at, end):
    """Return whether the checksum at ``at`` is that of the bytes behind it, up to ``end``."""
    return crc32c(data, at + 4, end) == be32(data, at) & 0xFFFFFFFF


@njit(forceinline=True)
def is_plain(row, status):
    """Return whether a parsed entry can be copied as it is: it is neither damaged nor compressed nor MARKED."""
    return status == layout.GOOD and get(row, layout.CODEC) == 0 and get(row, layout.FLAGS) & layout.MARKED == 0


@njit(forceinline=True)
def parse_entry(data, at, end, row, check):
    """Parse the entry ``data[at:end]`` into ``row``; returns its status."""
    put(row, layout.BROKER_TIME, -1)
    put(row, layout.INDEX, -1)
    put(row, layout.CHECKSUM_AT, -1)
    if end - at >= 2 and u8(data, at) == 0x0E and u8(data, at + 1) == 0x02:
        if end - at < 6:
            return layout.TORN_BROKER_METADATA
        size = be32(data, at + 2)
        if size < 0 or size > end - at - 6:
            return layout.TORN_BROKER_METADATA
        if not _broker_metadata(data, at + 6, at + 6 + size, row):
            return layout.CORRUPT_BROKER_METADATA
        at += 6 + size
    if end - at >= 2 and u8(data, at) == 0x0E and u8(data, at + 1) == 0x01:
        if end - at < 6:
            return layout.TORN_CHECKSUM
        if check and not is_intact(data, at + 2, end):
            return layout.WRONG_CHECKSUM
        put(row, layout.CHECKSUM_AT, at + 2)
        at += 6
    if end - at < 4:
        return layout.TORN_METADATA
    size = be32(data, at)
    if size < 0 or size > end - at - 4:
        return layout.TORN_METADATA
    put(row, layout.META_AT, at + 4)
    put(row, layout.META_LEN, size)
    put(row, layout.PAYLOAD_AT, at + 4 + size)
    put(row, layout.PAYLOAD_LEN, end - at - 4 - size)
    put(row, layout.EVENT_TIME, 0)
    put(row, layout.KEY_AT, 0)
    put(row, layout.ORDERING_AT, 0)
    put(row, layout.SCHEMA_AT, 0)
    put(row, layout.REPLICATED_AT, 0)
    put(row, layout.SCHEMA_ID_AT, 0)
    put(row, layout.KEY_LEN, -1)
    put(row, layout.ORDERING_LEN, -1)
    put(row, layout.SCHEMA_LEN, -1)
    put(row, layout.REPLICATED_LEN, -1)
    put(row, layout.SCHEMA_ID_LEN, -1)
    put(row, layout.CODEC, 0)
    put(row, layout.UNCOMPRESSED, 0)
    put(row, layout.MESSAGES, -1)
    put(row, layout.EXPANDED_AT, -1)
    return _message_metadata(data, at + 4, at + 4 + size, row)


@kernel(5)
def parse_entries(data, offsets, rows, count, check):
    """Parse ``count`` entries framed at ``offsets`` into ``rows``; a corrupt one has only its STATUS.

    ``check`` says when checksums are verified. With CHECK_LATER those of compressed and MARKED entries, and of entries
    that are damaged otherwise, are verified at once.

    Returns:
        The union of the FLAGS of all good entries.
    """
    flags = np.int64(0)
    for i in range(count):
        row = rows + 8 * layout.COLUMNS * i
        at = get(offsets, i)
        # By its own length, since the header of a block may precede the next frame.
        end = min(at + 12 + be32(data, at), get(offsets, i + 1))
        status = parse_entry(data, at + 12, end, row, False)
        checksum = get(row, layout.CHECKSUM_AT)
        if checksum >= 0 and (check != layout.CHECK_LATER or not is_plain(row, status)):
            if check != layout.CHECK_NEVER and not is_intact(data, checksum, end):
                status = layout.WRONG_CHECKSUM
            put(row, layout.CHECKSUM_AT, -1)
        put(row, layout.STATUS, status)
        if status == layout.GOOD:
            flags |= get(row, layout.FLAGS)
    return flags


@kernel(5)
def measure_entries(data, offsets, count, row, found):
    """Widen ``found`` over the ``count`` entries framed at ``offsets``; ``row`` is scratch.

    ``found`` contains min and max broker time, min and max publish time, first and last index; -1 for none. Entries
    that are not Pulsar messages are ignored.
    """
    for i in range(count):
        if parse_entry(data, get(offsets, i) + 12, get(offsets, i + 1), row, False) != layout.GOOD:
            continue
        _widen(found, get(row, layout.BROKER_TIME))
        _widen(found + 16, get(row, layout.PUBLISH_TIME))
        index = get(row, layout.INDEX)
        if index >= 0:
            if get(found, 4) < 0:
                put(found, 4, max(index - max(get(row, layout.MESSAGES), 1) + 1, 0))
            put(found, 5, max(get(found, 5), index))
    return count


@njit(forceinline=True)
def _widen(bounds, time):
    if time >= 0:
        if get(bounds, 0) < 0 or time < get(bounds, 0):
            put(bounds, 0, time)
        put(bounds, 1, max(get(bounds, 1), time))


@njit(forceinline=True)
def _note(data, at, end, mark):
    """Read the fields of a mark from metadata that was parsed before, so that it is complete."""
    while at < end:
        tag, at = varint(data, at, end)
        field = tag >> 3
        wire = tag & 7
        if wire == 0:
            value, at = varint(data, at, end)
            if field == 20:
                put(mark, layout.MARK_MARKER, np.int64(np.int32(value)))
            elif field == 22:
                put(mark, layout.MARK_TXN_LEAST, value)
            elif field == 23:
                put(mark, layout.MARK_TXN_MOST, value)
            elif field == 27:
                put(mark, layout.MARK_CHUNKS, np.int64(np.int32(value)))
            elif field == 28:
                put(mark, layout.MARK_TOTAL, np.int64(np.int32(value)))
            elif field == 29:
                put(mark, layout.MARK_CHUNK, np.int64(np.int32(value)))
        elif wire == 2:
            length, at = varint(data, at, end)
            if field == 26:
                put(mark, layout.MARK_UUID_AT, at)
                put(mark, layout.MARK_UUID_LEN, length)
            at += length
        else:
            at = skip(data, at, end, wire)


@kernel(5)
def read_marks(data, rows, count, first_id, marks):
    """Write the marks of the good entries that are MARKED, in order; returns their number."""
    n = np.int64(0)
    for i in range(count):
        row = rows + 8 * layout.COLUMNS * i
        if get(row, layout.STATUS) != layout.GOOD or get(row, layout.FLAGS) & layout.MARKED == 0:
            continue
        mark = marks + 8 * layout.MARK_COLUMNS * n
        put(mark, layout.MARK_ENTRY_ID, first_id + i)
        put(mark, layout.MARK_FLAGS, get(row, layout.FLAGS))
        put(mark, layout.MARK_MARKER, -1)
        for k in range(layout.MARK_TXN_MOST, layout.MARK_PAYLOAD_AT):
            put(mark, k, 0)
        put(mark, layout.MARK_PAYLOAD_AT, get(row, layout.PAYLOAD_AT))
        put(mark, layout.MARK_PAYLOAD_LEN, get(row, layout.PAYLOAD_LEN))
        put(mark, layout.MARK_CODEC, get(row, layout.CODEC))
        put(mark, layout.MARK_UNCOMPRESSED, get(row, layout.UNCOMPRESSED))
        at = get(row, layout.META_AT)
        _note(data, at, at + get(row, layout.META_LEN), mark)
        n += 1
    return n
