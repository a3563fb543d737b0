"""The clusters that have copies of a topic: kept and shown as Pulsar does, and this cluster alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import policies, values
from afterglow.admin.access import Access
from afterglow.admin.errors import forbidden, precondition_failed
from afterglow.admin.policy_levels import change_own, namespace_policies, own_policies
from afterglow.admin.resource import Resources
from afterglow.ledger.topic_policies import of_scope

if TYPE_CHECKING:
    from afterglow.admin.call import Call

    Json = dict[str, Any]

RESOURCES = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")

_FIELD: Final = "replicationClusters"


@RESOURCES.on("GET", "/replication", Access.READ_TENANT)
async def get_replication(call: Call) -> list[str] | None:
    """The clusters that are set for a topic; with ``applied`` those of its namespace where none are."""
    applied = call.flag("applied")
    found: list[str] | None = of_scope(await own_policies(call), is_global=call.flag("isGlobal")).get(_FIELD)
    if found is None and applied:
        found = policies.shown(await namespace_policies(call), call.service.config.cluster_name)[policies.CLUSTERS]
    return found


@RESOURCES.on("POST", "/replication", Access.TENANT)
async def set_replication(call: Call) -> None:
    """Keep the only cluster that there is, which changes nothing else."""
    clusters = values.texts(await call.body(), "the clusters")
    own = call.service.config.cluster_name
    if call.flag("isGlobal"):
        raise precondition_failed(f"{call.topic} is not replicated: there are no clusters to set a global policy for")
    if own not in clusters:
        raise precondition_failed(f"{call.topic} is served by {own!r}: name it among the clusters")
    if clusters != [own]:
        raise forbidden(f"{call.topic} cannot be replicated: this broker has no other cluster than {own!r}")
    await change_own(call, lambda old: {**old, _FIELD: clusters})


@RESOURCES.on("DELETE", "/replication", Access.TENANT)
async def remove_replication(call: Call) -> None:
    """Have the clusters of the namespace."""
    await change_own(call, _without)


def _without(old: Json) -> Json:
    return {name: value for name, value in old.items() if name != _FIELD}
