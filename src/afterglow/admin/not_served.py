"""Table of Pulsar's admin calls that this broker does not serve: each answers 405 with the reason.

Policies that would be stored and not enforced are among them: the caller would believe that they take effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from afterglow.admin.access import Access
from afterglow.admin.errors import not_allowed
from afterglow.admin.resource import Resources

if TYPE_CHECKING:
    from afterglow.admin.call import BrokerCall

RESOURCES = Resources("")

_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}/"
_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/"
_SCHEMAS: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}/"

_SINGLE_BROKER: Final = "a single broker serves the whole cluster"
_NOT_REPLICATED: Final = "topics are not replicated"
_NOT_COMPACTED: Final = "topics are not compacted"
_NOT_LIMITED: Final = "rates are not limited"
_NOT_ENFORCED: Final = "the policy would be stored and not enforced, leave it unset"
_PER_TOPIC: Final = "use the call for a single topic"

_OF_BOTH: Final = {
    _NOT_ENFORCED: (
        "backlogQuota",
        "backlogQuotaMap",
        "deduplicationSnapshotInterval",
        "dispatcherPauseOnAckStatePersistent",
        "entryFilters",
        "inactiveTopicPolicies",
    ),
    _NOT_LIMITED: ("dispatchRate", "publishRate", "subscribeRate", "subscriptionDispatchRate"),
    _NOT_REPLICATED: ("replication", "replicatorDispatchRate"),
    _NOT_COMPACTED: ("compactionThreshold",),
}
_OF_NAMESPACES: Final = {
    _NOT_ENFORCED: (
        "deduplication",
        "encryptionRequired",
        "maxUnackedMessagesPerSubscription",
        "resourcegroup",
        "resourcegroup/{group}",
        "subscriptionAuthMode",
        "subscriptionExpirationTime",
    ),
    _SINGLE_BROKER: (
        "antiAffinity",
        "bundles",
        "migration",
        "persistence/bookieAffinity",
        "{bundle}/split",
        "{bundle}/topicHashPositions",
        "{bundle}/unload",
    ),
    _NOT_REPLICATED: ("allowedClusters",),
    _PER_TOPIC: (
        "clearBacklog",
        "clearBacklog/{subscription}",
        "unsubscribe/{subscription}",
        "{bundle}/clearBacklog",
        "{bundle}/clearBacklog/{subscription}",
        "{bundle}/unsubscribe/{subscription}",
    ),
    "set and read all properties at once": ("property/{key}", "property/{key}/{value}"),
}
_OF_TOPICS: Final = {
    _NOT_ENFORCED: ("deduplicationEnabled", "maxMessageSize", "maxUnackedMessagesOnSubscription"),
    _NOT_LIMITED: ("{subscription}/dispatchRate",),
    _NOT_REPLICATED: ("shadowTopics", "subscription/{subscription}/replicatedSubscriptionStatus"),
    _NOT_COMPACTED: ("compaction",),
    _PER_TOPIC: ("terminate/partitions",),
    "a missing partition is created by the first client that uses it": ("createMissedPartitions",),
    "stats has the size of every backlog": ("backlogSize",),
    "messages expire by age, at expireMessages/SECONDS": ("subscription/{subscription}/expireMessages",),
}
_OF_SCHEMAS: Final = {
    "an upload checks compatibility": ("compatibility",),
    "schemas lists all versions": ("metadata", "version"),
}
_OF_THE_REST: Final = {
    _SINGLE_BROKER: (
        "/admin/v2/bookies/{rest:path}",
        "/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces",
        "/admin/v2/clusters/{cluster}/{rest:path}",
        "/admin/v2/namespaces/{cluster}/antiAffinity/{group}",
        "/admin/v2/resource-quotas/{rest:path}",
        "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}/bundle",
    ),
    _NOT_ENFORCED: ("/admin/v2/resourcegroups/{rest:path}",),
    "backlog quotas are not enforced": ("/admin/v2/brokers/backlog-quota-check",),
    "settings are at /admin/v2/brokers/configuration/runtime": ("/admin/v2/brokers/internal-configuration",),
    "metrics are at /metrics": ("/admin/v2/broker-stats/{rest:path}",),
    "use persistent://": ("/admin/v2/non-persistent/{rest:path}",),
}


def _refuse(base: str, table: dict[str, tuple[str, ...]]) -> None:
    for reason, paths in table.items():

        async def refuse(call: BrokerCall, reason: str = reason) -> NoReturn:
            raise not_allowed(f"{call.path} is not served: {reason}")

        for path in paths:
            for method in ("GET", "PUT", "POST", "DELETE"):
                RESOURCES.on(method, base + path, Access.KNOWN)(refuse)


_refuse(_NAMESPACE, _OF_BOTH)
_refuse(_NAMESPACE, _OF_NAMESPACES)
_refuse(_TOPIC, _OF_BOTH)
_refuse(_TOPIC, _OF_TOPICS)
_refuse(_SCHEMAS, _OF_SCHEMAS)
_refuse("", _OF_THE_REST)
