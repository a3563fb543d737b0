"""Rows of messages in the layout of Arrow's buffers, and the copying of their texts and bytes.

Numbers, flags and validity are written directly to their final buffers. For texts and bytes the source offset and the
running length are recorded. Values are copied entry by entry, right after the checksum of the entry is verified, while
its bytes are in the processor's cache. So are the other texts of plain messages; ``gather`` copies those of all others
once their total length is known. A source offset is relative to the block or, if the payload was expanded, the
complement (``~``) of an offset in the arena.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from afterglow.format._kernels import layout
from afterglow.format._kernels.build import kernel
from afterglow.format._kernels.entries import is_intact, is_plain, parse_entry
from afterglow.format._kernels.primitives import (
    be32,
    copy,
    copy16,
    get,
    get32,
    put,
    put8,
    put32,
    put_bit,
    skip,
    u8,
    u64,
    valid_utf8,
    varint,
)

_TOO_LONG = np.int64(layout.TOO_LONG)
_GOOD = np.int64(layout.GOOD)
_INT32_MAX = 2**31 - 1
_TIME_MAX = (2**63 - 1) // 1000
_COMPACTED_OUT = 128
_ENTRY_PROPERTY = 34  # field 4 of MessageMetadata
_MESSAGE_PROPERTY = 10  # field 1 of SingleMessageMetadata


@njit(forceinline=True)
def _single_metadata(data, at, end, own, sequence, event, flags):
    """Parse the metadata of a message in a batch into ``own``, in the columns of an entry; False if it is corrupt.

    ``sequence``, ``event`` and ``flags`` are those of the batch, for fields that the message does not have.
    """
    payload = np.int64(-1)
    properties = np.int64(0)
    put(own, layout.META_AT, at)
    put(own, layout.META_LEN, end - at)
    put(own, layout.KEY_AT, 0)
    put(own, layout.KEY_LEN, -1)
    put(own, layout.ORDERING_AT, 0)
    put(own, layout.ORDERING_LEN, -1)
    while at < end:
        tag, at = varint(data, at, end)
        if at < 0:
            return False
        field = tag >> 3
        wire = tag & 7
        if wire == 0:
            value, at = varint(data, at, end)
            if at < 0:
                return False
            if field == 3:
                payload = np.int64(np.int32(value))
            elif field == 4:
                flags = flags | _COMPACTED_OUT if value != 0 else flags & ~_COMPACTED_OUT
            elif field == 5:
                event = value
            elif field == 6:
                flags = flags | layout.KEY_BASE64 if value != 0 else flags & ~layout.KEY_BASE64
            elif field == 8:
                sequence = value
            elif field == 9:
                flags = flags | layout.NULL_VALUE if value != 0 else flags & ~layout.NULL_VALUE
            elif field == 10:
                flags = flags | layout.NULL_KEY if value != 0 else flags & ~layout.NULL_KEY
        elif wire == 2:
            length, at = varint(data, at, end)
            if at < 0 or length < 0 or length > end - at:
                return False
            if field == 1:
                properties += 1
            elif field == 2:
                put(own, layout.KEY_AT, at)
                put(own, layout.KEY_LEN, length)
            elif field == 7:
                put(own, layout.ORDERING_AT, at)
                put(own, layout.ORDERING_LEN, length)
            at += length
        else:
            at = skip(data, at, end, wire)
            if at < 0:
                return False
    put(own, layout.PAYLOAD_AT, end)
    put(own, layout.PAYLOAD_LEN, payload)
    put(own, layout.SEQUENCE, sequence)
    put(own, layout.EVENT_TIME, event)
    put(own, layout.FLAGS, flags)
    put(own, layout.PROPERTIES, properties)
    return payload >= 0


@njit
def base64_size(data, at, length):
    """Return the decoded size of ``length`` bytes of base64 at ``at``; -1 if they are not valid base64."""
    while length > 0 and u8(data, at + length - 1) == 61:
        length -= 1
    if length & 3 == 1:
        return np.int64(-1)
    for k in range(length):
        c = u8(data, at + k)
        if not (65 <= c <= 90 or 97 <= c <= 122 or 48 <= c <= 57 or c == 43 or c == 47):
            return np.int64(-1)
    return length * 3 // 4


@njit
def _whole_properties(data, at, end, wanted):
    """Return whether each property in the metadata from ``at`` to ``end`` has a readable key and value.

    The metadata itself was parsed before: only the inside of a property can still be truncated.
    """
    while at < end:
        tag, at = varint(data, at, end)
        if tag != wanted:
            at = skip(data, at, end, tag & 7)
            continue
        length, at = varint(data, at, end)
        stop = at + length
        seen = 0
        while at < stop:
            inner, at = varint(data, at, stop)
            if at < 0:
                return False
            if inner == 10:
                seen |= 1
            elif inner == 18:
                seen |= 2
            at = skip(data, at, stop, inner & 7)
            if at < 0:
                return False
        if seen != 3:
            return False
    return True


@njit(forceinline=True)
def _micros(milliseconds):
    return min(max(milliseconds, -_TIME_MAX), _TIME_MAX) * 1000


@njit(forceinline=True)
def _note(out, column, r, place, length):
    """Record the source offset of row ``r`` of a text or bytes column; False if the column becomes too long."""
    offsets = get(out, column)
    before = get32(offsets, r)
    if before + length > _INT32_MAX:
        return False
    put32(offsets, r + 1, before + length)
    put(get(out, column + 1), r, place)
    return True


@njit(forceinline=True)
def _take(source, out, column, r, place, length):
    """Copy a text to the buffer of its column, or record it if the column has none; False if it becomes too long."""
    text = get(out, layout.TEXTS + column)
    if text == 0:
        return _note(out, column, r, place, length)
    offsets = get(out, column)
    before = get32(offsets, r)
    if before + length > get(out, layout.TEXTS + column + 1):
        return False
    put32(offsets, r + 1, before + length)
    copy(text + before, source + place, length)
    return True


@njit(forceinline=True)
def _six_bits(c):
    if c >= 97:
        return c - 71
    if c >= 65:
        return c - 65
    if c >= 48:
        return c + 4
    return np.int64(62) if c == 43 else np.int64(63)


@njit
def _decode_base64(source, at, out, length):
    held = np.int64(0)
    width = 0
    done = 0
    while done < length:
        held = ((held << 6) | _six_bits(u8(source, at))) & 0xFFFF
        at += 1
        width += 6
        if width >= 8:
            width -= 8
            put8(out, done, held >> width)
            done += 1


@njit(forceinline=True)
def _note_key(source, complement, message, r, out):
    length = get(message, layout.KEY_LEN)
    at = get(message, layout.KEY_AT)
    flags = get(message, layout.FLAGS)
    present = length >= 0 and flags & layout.NULL_KEY == 0
    size = np.int64(0)
    coded = np.int64(0)
    if present:
        size = length
        if flags & layout.KEY_BASE64:
            size = base64_size(source, at, length)
            if size < 0:
                return np.int64(layout.INVALID_KEY)
            coded = np.int64(1)
    put_bit(get(out, layout.OUT_KEY_VALID), r, present)
    put8(get(out, layout.OUT_KEY_CODED), r, coded)
    text = get(out, layout.TEXTS + layout.OUT_KEY)
    if text and coded:
        before = get32(get(out, layout.OUT_KEY), r)
        if before + size > get(out, layout.TEXTS + layout.OUT_KEY + 1):
            return _TOO_LONG
        put32(get(out, layout.OUT_KEY), r + 1, before + size)
        _decode_base64(source, at, text + before, size)
    elif not _take(source, out, layout.OUT_KEY, r, ~at if complement else at, size):
        return _TOO_LONG
    return _GOOD


@njit(forceinline=True)
def _from_entry(data, row, entry_id, r, batch_index, count, out):
    """Write the columns that all messages of an entry share; False if a column becomes too long."""
    if get(out, layout.OUT_ENTRY_ID):
        put(get(out, layout.OUT_ENTRY_ID), r, entry_id)
    if get(out, layout.OUT_BATCH_INDEX):
        put32(get(out, layout.OUT_BATCH_INDEX), r, batch_index)
    if get(out, layout.OUT_PUBLISH_TIME):
        put(get(out, layout.OUT_PUBLISH_TIME), r, _micros(get(row, layout.PUBLISH_TIME)))
    if get(out, layout.OUT_BROKER_TIME):
        put(get(out, layout.OUT_BROKER_TIME), r, _micros(get(row, layout.BROKER_TIME)))
        put_bit(get(out, layout.OUT_BROKER_VALID), r, get(row, layout.BROKER_TIME) >= 0)
    if get(out, layout.OUT_INDEX):
        put(get(out, layout.OUT_INDEX), r, get(row, layout.INDEX) - count + 1 + max(batch_index, 0))
        put_bit(get(out, layout.OUT_INDEX_VALID), r, get(row, layout.INDEX) >= 0)
    if get(out, layout.OUT_ENCRYPTED):
        put_bit(get(out, layout.OUT_ENCRYPTED), r, get(row, layout.FLAGS) & layout.ENCRYPTED != 0)
    if get(out, layout.OUT_PRODUCER) and not _take(
        data, out, layout.OUT_PRODUCER, r, get(row, layout.PRODUCER_AT), get(row, layout.PRODUCER_LEN)
    ):
        return False
    if get(out, layout.OUT_SCHEMA):
        length = get(row, layout.SCHEMA_LEN)
        put_bit(get(out, layout.OUT_SCHEMA_VALID), r, length > 0)  # empty bytes mean no version
        if not _take(data, out, layout.OUT_SCHEMA, r, get(row, layout.SCHEMA_AT), max(length, 0)):
            return False
    if get(out, layout.OUT_REPLICATED):
        length = get(row, layout.REPLICATED_LEN)
        put_bit(get(out, layout.OUT_REPLICATED_VALID), r, length >= 0)
        if not _take(data, out, layout.OUT_REPLICATED, r, get(row, layout.REPLICATED_AT), max(length, 0)):
            return False
    if get(out, layout.OUT_SCHEMA_ID):
        length = get(row, layout.SCHEMA_ID_LEN)
        put_bit(get(out, layout.OUT_SCHEMA_ID_VALID), r, length >= 0)
        return _take(data, out, layout.OUT_SCHEMA_ID, r, get(row, layout.SCHEMA_ID_AT), max(length, 0))
    return True


@njit(forceinline=True)
def _from_message(source, complement, message, r, value_place, value_len, tag, out):
    """Write the columns of a single message; returns a status, or _TOO_LONG.

    ``message`` has the columns of an entry: it is one, or was parsed from a batch.
    """
    if get(out, layout.OUT_SEQUENCE_ID):
        put(get(out, layout.OUT_SEQUENCE_ID), r, get(message, layout.SEQUENCE))
    if get(out, layout.OUT_EVENT_TIME):
        event = get(message, layout.EVENT_TIME)
        put(get(out, layout.OUT_EVENT_TIME), r, _micros(event))
        put_bit(get(out, layout.OUT_EVENT_VALID), r, event != 0)
    if get(out, layout.OUT_KEY):
        status = _note_key(source, complement, message, r, out)
        if status != layout.GOOD:
            return status
    if get(out, layout.OUT_ORDERING):
        at = get(message, layout.ORDERING_AT)
        length = get(message, layout.ORDERING_LEN)
        put_bit(get(out, layout.OUT_ORDERING_VALID), r, length >= 0)
        if not _take(source, out, layout.OUT_ORDERING, r, ~at if complement else at, max(length, 0)):
            return _TOO_LONG
    if get(out, layout.OUT_VALUE):
        present = get(message, layout.FLAGS) & layout.NULL_VALUE == 0
        put_bit(get(out, layout.OUT_VALUE_VALID), r, present)
        if not _note(out, layout.OUT_VALUE, r, value_place, value_len if present else 0):
            return _TOO_LONG
    if get(out, layout.OUT_PROPERTIES):
        at = get(message, layout.META_AT)
        length = get(message, layout.META_LEN)
        count = get(message, layout.PROPERTIES)
        if count > 0 and not _whole_properties(source, at, at + length, tag):
            return np.int64(layout.INVALID_PROPERTY)
        span = get(out, layout.OUT_PROPERTY_SPANS) + 24 * r
        put(span, 0, ~at if complement else at)
        put(span, 1, length)
        put(span, 2, tag)
        put32(get(out, layout.OUT_PROPERTIES), r + 1, get32(get(out, layout.OUT_PROPERTIES), r) + count)
    return _GOOD


@njit(forceinline=True)
def _from_batch(data, source, complement, row, entry_id, r, at, end, own, out):
    """Write the messages of a batch from row ``r`` on; returns ``(status, next row)``. A corrupt batch has no rows."""
    count = get(row, layout.MESSAGES)
    start = r
    flags = get(row, layout.FLAGS) & layout.NULL_VALUE
    sequence = get(row, layout.SEQUENCE)
    event = get(row, layout.EVENT_TIME)
    for k in range(count):
        if end - at < 4:
            return np.int64(layout.TORN_BATCH), start
        size = be32(source, at)
        at += 4
        if size < 0 or size > end - at:
            return np.int64(layout.TORN_BATCH), start
        if not _single_metadata(source, at, at + size, own, sequence, event, flags):
            return np.int64(layout.CORRUPT_MESSAGE_METADATA), start
        at += size
        length = get(own, layout.PAYLOAD_LEN)
        if length > end - at:
            return np.int64(layout.TORN_BATCH), start
        if get(own, layout.FLAGS) & _COMPACTED_OUT == 0:
            if not _from_entry(data, row, entry_id, r, k, count, out):
                return _TOO_LONG, start
            place = ~at if complement else at
            status = _from_message(source, complement, own, r, place, length, _MESSAGE_PROPERTY, out)
            if status != layout.GOOD:
                return status, start
            r += 1
        at += length
    return _GOOD, r


@njit(forceinline=True)
def _copy_in_order(out, to, out_end, source, at, source_end, length):
    """Copy, with one instruction if sixteen bytes may be written: the next copy overwrites the excess."""
    if length <= 16 and to + 16 <= out_end and at + 16 <= source_end:
        copy16(out + to, source + at)
    else:
        copy(out + to, source + at, length)


@njit(forceinline=True)
def _gather(data, readable, arena, arena_readable, places, offsets, start, stop, out, out_end):
    """Copy the recorded texts ``start`` to ``stop`` to their offsets in ``out``, which ends at ``out_end``."""
    for i in range(start, stop):
        place = get(places, i)
        to = get32(offsets, i)
        length = get32(offsets, i + 1) - to
        if place >= 0:
            _copy_in_order(out, to, out_end, data, place, readable, length)
        else:
            _copy_in_order(out, to, out_end, arena, ~place, arena_readable, length)


@njit
def _fill(data, readable, arena, arena_readable, rows, count, first_id, r, own, out):
    """Write every message of the good entries from row ``r`` on; returns the row after the last, or TOO_LONG."""
    for i in range(count):
        row = rows + 8 * layout.COLUMNS * i
        checksum = get(row, layout.CHECKSUM_AT)
        if checksum >= 0 and not is_intact(data, checksum, get(row, layout.PAYLOAD_AT) + get(row, layout.PAYLOAD_LEN)):
            put(row, layout.STATUS, layout.WRONG_CHECKSUM)
        before = r
        flags = get(row, layout.FLAGS)
        if get(row, layout.STATUS) != layout.GOOD or flags & layout.MARKER:
            continue
        entry_id = first_id + i
        expanded = get(row, layout.EXPANDED_AT)
        at = get(row, layout.PAYLOAD_AT)
        length = get(row, layout.PAYLOAD_LEN)
        if get(row, layout.MESSAGES) >= 0 and flags & (layout.ENCRYPTED | layout.CHUNK) == 0:
            if expanded >= 0:
                end = expanded + get(row, layout.UNCOMPRESSED)
                status, r = _from_batch(data, arena, True, row, entry_id, r, expanded, end, own, out)
            else:
                status, r = _from_batch(data, data, False, row, entry_id, r, at, at + length, own, out)
        else:
            if expanded >= 0:
                # Only the value of an unbatched message is compressed; its metadata is in the block.
                at = ~expanded
                length = get(row, layout.UNCOMPRESSED)
            status = _TOO_LONG
            if _from_entry(data, row, entry_id, r, np.int64(-1), np.int64(1), out):
                status = _from_message(data, False, row, r, at, length, _ENTRY_PROPERTY, out)
            if status == layout.GOOD:
                r += 1
        if status == _TOO_LONG:
            return _TOO_LONG
        put(row, layout.STATUS, status)
        values = get(out, layout.TEXTS + layout.OUT_VALUE)
        if values:
            _gather(
                data, readable, arena, arena_readable, get(out, layout.OUT_VALUE_PLACES), get(out, layout.OUT_VALUE),
                before, r, values, get(out, layout.TEXTS + layout.OUT_VALUE + 1),
            )  # fmt: skip
    return r


@kernel(9)
def fill_rows(data, readable, arena, arena_readable, rows, count, first_id, own, out):
    """Write every message of the good entries; returns the number of rows written, or TOO_LONG.

    Verifies the checksums that are still to be verified. The data is readable up to ``readable``, the arena up to
    ``arena_readable``; ``own`` is scratch for a message's metadata, ``out`` the table of outputs.
    """
    return _fill(data, readable, arena, arena_readable, rows, count, first_id, np.int64(0), own, out)


@kernel(9)
def decode_plain(data, readable, offsets, count, first_id, check, row, own, out):
    """Parse, verify and copy one entry after the other, each while its bytes are in the processor's cache.

    Stops before the first entry that is not a plain message by itself: ``parse_entries`` and ``fill_rows`` decode and
    report it. ``row`` and ``own`` are scratch.

    Returns:
        The number of entries decoded, each to one row.
    """
    for i in range(count):
        at = get(offsets, i)
        end = min(at + 12 + be32(data, at), get(offsets, i + 1))
        if not is_plain(row, parse_entry(data, at + 12, end, row, False)) or get(row, layout.MESSAGES) >= 0:
            return i
        put(row, layout.STATUS, layout.GOOD)
        if check == layout.CHECK_NEVER:
            put(row, layout.CHECKSUM_AT, -1)
        # A damaged entry has no row.
        if _fill(data, readable, data, readable, row, 1, first_id + i, i, own, out) != i + 1:
            return i
    return count


_HIGH_BITS = np.uint64(0x8080808080808080)


@kernel(8)
def gather(data, readable, arena, arena_readable, places, offsets, count, out):
    """Copy ``count`` recorded texts to their offsets in ``out``, in ascending order.

    The data is readable up to ``readable``, the arena up to ``arena_readable``.
    """
    _gather(data, readable, arena, arena_readable, places, offsets, 0, count, out, get32(offsets, count))
    return count


@kernel(7)
def gather_keys(data, arena, places, offsets, coded, count, out):
    """As ``gather``, and decode the keys that are base64; they were validated when they were recorded."""
    for i in range(count):
        place = get(places, i)
        to = get32(offsets, i)
        length = get32(offsets, i + 1) - to
        source = data
        if place < 0:
            place = ~place
            source = arena
        if u8(coded, i) != 0:
            _decode_base64(source, place, out + to, length)
        else:
            copy(out + to, source + place, length)
    return count


@njit
def _note_properties(source, complement, at, end, tag, n, key_places, key_offsets, value_places, value_offsets):
    while at < end:
        found, at = varint(source, at, end)
        if found != tag:
            at = skip(source, at, end, found & 7)
            continue
        length, at = varint(source, at, end)
        stop = at + length
        while at < stop:
            inner, at = varint(source, at, stop)
            if inner == 10 or inner == 18:
                size, at = varint(source, at, stop)
                place = ~at if complement else at
                if inner == 10:
                    put(key_places, n, place)
                    put32(key_offsets, n + 1, get32(key_offsets, n) + size)
                else:
                    put(value_places, n, place)
                    put32(value_offsets, n + 1, get32(value_offsets, n) + size)
                at += size
            else:
                at = skip(source, at, stop, inner & 7)
        n += 1
    return n


@kernel(9)
def note_properties(data, arena, spans, counts, count, key_places, key_offsets, value_places, value_offsets):
    """Record the source offsets of keys and values of each row's properties; they were checked with the row."""
    n = np.int64(0)
    for r in range(count):
        if get32(counts, r + 1) == get32(counts, r):
            continue
        span = spans + 24 * r
        at = get(span, 0)
        source = data
        complement = at < 0
        if complement:
            at = ~at
            source = arena
        n = _note_properties(
            source, complement, at, at + get(span, 1), get(span, 2), n,
            key_places, key_offsets, value_places, value_offsets,
        )  # fmt: skip
    return n


@kernel(3)
def text_kind(text, offsets, count):
    """Return the encoding of the ``count`` texts at ``offsets``, each checked by itself: ASCII, UTF8 or NOT_UTF8."""
    total = get32(offsets, count)
    at = np.int64(0)
    high = np.uint64(0)
    while at + 8 <= total:
        high |= u64(text, at)
        at += 8
    while at < total:
        high |= np.uint64(u8(text, at))
        at += 1
    if high & _HIGH_BITS == 0:
        return layout.ASCII
    for i in range(count):
        if not valid_utf8(text, get32(offsets, i), get32(offsets, i + 1)):
            return layout.NOT_UTF8
    return layout.UTF8
