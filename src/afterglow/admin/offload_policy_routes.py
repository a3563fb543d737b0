"""Routes of offload policies of namespaces and topics: the whole object, and fields with a path of their own.

A new object replaces the old one, as in Pulsar. Unlike there, the driver may be absent: then topics go to the server's
own tier. Secrets are masked in answers; a mask that is sent back keeps the secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import values
from afterglow.admin.access import Access
from afterglow.admin.errors import bad_request, precondition_failed
from afterglow.admin.policy_levels import NAMESPACE, TOPIC
from afterglow.admin.resource import Resources
from afterglow.offload import ledger_scan
from afterglow.policy import offload_json
from afterglow.policy.offload_json import POLICY_SETTINGS

if TYPE_CHECKING:
    from afterglow.admin.call import BrokerCall
    from afterglow.admin.policy_levels import PolicyLevel
    from afterglow.offload.ledger_scan import ScannedLedger

NAMESPACES = Resources("/admin/v2/namespaces/{tenant}/{namespace}")
TOPICS = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")


def _whole(resources: Resources, level: PolicyLevel, removal: str) -> None:
    async def get(call: BrokerCall) -> dict[str, Any] | None:
        if call.flag("applied"):
            return offload_json.write_all(await level.effective(call))
        stored = (await level.stored(call)).get(level.offload_field)
        return offload_json.shown(stored) if stored else None

    async def post(call: BrokerCall) -> None:
        body = await call.body()
        if body is None:
            raise precondition_failed('the body must hold offload policies, as {"managedLedgerOffloadDriver":"S3",…}')
        if not isinstance(body, dict):
            raise bad_request(f"offload policies must be an object, not {values.shown(body)}")
        await level.update_offload(call, partial(offload_json.replaced, body))

    async def remove(call: BrokerCall) -> None:
        await level.remove_offload(call)

    resources.on("GET", "/offloadPolicies", Access.READ_TENANT)(get)
    resources.on("POST", "/offloadPolicies", Access.TENANT)(post)
    resources.on("DELETE", removal, Access.TENANT)(remove)


@dataclass(frozen=True, slots=True)
class _OffloadField:
    """A setting with a path of its own. The body is the bare value."""

    path: str
    key: str
    unset: int | None = None
    """Answer where the field is not set; None: no content."""


_SIZE: Final = _OffloadField("/offloadThreshold", "managedLedgerOffloadThresholdInBytes", unset=-1)
_TIME: Final = _OffloadField("/offloadThresholdInSeconds", "managedLedgerOffloadThresholdInSeconds", unset=-1)
_LAG: Final = _OffloadField("/offloadDeletionLagMs", "managedLedgerOffloadDeletionLagInMillis")
_PRIORITY: Final = _OffloadField("/dataReadPriority", "managedLedgerOffloadedReadPriority")


def _single(resources: Resources, level: PolicyLevel, field: _OffloadField, *, removable: bool) -> None:
    async def get(call: BrokerCall) -> Any:
        if call.flag("applied"):
            value = getattr(await level.effective(call), POLICY_SETTINGS[field.key].attribute)
        else:
            value = level.settings(await level.stored(call)).offload.get(field.key)
        return field.unset if value is None else offload_json.write({field.key: value})[field.key]

    async def put(call: BrokerCall) -> None:
        value = await call.body()
        if value is not None:
            await level.update_offload(call, lambda stored: offload_json.merged(stored, {field.key: value}))
        elif removable:
            await level.unset_offload(call, field.key)
        else:
            raise precondition_failed(f"the body must be {POLICY_SETTINGS[field.key].value_type.description}")

    async def remove(call: BrokerCall) -> None:
        await level.unset_offload(call, field.key)

    resources.on("GET", field.path, Access.READ_TENANT)(get)
    resources.on("PUT", field.path, Access.TENANT)(put)
    if removable:
        resources.on("DELETE", field.path, Access.TENANT)(remove)


_whole(NAMESPACES, NAMESPACE, "/removeOffloadPolicies")
_whole(TOPICS, TOPIC, "/offloadPolicies")
_single(NAMESPACES, NAMESPACE, _SIZE, removable=False)
_single(NAMESPACES, NAMESPACE, _TIME, removable=False)
_single(NAMESPACES, NAMESPACE, _LAG, removable=True)
_single(NAMESPACES, NAMESPACE, _PRIORITY, removable=True)
_single(TOPICS, TOPIC, _PRIORITY, removable=True)


@TOPICS.on("GET", "/policy", Access.READ_TENANT)
async def get_policy(call: BrokerCall) -> list[dict[str, Any]]:
    """Every value of a topic's effective policy, with the level that sets it; secrets are masked."""
    return offload_json.described(await TOPIC.effective(call))


_MOST_SCANNED: Final = 10_000
"""Objects that one call inspects: each costs a request to the tier."""
_SCAN_S: Final = 30.0
"""Time limit of one call: half of the time that Pulsar's tools wait for an answer."""


@NAMESPACES.on("GET", "/scanOffloadedLedgers", Access.TENANT)
async def scan_ledgers(call: BrokerCall) -> dict[str, Any]:
    """Objects of whole ledgers in the tier of a namespace, and whether metadata refers to them.

    Pulsar's answer has the same content and is not valid JSON. Unlike there, one such call is served at a time, and an
    answer that reaches a limit has ``"complete": false``.
    """
    policy = await NAMESPACE.effective(call)
    found = await call.service.run_in_tier_pool(call.offload.scan, policy, _MOST_SCANNED, _SCAN_S)
    statuses = [row.status for row in found.ledgers]
    unknown = statuses.count(ledger_scan.UNKNOWN)
    return {
        "objects": [_scanned(row) for row in found.ledgers],
        "total": len(statuses),
        "errors": len(statuses) - unknown - statuses.count(ledger_scan.OK),
        "unknown": unknown,
        "complete": found.complete,
    }


def _scanned(row: ScannedLedger) -> dict[str, Any]:
    shown = {
        "ledger": row.ledger_id,
        "name": row.key,
        "uuid": row.uuid,
        "size": row.size_bytes,
        "lastModified": row.modified_ms,
        "userMetadata": dict(row.metadata),
        "managedLedgerName": row.managed_ledger,
        "status": row.status,
        "numEntries": row.entries,
        "offloaded": row.offloaded,
    }
    return {name: value for name, value in shown.items() if value is not None}
