"""Parsing each entry's envelope into a row of integers.

An entry is ``[0x0e02 size:u32 BrokerEntryMetadata]? [0x0e01 crc32c:u32]? size:u32 MessageMetadata payload``. The
columns below are offsets into the block, lengths and values; -1 stands for absent. Nothing is copied.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from afterglow.format._kernels.checksum import crc32c
from afterglow.format._kernels.memory import BYTES, LONGS, TABLE, be32, get, put, u8
from afterglow.format._kernels.varint import skip, varint

# Columns of an entry's row.
STATUS = 0
META_AT = 1
META_LEN = 2
PAYLOAD_AT = 3
PAYLOAD_LEN = 4
BROKER_TIME = 5
INDEX = 6
PUBLISH_TIME = 7
SEQUENCE = 8
EVENT_TIME = 9
PRODUCER_AT = 10
PRODUCER_LEN = 11
KEY_AT = 12
KEY_LEN = 13
ORDERING_AT = 14
ORDERING_LEN = 15
SCHEMA_AT = 16
SCHEMA_LEN = 17
CODEC = 18
UNPACKED = 19
MESSAGES = 20
PROPERTIES = 21
FLAGS = 22
EXPANDED_AT = 23
COLUMNS = 24

# Bits of FLAGS.
ENCRYPTED = 1
NULL_VALUE = 2
KEY_BASE64 = 4
NULL_KEY = 8
CHUNK = 16
MARKER = 32
TRANSACTION = 64

# Values of STATUS; REASONS in afterglow.format.columns puts them in words.
GOOD = 0
TORN_BROKER_METADATA = 1
BAD_BROKER_METADATA = 2
TORN_CHECKSUM = 3
WRONG_CHECKSUM = 4
TORN_METADATA = 5
BAD_METADATA = 6
MISSING_FIELD = 7
BAD_BATCH_SIZE = 8
UNKNOWN_CODEC = 9
BAD_COMPRESSION = 10
TORN_BATCH = 11
BAD_MESSAGE_METADATA = 12
BAD_KEY = 13
BAD_PROPERTY = 14

SMALLEST_MESSAGE = 6
"""Bytes of the smallest message in a batch: its metadata's size (4) and the required payload size (2)."""


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
            put(row, BROKER_TIME if tag == 8 else INDEX, value)
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
            return BAD_METADATA
        field = tag >> 3
        wire = tag & 7
        if wire == 0:
            value, at = varint(data, at, end)
            if at < 0:
                return BAD_METADATA
            if field == 2:
                sequence_id = value
                seen |= 2
            elif field == 3:
                publish_time = value
                seen |= 4
            elif field == 8:
                put(row, CODEC, value)
            elif field == 9:
                put(row, UNPACKED, value & 0xFFFFFFFF)
            elif field == 11:
                put(row, MESSAGES, max(np.int64(np.int32(value)), 0))
            elif field == 12:
                put(row, EVENT_TIME, value)
            elif field == 17:
                flags = flags | KEY_BASE64 if value != 0 else flags & ~KEY_BASE64
            elif field == 20:
                flags |= MARKER
            elif field == 22 or field == 23:
                flags |= TRANSACTION
            elif field == 25:
                flags = flags | NULL_VALUE if value != 0 else flags & ~NULL_VALUE
            elif field == 27:
                flags = flags | CHUNK if np.int32(value) > 1 else flags & ~CHUNK
            elif field == 30:
                flags = flags | NULL_KEY if value != 0 else flags & ~NULL_KEY
        elif wire == 2:
            length, at = varint(data, at, end)
            if at < 0 or length < 0 or length > end - at:
                return BAD_METADATA
            if field == 1:
                producer = at
                producer_len = length
                seen |= 1
            elif field == 4:
                properties += 1
            elif field == 6:
                put(row, KEY_AT, at)
                put(row, KEY_LEN, length)
            elif field == 13:
                flags |= ENCRYPTED
            elif field == 16:
                put(row, SCHEMA_AT, at)
                put(row, SCHEMA_LEN, length)
            elif field == 18:
                put(row, ORDERING_AT, at)
                put(row, ORDERING_LEN, length)
            at += length
        else:
            at = skip(data, at, end, wire)
            if at < 0:
                return BAD_METADATA
    if seen != 7:
        return MISSING_FIELD
    put(row, PRODUCER_AT, producer)
    put(row, PRODUCER_LEN, producer_len)
    put(row, SEQUENCE, sequence_id)
    put(row, PUBLISH_TIME, publish_time)
    put(row, PROPERTIES, properties)
    put(row, FLAGS, flags)
    return GOOD


@njit(forceinline=True)
def parse_entry(data, at, end, row, check):
    """Parse the entry ``data[at:end]`` into ``row``; returns its status."""
    put(row, BROKER_TIME, -1)
    put(row, INDEX, -1)
    if end - at >= 2 and u8(data, at) == 0x0E and u8(data, at + 1) == 0x02:
        if end - at < 6:
            return TORN_BROKER_METADATA
        size = be32(data, at + 2)
        if size < 0 or size > end - at - 6:
            return TORN_BROKER_METADATA
        if not _broker_metadata(data, at + 6, at + 6 + size, row):
            return BAD_BROKER_METADATA
        at += 6 + size
    if end - at >= 2 and u8(data, at) == 0x0E and u8(data, at + 1) == 0x01:
        if end - at < 6:
            return TORN_CHECKSUM
        if check and crc32c(data, at + 6, end) != be32(data, at + 2) & 0xFFFFFFFF:
            return WRONG_CHECKSUM
        at += 6
    if end - at < 4:
        return TORN_METADATA
    size = be32(data, at)
    if size < 0 or size > end - at - 4:
        return TORN_METADATA
    put(row, META_AT, at + 4)
    put(row, META_LEN, size)
    put(row, PAYLOAD_AT, at + 4 + size)
    put(row, PAYLOAD_LEN, end - at - 4 - size)
    put(row, EVENT_TIME, 0)
    put(row, KEY_AT, 0)
    put(row, ORDERING_AT, 0)
    put(row, SCHEMA_AT, 0)
    put(row, KEY_LEN, -1)
    put(row, ORDERING_LEN, -1)
    put(row, SCHEMA_LEN, -1)
    put(row, CODEC, 0)
    put(row, UNPACKED, 0)
    put(row, MESSAGES, -1)
    put(row, EXPANDED_AT, -1)
    return _message_metadata(data, at + 4, at + 4 + size, row)


@njit(types.void(BYTES, LONGS, TABLE, types.boolean), cache=True, nogil=True)
def parse_entries(data, offsets, rows, check):
    """Parse the entries framed at ``offsets`` (one more than rows) into ``rows``; a bad one has only its STATUS."""
    data = data.ctypes.data
    for i in range(rows.shape[0]):
        row = rows.ctypes.data + 8 * COLUMNS * i
        put(row, STATUS, parse_entry(data, offsets[i] + 12, offsets[i + 1], row, check))


@njit(types.void(BYTES, LONGS, LONGS), cache=True, nogil=True)
def measure_entries(data, offsets, found):
    """Widen ``found`` over the entries framed at ``offsets``.

    ``found`` holds min and max broker time, min and max publish time, first and last index; -1 is none. Entries that
    are no Pulsar messages count for nothing.
    """
    data = data.ctypes.data
    scratch = np.empty(COLUMNS, np.int64)
    row = scratch.ctypes.data
    for i in range(offsets.size - 1):
        if parse_entry(data, offsets[i] + 12, offsets[i + 1], row, False) != GOOD:
            continue
        time = get(row, BROKER_TIME)
        if time >= 0:
            if found[0] < 0 or time < found[0]:
                found[0] = time
            found[1] = max(found[1], time)
        time = get(row, PUBLISH_TIME)
        if time >= 0:
            if found[2] < 0 or time < found[2]:
                found[2] = time
            found[3] = max(found[3], time)
        index = get(row, INDEX)
        if index >= 0:
            if found[4] < 0:
                found[4] = max(index - max(get(row, MESSAGES), 1) + 1, 0)
            found[5] = max(found[5], index)
    # The row was reached through its address alone; this keeps it alive until here.
    scratch[0] = 0
