"""Offload policies of namespaces and topics: all fields at once, and those that have a path of their own.

What is set replaces what was set, as in Pulsar; unlike there, no driver is needed: without one a topic goes to the
server's own tier. A secret is shown masked, and the mask sent back keeps it.
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
from afterglow.offload import scan
from afterglow.policy import offload_json
from afterglow.policy.offload_json import POLICY_SETTINGS

if TYPE_CHECKING:
    from afterglow.admin.call import Call
    from afterglow.admin.policy_levels import Level
    from afterglow.offload.scan import ScannedLedger

NAMESPACES = Resources("/admin/v2/namespaces/{tenant}/{namespace}")
TOPICS = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")


def _whole(resources: Resources, level: Level, removal: str) -> None:
    """Serve the object of all fields."""

    async def get(call: Call) -> dict[str, Any] | None:
        if call.flag("applied"):
            return offload_json.write_all(await level.effective(call))
        stored = await level.stored(call)
        return None if stored is None else offload_json.shown(stored)

    async def post(call: Call) -> None:
        body = await call.body()
        if body is None:
            raise precondition_failed('the body must hold offload policies, as {"managedLedgerOffloadDriver":"S3",…}')
        if not isinstance(body, dict):
            raise bad_request(f"offload policies must be an object, not {values.shown(body)}")
        await level.change(call, partial(offload_json.replaced, body))

    async def remove(call: Call) -> None:
        await level.remove(call)

    resources.on("GET", "/offloadPolicies", Access.READ_TENANT)(get)
    resources.on("POST", "/offloadPolicies", Access.TENANT)(post)
    resources.on("DELETE", removal, Access.TENANT)(remove)


@dataclass(frozen=True, slots=True)
class _Field:
    """A setting with a path of its own. Its body is the bare value."""

    path: str
    key: str
    unset: int | None = None
    """What is shown where it is not set; None: no content."""


_SIZE: Final = _Field("/offloadThreshold", "managedLedgerOffloadThresholdInBytes", unset=-1)
_TIME: Final = _Field("/offloadThresholdInSeconds", "managedLedgerOffloadThresholdInSeconds", unset=-1)
_LAG: Final = _Field("/offloadDeletionLagMs", "managedLedgerOffloadDeletionLagInMillis")
_PRIORITY: Final = _Field("/dataReadPriority", "managedLedgerOffloadedReadPriority")


def _single(resources: Resources, level: Level, field: _Field, *, removable: bool) -> None:
    """Serve one field: what is set, or with ``applied`` what holds."""

    async def get(call: Call) -> Any:
        if call.flag("applied"):
            held = getattr(await level.effective(call), POLICY_SETTINGS[field.key].attribute)
        else:
            held = (await level.values(call)).get(field.key)
        return field.unset if held is None else offload_json.write({field.key: held})[field.key]

    async def put(call: Call) -> None:
        value = await call.body()
        if value is not None:
            await level.change(call, lambda stored: offload_json.merged(stored, {field.key: value}))
        elif removable:
            await level.unset(call, field.key)
        else:
            raise precondition_failed(f"the body must be {POLICY_SETTINGS[field.key].value_type.description}")

    async def remove(call: Call) -> None:
        await level.unset(call, field.key)

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
async def get_policy(call: Call) -> list[dict[str, Any]]:
    """Every value that holds for a topic, with the level that set it; secrets are masked."""
    return offload_json.described(await TOPIC.effective(call))


_MOST_SCANNED: Final = 10_000
"""Objects that one call looks at: each costs a request to the tier."""
_SCAN_S: Final = 30.0
"""Time for one call, half of what Pulsar's tools wait for an answer."""


@NAMESPACES.on("GET", "/scanOffloadedLedgers", Access.TENANT)
async def scan_ledgers(call: Call) -> dict[str, Any]:
    """The objects of whole ledgers in the tier of a namespace, and whether metadata knows them.

    Pulsar's answer has the same content and is no JSON. Unlike there, one such call is served at a time, and where
    there are too many objects the answer has those first found, and says that it is not complete.
    """
    policy = await NAMESPACE.effective(call)
    found = await call.service.run_in_tier_pool(call.offload.scan, policy, _MOST_SCANNED, _SCAN_S)
    statuses = [row.status for row in found.ledgers]
    unknown = statuses.count(scan.UNKNOWN)
    return {
        "objects": [_scanned(row) for row in found.ledgers],
        "total": len(statuses),
        "errors": len(statuses) - unknown - statuses.count(scan.OK),
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
