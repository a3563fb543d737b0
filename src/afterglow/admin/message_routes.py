"""Routes of single messages: peek, examine, get by position, find by time. Cursors do not move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from afterglow.admin import message_ids, targets, values
from afterglow.admin.access import Access
from afterglow.admin.entry_headers import headers_of, payload_of
from afterglow.admin.errors import bad_request, not_found, precondition_failed
from afterglow.admin.resource import Resources
from afterglow.errors import CorruptEntry
from afterglow.format.entry import decode_entry
from afterglow.format.position import Position

if TYPE_CHECKING:
    from afterglow.admin.call import BrokerCall
    from afterglow.broker.topic import Topic
    from afterglow.ledger.reader import StoredEntry

RESOURCES = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")

_MAX_HEADER_BYTES: Final = 7936
"""Pulsar's Java client reads 8 KiB of headers, and hangs for minutes on more; the difference is for HTTP's own."""
_EARLIEST: Final = "earliest"
_LATEST: Final = "latest"


@RESOURCES.on("GET", "/subscription/{subscription}/position/{number}", Access.PEEK)
async def peek(call: BrokerCall) -> Response:
    """The n-th unacknowledged entry of a subscription, from 1."""
    number = call.integer_segment("number", 1, values.INT_MAX)
    topic = await targets.open_for(call.service, call.topic, "peeked at")
    cursor = targets.subscription_of(topic, call.segment("subscription")).cursor
    left = number - 1
    for span in cursor.unacked():
        if left <= span.last - span.first:
            return await _entry(topic, Position(span.ledger_id, span.first + left))
        left -= span.last - span.first + 1
    raise not_found(f"Message not found: the backlog has fewer than {number} entries")


@RESOURCES.on("GET", "/examinemessage", Access.PEEK)
async def examine(call: BrokerCall) -> Response:
    """The n-th entry of a topic, from 1, counted from its beginning or its end."""
    begin = call.parameter("initialPosition") or _LATEST
    if begin not in {_EARLIEST, _LATEST}:
        raise bad_request(f"initialPosition must be {_EARLIEST} or {_LATEST}, not {values.shown(begin)}")
    number = max(call.integer_parameter("messagePosition", default=1), 1)
    topic = await targets.open_for(call.service, call.topic, "examined")
    layout = topic.ledger.layout
    if not layout.total_entries:
        raise precondition_failed("Could not examine messages due to the total message is zero")
    if number > layout.total_entries:
        raise not_found(f"Message not found: {topic.name} has {layout.total_entries} entries, not {number}")
    rank = number - 1 if begin == _EARLIEST else layout.total_entries - number
    return await _entry(topic, layout.at_rank(rank))


@RESOURCES.on("GET", "/ledger/{ledger}/entry/{entry}", Access.PEEK)
async def get_by_id(call: BrokerCall) -> Response:
    """The entry at a position."""
    position = Position(call.integer_segment("ledger"), call.integer_segment("entry"))
    topic = await targets.open_for(call.service, call.topic, "read by message id")
    if not topic.ledger.layout.contains(position):
        raise not_found(f"Message id not found: {topic.name} has no entry {position}")
    return await _entry(topic, position)


@RESOURCES.on("GET", "/messageid/{timestamp}", Access.PEEK)
async def find_by_time(call: BrokerCall) -> dict[str, int] | None:
    """Id of the first message at or after a time; if all are older, the id of the next message."""
    time_ms = call.integer_segment("timestamp")
    topic = await targets.open_for(call.service, call.topic, "searched by time")
    if not topic.ledger.ledgers:  # an empty topic: the position of its first message is not known yet
        return None
    position = await call.search(topic.ledger.reader.find_by_time, time_ms)
    return message_ids.encode(position, topic.partition)


async def _entry(topic: Topic, position: Position) -> Response:
    entries = await topic.read(position, 1, 1)
    if not entries or entries[0].position != position:
        raise not_found(f"Message not found: entry {position} of {topic.name} was deleted, or cannot be read")
    try:
        return await topic.service.blocking(_response, entries[0], topic.service.config.max_message_size)
    except CorruptEntry as error:  # not an internal error: the broker stores what producers send
        raise precondition_failed(f"entry {position} of {topic.name} is not a valid message: {error}") from error


def _response(stored: StoredEntry, max_bytes: int) -> Response:
    entry = decode_entry(stored.data)
    headers = headers_of(stored.position, entry, len(stored.data))
    size = sum(len(name) + len(value) + len(": \r\n") for name, value in headers)
    if size > _MAX_HEADER_BYTES:
        raise precondition_failed(
            f"the metadata of entry {stored.position} takes {size} bytes, and the headers of an answer hold "
            f"{_MAX_HEADER_BYTES}: read the message with a client"
        )
    # The payload is not trusted: a browser must not render it.
    response = Response(bytes(payload_of(entry, max_bytes)), media_type="application/octet-stream")
    response.raw_headers += [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers]
    return response
