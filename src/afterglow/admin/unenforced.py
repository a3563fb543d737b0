"""Policies of Pulsar that this broker does not enforce.

They read as in a Pulsar where nobody has set them, and removing one does nothing. Setting one is refused, since whoever
did would believe that it holds; only a value that says what holds anyway is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import targets
from afterglow.admin.access import Access
from afterglow.admin.errors import AdminError, precondition_failed
from afterglow.admin.policy_levels import namespace_policies
from afterglow.admin.resource import Resources

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from afterglow.admin.call import Call

NAMESPACES = Resources("/admin/v2/namespaces/{tenant}/{namespace}")
TOPICS = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")


@dataclass(frozen=True, slots=True)
class Row:
    """One policy at one level."""

    path: str
    what: str
    """As messages name it."""
    unset: Any = None
    """What is shown where it is not set; None: no content."""
    applied: Any = None
    """What is shown to those who ask what holds; None: as where they do not."""
    set_at: str | None = None
    """The path at which it is set, where that is another."""
    removed_at: str | None = None
    """The path at which it is removed, where that is another."""
    method: str = "POST"
    """That sets it."""
    shown: bool = True
    """Whether it can be asked for."""
    bare: bool = False
    """Whether a call without a body sets it."""


_RATE: Final = {
    "dispatchThrottlingRateInMsg": 0,
    "dispatchThrottlingRateInByte": 0,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}
_NO_QUOTA: Final = {"limit": -1, "limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}
_NEVER_INACTIVE: Final = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 60,
    "deleteWhileInactive": False,
}

_BOTH: Final = (
    Row("/backlogQuotaMap", "a backlog quota", {}, dict.fromkeys(("destination_storage", "message_age"), _NO_QUOTA),
        set_at="/backlogQuota", removed_at="/backlogQuota"),
    Row("/publishRate", "a publish rate"),
    Row("/dispatchRate", "a dispatch rate", applied=_RATE),
    Row("/subscriptionDispatchRate", "a dispatch rate of subscriptions", applied=_RATE),
    Row("/replicatorDispatchRate", "a dispatch rate of replication", applied=_RATE),
    Row("/subscribeRate", "a subscribe rate",
        applied={"subscribeThrottlingRatePerConsumer": 0, "ratePeriodInSecond": 30}),
    Row("/inactiveTopicPolicies", "the deletion of inactive topics", applied=_NEVER_INACTIVE),
    Row("/deduplicationSnapshotInterval", "an interval of deduplication snapshots"),
    Row("/entryFilters", "entry filters", applied={"entryFilterNames": ""}),
    Row("/dispatcherPauseOnAckStatePersistent", "a pause of dispatch while acknowledgements are persisted",
        unset=False, bare=True),
)  # fmt: skip

_NAMESPACE_ROWS: Final = (
    *_BOTH,
    Row("/subscriptionExpirationTime", "the expiry of subscriptions"),
    Row("/deduplication", "deduplication"),
    Row("/subscriptionAuthMode", "an authorisation mode of subscriptions", unset="None"),
    Row("/encryptionRequired", "required encryption", unset=False),
    Row("/maxUnackedMessagesPerSubscription", "a limit of unacknowledged messages per subscription"),
    Row("/compactionThreshold", "a threshold of compaction", method="PUT"),
    Row("/resourcegroup", "a resource group", set_at="/resourcegroup/{value}"),
    Row("/antiAffinity", "an anti-affinity group"),
    Row("/persistence/bookieAffinity", "a bookie affinity group"),
    Row("/migration", "migration", shown=False),
)

_TOPIC_ROWS: Final = (
    *_BOTH,
    Row("/deduplicationEnabled", "deduplication", applied=False),
    Row("/maxUnackedMessagesOnSubscription", "a limit of unacknowledged messages per subscription", applied=0),
    Row("/maxMessageSize", "a largest message"),
    Row("/compactionThreshold", "a threshold of compaction", applied=0),
    Row("/{subscription}/dispatchRate", "a dispatch rate of a subscription", applied=_RATE),
)


def _serve(resources: Resources, row: Row, look: Callable[[Call], Awaitable[object]]) -> None:
    async def get(call: Call) -> Any:
        await look(call)
        return row.applied if call.flag("applied") and row.applied is not None else row.unset

    async def put(call: Call) -> None:
        await look(call)
        if row.bare or call.has("value") or await _body(call) not in (None, row.unset):
            raise precondition_failed(
                f"{row.what} is not enforced by this broker, and is not stored without: leave it unset"
            )

    async def remove(call: Call) -> None:
        await look(call)

    if row.shown:
        resources.on("GET", row.path, Access.READ_TENANT)(get)
    resources.on(row.method, row.set_at or row.path, Access.TENANT)(put)
    resources.on("DELETE", row.removed_at or row.path, Access.TENANT)(remove)


async def _body(call: Call) -> Any:
    """What would be set; some tools send a name as it is, which is no JSON."""
    try:
        return await call.body()
    except AdminError as error:
        if error.status != HTTPStatus.BAD_REQUEST:
            raise
        return str(error)


async def _topic(call: Call) -> object:
    for name in ("applied", "isGlobal", "authoritative"):
        call.flag(name)
    return await targets.find(call.service, call.topic)


for _row in _NAMESPACE_ROWS:
    _serve(NAMESPACES, _row, namespace_policies)
for _row in _TOPIC_ROWS:
    _serve(TOPICS, _row, _topic)
