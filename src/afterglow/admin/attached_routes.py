"""Routes of attached topics: partitions, statistics, log, policy. What belongs to the cluster is only read here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from afterglow.admin import attached_stats, console_routes, targets, topic_stats
from afterglow.admin.access import Access
from afterglow.admin.call import Call
from afterglow.admin.errors import not_found
from afterglow.admin.resource import ResourceTable
from afterglow.admin.topic_routes import partitioned_metadata
from afterglow.policy import offload_json

if TYPE_CHECKING:
    from starlette.requests import Request

    from afterglow.attach.service import AttachedService
    from afterglow.attach.topic import AttachedTopic
    from afterglow.config import BrokerConfig
    from afterglow.metadata.names import TopicName
    from afterglow.pipeline.server_handle import ServerHandle

    Json = dict[str, Any]


class AttachedCall(Call):
    """One call of the admin API of a process that is attached to a cluster."""

    service: AttachedService

    def __init__(self, server: ServerHandle[AttachedService], request: Request, *, is_super_user: bool = False) -> None:
        del is_super_user  # no call of this process depends on it
        super().__init__(server, request)


class AttachedResources(ResourceTable[AttachedCall]):
    """Resources that only such a process serves."""


TOPICS = AttachedResources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")


@TOPICS.on("GET", "/partitions", Access.LOOKUP)
async def get_partitions(call: AttachedCall) -> Json:
    """Number of partitions; 0 if the topic is not partitioned."""
    return partitioned_metadata((await targets.find(call.service, call.topic)).partitions)


@TOPICS.on("GET", "/subscriptions", Access.LOOKUP)
async def list_subscriptions(call: AttachedCall) -> list[str]:
    """The subscription of this process; the cluster's admin API has all others."""
    await targets.find(call.service, call.topic)
    return [call.service.link.subscription]


# --- statistics ---


@TOPICS.on("GET", "/stats", Access.LOOKUP)
async def get_stats(call: AttachedCall) -> Json:
    """Statistics of one topic."""
    await targets.check_one(call.service, call.topic)
    return await _stats(call, call.topic)


@TOPICS.on("GET", "/partitioned-stats", Access.LOOKUP)
async def get_partitioned_stats(call: AttachedCall) -> Json:
    """Statistics of a partitioned topic, and with ``perPartition`` of each partition."""
    target = await targets.find(call.service, call.topic)
    if not target.partitioned:
        raise not_found(f"{target.name} is not a partitioned topic")
    found = {str(name): await _stats(call, name) for name in target.topics}
    return topic_stats.partitioned_stats(found, target.partitions, each=call.flag("perPartition", default=True))


@TOPICS.on("GET", "/internalStats", Access.LOOKUP)
async def get_internal_stats(call: AttachedCall) -> Json:
    """Ledgers of one topic, and the subscription of this process."""
    call.flag("metadata")
    return attached_stats.internal_stats(call.service, await _opened(call, call.topic))


@TOPICS.on("GET", "/log", Access.LOOKUP)
async def get_log(call: AttachedCall) -> Json:
    """The log of one topic, as the console shows it; see :func:`afterglow.admin.console_routes.get_log`."""
    first = console_routes.first_ledger(call)
    topic = await _opened(call, call.topic)
    confirmed = call.service.confirmed(topic)
    return {
        "topic": str(topic.topic),
        **await call.blocking(console_routes.stored_log, call, topic, first),
        "cursors": [attached_stats.cursor(call.service, topic)],
        "producers": 0,
        "messages_in": confirmed.messages,
        "bytes_in": confirmed.size_bytes,
        "messages_out": 0,
        "bytes_out": 0,
    }


async def _stats(call: AttachedCall, name: TopicName) -> Json:
    topic = await _opened(call, name)
    statistics = await call.blocking(call.offload.statistics, topic.name)
    return attached_stats.topic_stats(call.service, topic) | topic_stats.offload_stats(statistics)


async def _opened(call: AttachedCall, name: TopicName) -> AttachedTopic:
    """An attached topic.

    Raises:
        AdminError: The topic does not exist, is partitioned, or was deleted in the cluster.
    """
    await targets.check_one(call.service, name)
    found = call.service.store.opened(name.managed_ledger_name)
    if found is None:
        raise not_found(f"topic {name} is not attached now: it was deleted in cluster {call.service.link.name}")
    return found


# --- policies ---


@TOPICS.on("GET", "/policy", Access.READ_TENANT)
async def get_policy(call: AttachedCall) -> list[Json]:
    """Every value of a topic's effective policy, with the file and table, flag or default that it is from."""
    return offload_json.described(await _policy(call), with_source=True)


@TOPICS.on("GET", "/offloadPolicies", Access.READ_TENANT)
async def get_offload_policies(call: AttachedCall) -> Json:
    """The effective offload policies; they are set by flags and ``attach.toml``, and not over this API."""
    call.flag("applied")
    return offload_json.write_all(await _policy(call))


async def _policy(call: AttachedCall) -> BrokerConfig:
    await targets.find(call.service, call.topic)
    return call.service.policies.of(call.topic.managed_ledger_name)
