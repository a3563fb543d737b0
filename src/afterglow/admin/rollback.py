"""Deleting the segments of streaming offload (PIP-76, rolling back): of a topic, of a namespace, of all topics.

A call is a dry run unless it says otherwise. Topics are planned before any is changed, so that one that must be refused
leaves all as they are. Afterwards each is done by itself, and one that fails holds up no other: topics that are done
have no segments any more, so that the same call made again goes on with the rest.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import targets
from afterglow.admin.access import Access
from afterglow.admin.errors import AdminError, bad_request, status_of
from afterglow.admin.resource import Resources
from afterglow.errors import AfterglowError, TopicMissing
from afterglow.offload.segments.rollback import check_loss

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from afterglow.admin.call import Call
    from afterglow.metadata.names import TopicName
    from afterglow.offload.segments.rollback import Rollback

TOPICS = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")
NAMESPACES = Resources("/admin/v2/namespaces/{tenant}/{namespace}")
EVERYTHING = Resources("/admin/v2/afterglow")

_PATH: Final = "/deleteOffloaded"
_CALL_S: Final = 30.0
"""Time in which one call begins further topics; half of what Pulsar's tools wait for an answer."""
_MOST_NAMED: Final = 5
"""Topics that a refusal names."""


class State(StrEnum):
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
class Outcome:
    """One topic of many."""

    topic: str
    state: State
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
    return await _delete_of_many(call, await call.service.blocking(lambda: list(call.service.store.all_topics())))


async def _delete_of_many(call: Call, names: Iterable[TopicName]) -> list[dict[str, Any]]:
    dry_run, lose_data = _flags(call)
    planned: list[tuple[TopicName, Outcome]] = []
    refused: dict[TopicName, AfterglowError] = {}
    for name in sorted(names, key=str):
        try:
            plan = await _roll_back(call, name)
            check_loss(name, plan, lose_data=lose_data)
        except TopicMissing:  # deleted since it was listed
            continue
        except AfterglowError as error:
            refused[name] = error
            planned.append((name, Outcome(str(name), State.REFUSED, error=str(error))))
        else:
            planned.append((name, _planned(name, plan)))
    if not dry_run:
        _check_none_refused(refused, len(planned))
        ends_s = time.monotonic() + _CALL_S
        planned = [
            (name, await _delete(call, name, outcome, lose_data=lose_data, ends_s=ends_s)) for name, outcome in planned
        ]
    return [asdict(outcome) for _, outcome in planned]


async def _delete(call: Call, name: TopicName, planned: Outcome, *, lose_data: bool, ends_s: float) -> Outcome:
    """Delete what is planned for one topic, if there is time."""
    if planned.state is not State.PLANNED:
        return planned
    if time.monotonic() >= ends_s:
        return replace(planned, state=State.PENDING)
    try:
        await _roll_back(call, name, dry_run=False, lose_data=lose_data)
    except AfterglowError as error:
        return replace(planned, state=State.FAILED, error=str(error))
    return replace(planned, state=State.DELETED)


def _planned(name: TopicName, plan: Rollback) -> Outcome:
    concerned = plan.segments or plan.ledgers or plan.lost
    return Outcome(
        str(name),
        State.PLANNED if concerned else State.EMPTY,
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
    return await call.service.blocking(
        call.offload.delete_segments, name.managed_ledger_name, dry_run=dry_run, lose_data=lose_data
    )
