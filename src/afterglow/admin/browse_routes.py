"""Route that browses the messages of a topic, for the console: decoded messages before or after any position.

It needs the right to consume on the topic, and moves no cursor. A call is bounded in messages, bytes and time
(:class:`~afterglow.admin.message_window.Budget`), and all calls together in stored bytes per second.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import targets, values
from afterglow.admin.access import Access
from afterglow.admin.errors import bad_request
from afterglow.admin.message_decoding import MessageDecoder
from afterglow.admin.message_window import Budget, MessagePosition, WindowRequest, read_window
from afterglow.admin.resource import Resources
from afterglow.catalog.schema_compatibility import TYPE_NAMES
from afterglow.format.position import parse_position
from afterglow.format.schema import SchemaVersion

if TYPE_CHECKING:
    from afterglow.admin.call import BrokerCall
    from afterglow.admin.message_window import Window
    from afterglow.broker.topic import Topic

RESOURCES = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")

_DEFAULT_LIMIT: Final = 50
_MAX_LIMIT: Final = 200
_MAX_SEARCH: Final = 200
"""Characters of a searched text."""
_STARTS: Final = ("from", "before", "time")


@RESOURCES.on("GET", "/messages", Access.PEEK)
async def browse(call: BrokerCall) -> dict[str, Any]:
    """A window of messages, in the order of the topic; by default the newest.

    ``from`` names the first message, ``before`` the message after the last one, each as LEDGER:ENTRY[:BATCH],
    ``earliest`` or ``latest``; ``time``, in epoch milliseconds, begins with the first message written at or after it.
    ``limit`` is the number of messages, ``search`` a text that they contain. The answer has the examined range:
    ``before=BEGIN`` and ``from=END`` continue there.
    """
    given = [name for name in _STARTS if call.parameter(name) is not None]
    if len(given) > 1:
        raise bad_request(f"the parameters {' and '.join(given)} exclude each other: give one of them")
    limit = call.integer_parameter("limit", default=_DEFAULT_LIMIT, high=_MAX_LIMIT)
    if limit < 1:
        raise bad_request(f"limit must be from 1 to {_MAX_LIMIT}, not {limit}")
    search = call.parameter("search") or ""
    if len(search) > _MAX_SEARCH:
        raise bad_request(f"search has {len(search)} characters, above the limit of {_MAX_SEARCH}")
    time_ms = call.integer_parameter("time", default=-1)
    if time_ms < 0 and given == ["time"]:
        raise bad_request(f"time must be epoch milliseconds, not {values.shown(time_ms)}")
    start, end = _given_position(call, "from"), _given_position(call, "before")
    topic = await targets.open_for(call.service, call.topic, "browsed")

    def read() -> Window:
        reader = topic.ledger.reader
        at = MessagePosition(reader.find_by_time(time_ms)) if time_ms >= 0 else start
        request = WindowRequest(at, limit=limit, search=search)
        if end is not None:
            request = WindowRequest(None, end, limit, search)
        return read_window(reader, _decoder(topic), request, Budget())

    window = await call.browse(read, lambda found: found.read_bytes)
    return {
        "messages": [asdict(message) for message in window.messages],
        "begin": str(window.begin),
        "end": str(window.end),
        "has_older": window.has_older,
        "has_newer": window.has_newer,
        "examined": window.examined,
        "read_bytes": window.read_bytes,
        "problems": window.problems,
    }


def _given_position(call: BrokerCall, name: str) -> MessagePosition | None:
    """A parameter that is a position; ``latest`` as the begin of a window means its newest messages."""
    given = call.parameter(name)
    if given is None or (name == "from" and given.strip().lower() == "latest"):
        return None
    position, batch_index = parse_position(given)
    return MessagePosition(position, max(batch_index, 0))


def _decoder(topic: Topic) -> MessageDecoder:
    service, name = topic.service, topic.name

    def schema(version: bytes) -> SchemaVersion | None:
        found = service.schemas.get(name, version) if len(version) == 8 else None
        if found is None:
            return None
        properties = {pair.key: pair.value for pair in found.schema.properties}
        return SchemaVersion(version, TYPE_NAMES[found.schema.type], found.schema.schema_data, properties)

    return MessageDecoder(schema, service.config.max_message_size)
