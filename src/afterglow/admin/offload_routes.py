"""Routes of offload: trigger, status, explain, segments; and deleting the segments of streaming offload.

Deleting them (PIP-76, rolling back) is for a topic, a namespace, or all topics. A call is a dry run unless it says
otherwise. Topics are planned before any is changed, so that one that must be refused leaves all as they are. Afterwards
each is done by itself, and one that fails holds up no other: topics that are done have no segments any more, so that
the same call made again goes on with the rest.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import message_ids, targets
from afterglow.admin.access import Access
from afterglow.admin.errors import AdminError, bad_request, conflict, status_of
from afterglow.admin.resource import Resources
from afterglow.errors import AfterglowError, OffloadInProgress, TopicMissing
from afterglow.format.position import EARLIEST
from afterglow.offload.segments.rollback import check_loss

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from afterglow.admin.call import Call
    from afterglow.broker.topic import Topic
    from afterglow.metadata.names import TopicName
    from afterglow.offload.segments.rollback import Rollback

TOPICS = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")
NAMESPACES = Resources("/admin/v2/namespaces/{tenant}/{namespace}")
EVERYTHING = Resources("/admin/v2/afterglow")

_IN_PROGRESS: Final = "Offload already in progress"
"""Word for word what Pulsar answers: tools look for it."""
_SUCCESS: Final = "SUCCESS"

_PATH: Final = "/deleteOffloaded"
_CALL_S: Final = 30.0
"""Time in which one call begins further topics; half of what Pulsar's tools wait for an answer."""
_MOST_NAMED: Final = 5
"""Topics that a refusal names."""


# --- offload ---


@TOPICS.on("PUT", "/offload", Access.TENANT)
async def trigger_offload(call: Call) -> None:
    """Begin to offload what lies before a message."""
    body = await call.body()
    if body is None:
        raise bad_request('messageId is null: give {"ledgerId":…,"entryId":…}')
    position = message_ids.decode(body).position
    topic = await _topic(call, body)
    try:
        await call.blocking(call.offload.offload_prefix, topic.name.managed_ledger_name, position)
    except OffloadInProgress as error:
        raise conflict(_IN_PROGRESS) from error


@TOPICS.on("GET", "/offload", Access.READ_TENANT)
async def get_status(call: Call) -> dict[str, Any]:
    """Status of the last offload that was triggered."""
    topic = await targets.open_one(call.service, call.topic)
    status = await call.blocking(call.offload.status, topic.name.managed_ledger_name)
    first = status.first_unoffloaded if status.state == _SUCCESS else EARLIEST
    return {
        "status": str(status.state),
        "lastError": status.last_error,
        "firstUnoffloadedMessage": message_ids.encode(first, -1),
    }


@TOPICS.on("GET", "/explain", Access.LOOKUP)
async def explain(call: Call) -> list[dict[str, Any]]:
    """Why each ledger is where it is, of a topic or of all its partitions."""
    target = await targets.find(call.service, call.topic)
    return [
        {"topic": str(topic.name), **asdict(found)}
        async for topic in targets.each(call.service, target)
        for found in await call.blocking(call.offload.explain, topic.name.managed_ledger_name)
    ]


@TOPICS.on("GET", "/segments", Access.LOOKUP)
async def list_segments(call: Call) -> list[dict[str, Any]]:
    """The segments of streaming offload, of a topic or of all its partitions, in the order of positions."""
    target = await targets.find(call.service, call.topic)
    return [
        {**asdict(view), "topic": str(name)}
        for name in target.topics
        for view in await call.blocking(call.offload.segments, name.managed_ledger_name)
    ]


async def _topic(call: Call, body: object) -> Topic:
    """The topic in the path; of a partitioned one the partition that the message is from."""
    name = call.topic
    index = body.get("partitionIndex") if isinstance(body, dict) else None
    count = await targets.partitions_of(call.service, name)
    if isinstance(index, int) and 0 <= index < count:
        name = name.partition(index)
    return await targets.open_one(call.service, name)


# --- deleting segments ---


class RollbackState(StrEnum):
    """The outcome for one topic of many."""

    EMPTY = "empty"
    """It has no segments."""
    PLANNED = "planned"
    """A dry run: its segments would be deleted."""
    REFUSED = "refused"
    """A dry run: it, and therefore all, would be refused."""
    DELETED = "deleted"
    FAILED = "failed"
    PENDING = "pending"
    """The call took too long: make it again."""


@dataclass(frozen=True, slots=True)
class RollbackOutcome:
    """One topic of many."""

    topic: str
    state: RollbackState
    segments: int = 0
    """How many are deleted, or would be."""
    bytes: int = 0
    """In the tier."""
    lost_entries: int = 0
    """Entries of ledgers whose hot copy is gone: they are lost with the segments."""
    error: str | None = None


@TOPICS.on("POST", _PATH, Access.TENANT)
async def delete_of_topic(call: Call) -> list[dict[str, Any]]:
    """Take a topic, or all its partitions, out of their segments; else say what would go, segment by segment."""
    dry_run, lose_data = _flags(call)
    target = await targets.find(call.service, call.topic)
    plans = {name: await _roll_back(call, name) for name in target.topics}
    if not dry_run:
        for name, plan in plans.items():
            check_loss(name, plan, lose_data=lose_data)
        for name in plans:
            plans[name] = await _roll_back(call, name, dry_run=False, lose_data=lose_data)
    return [{"topic": str(name), **asdict(plan)} for name, plan in plans.items()]


@NAMESPACES.on("POST", _PATH, Access.TENANT)
async def delete_of_namespace(call: Call) -> list[dict[str, Any]]:
    """The same for all topics of a namespace, with one outcome for each topic or partition."""
    service = call.service
    await service.blocking(service.catalog.policies, call.namespace)
    return await _delete_of_many(call, await service.blocking(service.catalog.topics, call.namespace))


@EVERYTHING.on("POST", _PATH, Access.SUPER_USER)
async def delete_of_everything(call: Call) -> list[dict[str, Any]]:
    """The same for all topics of all namespaces."""
    return await _delete_of_many(call, await call.blocking(lambda: list(call.service.store.all_topics())))


async def _delete_of_many(call: Call, names: Iterable[TopicName]) -> list[dict[str, Any]]:
    dry_run, lose_data = _flags(call)
    planned: list[tuple[TopicName, RollbackOutcome]] = []
    refused: dict[TopicName, AfterglowError] = {}
    for name in sorted(names, key=str):
        try:
            plan = await _roll_back(call, name)
            check_loss(name, plan, lose_data=lose_data)
        except TopicMissing:  # deleted since it was listed
            continue
        except AfterglowError as error:
            refused[name] = error
            planned.append((name, RollbackOutcome(str(name), RollbackState.REFUSED, error=str(error))))
        else:
            planned.append((name, _planned(name, plan)))
    if not dry_run:
        _check_none_refused(refused, len(planned))
        ends_s = time.monotonic() + _CALL_S
        planned = [
            (name, await _delete(call, name, outcome, lose_data=lose_data, ends_s=ends_s)) for name, outcome in planned
        ]
    return [asdict(outcome) for _, outcome in planned]


async def _delete(
    call: Call, name: TopicName, planned: RollbackOutcome, *, lose_data: bool, ends_s: float
) -> RollbackOutcome:
    """Delete what is planned for one topic, if there is time."""
    if planned.state is not RollbackState.PLANNED:
        return planned
    if time.monotonic() >= ends_s:
        return replace(planned, state=RollbackState.PENDING)
    try:
        await _roll_back(call, name, dry_run=False, lose_data=lose_data)
    except AfterglowError as error:
        return replace(planned, state=RollbackState.FAILED, error=str(error))
    return replace(planned, state=RollbackState.DELETED)


def _planned(name: TopicName, plan: Rollback) -> RollbackOutcome:
    concerned = plan.segments or plan.ledgers or plan.lost
    return RollbackOutcome(
        str(name),
        RollbackState.PLANNED if concerned else RollbackState.EMPTY,
        segments=len(plan.segments),
        bytes=sum(view.bytes for view in plan.segments),
        lost_entries=sum(ledger.entries for ledger in plan.lost),
    )


def _check_none_refused(refused: Mapping[TopicName, AfterglowError], count: int) -> None:
    if not refused:
        return
    reasons = [str(error) if str(name) in str(error) else f"{name}: {error}" for name, error in refused.items()]
    more = f"; and {len(reasons) - _MOST_NAMED} more" if len(reasons) > _MOST_NAMED else ""
    raise AdminError(
        status_of(next(iter(refused.values()))),
        f"nothing was deleted, since {len(refused)} of {count} topics must be refused, which a dry run lists: "
        f"{'; '.join(reasons[:_MOST_NAMED])}{more}",
    )


def _flags(call: Call) -> tuple[bool, bool]:
    """Whether it is a dry run, and whether entries may be lost.

    Raises:
        AdminError: It is not said that segments are meant, or nothing is offloaded here.
    """
    if not call.flag("streaming"):
        raise bad_request("only segments are deleted by hand, whole ledgers with their topic: give streaming=true")
    call.offload  # noqa: B018 - refuses the call as a whole, not topic by topic
    return call.flag("dryRun", default=True), call.flag("loseData")


async def _roll_back(call: Call, name: TopicName, *, dry_run: bool = True, lose_data: bool = False) -> Rollback:
    return await call.blocking(
        call.offload.delete_segments, name.managed_ledger_name, dry_run=dry_run, lose_data=lose_data
    )
