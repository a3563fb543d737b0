"""MESSAGE commands for consumers, from stored entries.

A MESSAGE is ``total:u32 · size:u32 · BaseCommand · message``. The message is the entry as its producer sent it: broker
entry metadata is left out unless the consumer receives it.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from afterglow.format._kernels import layout
from afterglow.format._kernels.build import kernel
from afterglow.format._kernels.entries import parse_entry
from afterglow.format._kernels.primitives import be32, copy, get, put, put8, put_be32, u8
from afterglow.format._kernels.varints import put_varint, varint_bytes

_HEAD_BYTES = 8
_MESSAGE = 9  # the type of the command, and the number of its field


@njit(forceinline=True)
def _message_at(data, at, end):
    """Return the offset of the message behind the broker entry metadata."""
    if end - at >= 6 and u8(data, at) == 0x0E and u8(data, at + 1) == 0x02:
        return at + 6 + be32(data, at + 2)
    return at


@kernel(12)
def encode_messages(data, sizes, count, row, consumer, ledger, first_id, partition, epoch, expose, out, found):
    """Write the MESSAGEs of consecutive entries, which lie one behind the other.

    Stops at an entry that is damaged, or that a broker wrote for brokers.

    Args:
        data: The entries.
        sizes: Bytes of each entry.
        count: The number of entries.
        row: Scratch for one parsed entry.
        consumer: Id of the consumer.
        ledger: Id of the ledger.
        first_id: Id of the first entry.
        partition: Index of the topic's partition, or -1.
        epoch: Epoch of the consumer; -1 writes none.
        expose: Whether the consumer receives broker entry metadata.
        out: Receives the frames: MESSAGE_BYTES and the entry for each.
        found: Receives the bytes written, the number of messages, and the bytes of messages without the commands.

    Returns:
        The number of entries written.
    """
    at = to = messages = payload_bytes = np.int64(0)
    number = 0
    while number < count:
        end = at + get(sizes, number)
        if parse_entry(data, at, end, row, False) != layout.GOOD or get(row, layout.FLAGS) & layout.MARKER != 0:
            break
        messages += max(get(row, layout.MESSAGES), 1)
        payload = at if expose != 0 else _message_at(data, at, end)
        entry = first_id + number
        id_bytes = 3 + varint_bytes(ledger) + varint_bytes(entry) + varint_bytes(partition)
        size = 1 + varint_bytes(consumer) + 2 + id_bytes
        if epoch >= 0:
            size += 1 + varint_bytes(epoch)
        # The sizes of the command and of the message id are below 128.
        put_be32(out, to, 4 + 4 + size + end - payload)
        put_be32(out, to + 4, 4 + size)
        to += _HEAD_BYTES
        put8(out, to, 1 << 3)
        put8(out, to + 1, _MESSAGE)
        put8(out, to + 2, _MESSAGE << 3 | 2)
        put8(out, to + 3, size)
        put8(out, to + 4, 1 << 3)
        to = put_varint(out, to + 5, consumer)
        put8(out, to, 2 << 3 | 2)
        put8(out, to + 1, id_bytes)
        put8(out, to + 2, 1 << 3)
        to = put_varint(out, to + 3, ledger)
        put8(out, to, 2 << 3)
        to = put_varint(out, to + 1, entry)
        put8(out, to, 3 << 3)
        to = put_varint(out, to + 1, partition)
        if epoch >= 0:
            put8(out, to, 5 << 3)
            to = put_varint(out, to + 1, epoch)
        copy(out + to, data + payload, end - payload)
        to += end - payload
        payload_bytes += end - payload
        at = end
        number += 1
    put(found, 0, to)
    put(found, 1, messages)
    put(found, 2, payload_bytes)
    return number
