"""Offload of topics: asking for it, how it went, what there is, and why each ledger is where it is."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import message_ids, targets
from afterglow.admin.access import Access
from afterglow.admin.errors import bad_request, conflict
from afterglow.admin.resource import Resources
from afterglow.errors import OffloadInProgress
from afterglow.format.position import EARLIEST

if TYPE_CHECKING:
    from afterglow.admin.call import Call
    from afterglow.broker.topic import Topic

RESOURCES = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")

_IN_PROGRESS: Final = "Offload already in progress"
"""Word for word what Pulsar answers: tools look for it."""
_SUCCESS: Final = "SUCCESS"


@RESOURCES.on("PUT", "/offload", Access.TENANT)
async def trigger_offload(call: Call) -> None:
    """Begin to offload what lies before a message."""
    body = await call.body()
    if body is None:
        raise bad_request('messageId is null: give {"ledgerId":…,"entryId":…}')
    position = message_ids.decode(body).position
    topic = await _topic(call, body)
    try:
        await call.service.blocking(call.offload.offload_prefix, topic.name.managed_ledger_name, position)
    except OffloadInProgress as error:
        raise conflict(_IN_PROGRESS) from error


@RESOURCES.on("GET", "/offload", Access.READ_TENANT)
async def get_status(call: Call) -> dict[str, Any]:
    """How the last offload that was asked for went."""
    topic = await targets.open_one(call.service, call.topic)
    status = await call.service.blocking(call.offload.status, topic.name.managed_ledger_name)
    first = status.first_unoffloaded if status.state == _SUCCESS else EARLIEST
    return {
        "status": str(status.state),
        "lastError": status.last_error,
        "firstUnoffloadedMessage": message_ids.encode(first, -1),
    }


@RESOURCES.on("GET", "/explain", Access.LOOKUP)
async def explain(call: Call) -> list[dict[str, Any]]:
    """Why each ledger is where it is, of a topic or of all its partitions."""
    target = await targets.find(call.service, call.topic)
    return [
        {"topic": str(topic.name), **asdict(found)}
        async for topic in targets.each(call.service, target)
        for found in await call.service.blocking(call.offload.explain, topic.name.managed_ledger_name)
    ]


@RESOURCES.on("GET", "/segments", Access.LOOKUP)
async def list_segments(call: Call) -> list[dict[str, Any]]:
    """The segments of streaming offload, of a topic or of all its partitions, in the order of positions."""
    target = await targets.find(call.service, call.topic)
    return [
        {**asdict(view), "topic": str(name)}
        for name in target.topics
        for view in await call.service.blocking(call.offload.segments, name.managed_ledger_name)
    ]


async def _topic(call: Call, body: object) -> Topic:
    """The topic in the path; of a partitioned one the partition that the message is from."""
    name = call.topic
    index = body.get("partitionIndex") if isinstance(body, dict) else None
    count = await targets.partitions_of(call.service, name)
    if isinstance(index, int) and 0 <= index < count:
        name = name.partition(index)
    return await targets.open_one(call.service, name)
