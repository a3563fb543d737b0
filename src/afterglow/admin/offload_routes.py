"""Routes of offload: trigger, status, explain, segments; and rollback of streaming offload.

A rollback (PIP-76) deletes the segments of a topic, of a namespace, or of all topics; by default it is a dry run. All
topics are planned before any is changed, so that a single refused topic leaves all unchanged. Then each topic is rolled
back on its own, and a failure does not stop the others: topics that are done have no segments, so that a repeated call
continues with the rest.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import message_ids, targets
from afterglow.admin.access import Access
from afterglow.admin.errors import AdminError, bad_request, conflict, status_of
from afterglow.admin.resource import SharedResources
from afterglow.errors import AfterglowError, OffloadInProgress, TopicMissing
from afterglow.format.position import EARLIEST
from afterglow.offload.segments.rollback import check_loss

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from afterglow.admin.call import Call
    from afterglow.metadata.names import TopicName
    from afterglow.offload.segments.rollback import Rollback

TOPICS = SharedResources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")
NAMESPACES = SharedResources("/admin/v2/namespaces/{tenant}/{namespace}")
EVERYTHING = SharedResources("/admin/v2/afterglow")

_IN_PROGRESS: Final = "Offload already in progress"
"""Pulsar's exact words, which tools match."""
_SUCCESS: Final = "SUCCESS"

_PATH: Final = "/deleteOffloaded"
_CALL_S: Final = 30.0
"""Time in which one call starts further topics: half of the time that Pulsar's tools wait for an answer."""
_MAX_NAMED: Final = 5
"""Topics that an error message names."""


# --- offload ---


@TOPICS.on("PUT", "/offload", Access.TENANT)
async def trigger_offload(call: Call) -> None:
    """Start to offload the ledgers before a message."""
    body = await call.body()
    if body is None:
        raise bad_request('messageId is null; expected {"ledgerId":…,"entryId":…}')
    position = message_ids.decode(body).position
    name = await _named_topic(call, body)
    try:
        await call.blocking(call.offload.offload_prefix, name.managed_ledger_name, position)
    except OffloadInProgress as error:
        raise conflict(_IN_PROGRESS) from error


@TOPICS.on("GET", "/offload", Access.READ_TENANT)
async def get_status(call: Call) -> dict[str, Any]:
    """Status of the last triggered offload."""
    name = call.topic
    await targets.check_one(call.service, name)
    status = await call.blocking(call.offload.status, name.managed_ledger_name)
    first = status.first_unoffloaded if status.state == _SUCCESS else EARLIEST
    return {
        "status": str(status.state),
        "lastError": status.last_error,
        "firstUnoffloadedMessage": message_ids.encode(first, -1),
    }


@TOPICS.on("GET", "/explain", Access.LOOKUP)
async def explain(call: Call) -> list[dict[str, Any]]:
    """State of each ledger with its reason, of a topic or of all its partitions."""
    target = await targets.find(call.service, call.topic)
    return [
        {"topic": str(name), **asdict(found)}
        for name in target.topics
        for found in await call.blocking(call.offload.explain, name.managed_ledger_name)
    ]


@TOPICS.on("GET", "/segments", Access.LOOKUP)
async def list_segments(call: Call) -> list[dict[str, Any]]:
    """Segments of streaming offload in the order of positions, of a topic or of all its partitions."""
    target = await targets.find(call.service, call.topic)
    return [
        {**asdict(view), "topic": str(name)}
        for name in target.topics
        for view in await call.blocking(call.offload.segments, name.managed_ledger_name)
    ]


async def _named_topic(call: Call, body: object) -> TopicName:
    """The topic in the path, which must exist; of a partitioned topic the partition in the message id."""
    name = call.topic
    index = body.get("partitionIndex") if isinstance(body, dict) else None
    count = await targets.partitions_of(call.service, name)
    if isinstance(index, int) and 0 <= index < count:
        name = name.partition(index)
    await targets.check_one(call.service, name)
    return name


# --- rollback ---


class RollbackState(StrEnum):
    """State of the rollback of one topic."""

    EMPTY = "empty"
    """The topic has no segments."""
    PLANNED = "planned"
    """Dry run: its segments would be deleted."""
    REFUSED = "refused"
    """Dry run: the call would be refused because of this topic."""
    DELETED = "deleted"
    FAILED = "failed"
    PENDING = "pending"
    """The call reached its time limit before this topic: repeat it."""


@dataclass(frozen=True, slots=True)
class TopicRollback:
    """Rollback of one of several topics."""

    topic: str
    state: RollbackState
    segments: int = 0
    """Number of segments that are deleted, or would be."""
    bytes: int = 0
    """Of these segments in the tier."""
    lost_entries: int = 0
    """Entries without a hot copy, which are lost with the segments."""
    error: str | None = None


@TOPICS.on("POST", _PATH, Access.TENANT)
async def delete_of_topic(call: Call) -> list[dict[str, Any]]:
    """Roll back a topic, or all its partitions; a dry run returns the plan, segment by segment."""
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
    """Roll back all topics of a namespace, with one row for each topic or partition."""
    await call.namespace_policies()
    return await _roll_back_all(call, await call.blocking(call.catalog.topics, call.namespace))


@EVERYTHING.on("POST", _PATH, Access.SUPER_USER)
async def delete_of_everything(call: Call) -> list[dict[str, Any]]:
    """Roll back all topics of all namespaces."""
    return await _roll_back_all(call, await call.blocking(lambda: list(call.service.store.all_topics())))


async def _roll_back_all(call: Call, names: Iterable[TopicName]) -> list[dict[str, Any]]:
    dry_run, lose_data = _flags(call)
    planned: list[tuple[TopicName, TopicRollback]] = []
    refused: dict[TopicName, AfterglowError] = {}
    for name in sorted(names, key=str):
        try:
            plan = await _roll_back(call, name)
            check_loss(name, plan, lose_data=lose_data)
        except TopicMissing:  # deleted since it was listed
            continue
        except AfterglowError as error:
            refused[name] = error
            planned.append((name, TopicRollback(str(name), RollbackState.REFUSED, error=str(error))))
        else:
            planned.append((name, _planned(name, plan)))
    if not dry_run:
        _check_none_refused(refused, len(planned))
        deadline_s = time.monotonic() + _CALL_S
        planned = [
            (name, await _roll_back_planned(call, name, row, lose_data=lose_data, deadline_s=deadline_s))
            for name, row in planned
        ]
    return [asdict(row) for _, row in planned]


async def _roll_back_planned(
    call: Call, name: TopicName, planned: TopicRollback, *, lose_data: bool, deadline_s: float
) -> TopicRollback:
    if planned.state is not RollbackState.PLANNED:
        return planned
    if time.monotonic() >= deadline_s:
        return replace(planned, state=RollbackState.PENDING)
    try:
        await _roll_back(call, name, dry_run=False, lose_data=lose_data)
    except AfterglowError as error:
        return replace(planned, state=RollbackState.FAILED, error=str(error))
    return replace(planned, state=RollbackState.DELETED)


def _planned(name: TopicName, plan: Rollback) -> TopicRollback:
    has_work = plan.segments or plan.ledgers or plan.lost
    return TopicRollback(
        str(name),
        RollbackState.PLANNED if has_work else RollbackState.EMPTY,
        segments=len(plan.segments),
        bytes=sum(view.bytes for view in plan.segments),
        lost_entries=sum(ledger.entries for ledger in plan.lost),
    )


def _check_none_refused(refused: Mapping[TopicName, AfterglowError], count: int) -> None:
    if not refused:
        return
    reasons = [str(error) if str(name) in str(error) else f"{name}: {error}" for name, error in refused.items()]
    more = f"; and {len(reasons) - _MAX_NAMED} more" if len(reasons) > _MAX_NAMED else ""
    raise AdminError(
        status_of(next(iter(refused.values()))),
        f"nothing was deleted: {len(refused)} of {count} topics are refused, which a dry run lists: "
        f"{'; '.join(reasons[:_MAX_NAMED])}{more}",
    )


def _flags(call: Call) -> tuple[bool, bool]:
    """Whether the call is a dry run, and whether entries may be lost."""
    if not call.flag("streaming"):
        raise bad_request("only segments of streaming offload can be deleted: set streaming=true")
    call.offload  # noqa: B018 - without a tier, refuse the whole call and not topic by topic
    return call.flag("dryRun", default=True), call.flag("loseData")


async def _roll_back(call: Call, name: TopicName, *, dry_run: bool = True, lose_data: bool = False) -> Rollback:
    return await call.blocking(
        call.offload.delete_segments, name.managed_ledger_name, dry_run=dry_run, lose_data=lose_data
    )
