"""What holds for a topic: the broker's settings, with those of its namespace and of itself laid over them.

The effective policy *is* a :class:`BrokerConfig`: typed, immutable, checked as a whole, and each value knows the level
that set it. Field by field the topic wins over the namespace, and that over the broker; extra configurations are
united. A partition has the policies of its partitioned topic.

Stored policies that this release cannot read are passed over with a warning, field by field: they were written by
Pulsar or by another release, and one of them must not stop a topic. Whoever sets a policy is told at once instead.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from afterglow.config import SETTINGS, Origin, OriginKind
from afterglow.errors import ConfigError, NotThere
from afterglow.ledger.topic_policies import effective
from afterglow.metadata.names import Domain, TopicName
from afterglow.offload import policy_checks, policy_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.config import BrokerConfig
    from afterglow.ledger.catalog import Catalog
    from afterglow.metadata.names import NamespaceName

log = logging.getLogger(__name__)

NAMESPACE_FIELD: Final = "offload_policies"
"""Where a namespace's policies have its offload policies."""
TOPIC_FIELD: Final = "offloadPolicies"
"""Where a topic's policies have its offload policies."""

_NAMESPACE: Final = Origin(OriginKind.NAMESPACE, "namespace policies")
_TOPIC: Final = Origin(OriginKind.TOPIC, "topic policies")

LEGACY_FIELDS: Final = {
    "offload_threshold": "managedLedgerOffloadThresholdInBytes",
    "offload_threshold_in_seconds": "managedLedgerOffloadThresholdInSeconds",
    "offload_deletion_lag_ms": "managedLedgerOffloadDeletionLagInMillis",
}
"""Fields of a namespace from before there were offload policies; -1 and null say nothing."""

_RETENTION: Final = {
    "retentionTimeInMinutes": "defaultRetentionTimeInMinutes",
    "retentionSizeInMB": "defaultRetentionSizeInMB",
}


def resolve(config: BrokerConfig, namespace: Mapping[str, Any], topic: Mapping[str, Any]) -> BrokerConfig:
    """What holds for a topic.

    Args:
        config: The broker's settings.
        namespace: Its namespace's policies, as Pulsar's JSON.
        topic: Its own policies, as Pulsar's JSON. Empty for what holds in the namespace.

    Raises:
        ConfigError: Values of different levels contradict each other.
    """
    config = _overridden(config, namespace_values(namespace), _NAMESPACE)
    return _overridden(config, topic_values(topic), _TOPIC)


def resolve_stored(
    config: BrokerConfig, namespace: Mapping[str, Any], topic: Mapping[str, Any]
) -> tuple[BrokerConfig, tuple[str, ...]]:
    """What holds for a topic by what is stored, whatever that is.

    A wider level can be changed so that a narrower one contradicts it: then the narrower one gives way whole.

    Returns:
        What holds, and why anything that is stored does not.
    """
    problems = [
        *(f"namespace: {problem}" for problem in policy_json.read(namespace.get(NAMESPACE_FIELD) or {}).problems),
        *(f"topic: {problem}" for problem in policy_json.read(effective(topic).get(TOPIC_FIELD) or {}).problems),
    ]
    for levels in ((namespace, topic), (namespace, {})):
        try:
            return resolve(config, *levels), tuple(problems)
        except ConfigError as error:
            problems.append(str(error))
    return config, tuple(problems)


def namespace_values(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """What a namespace's policies set, by key of the setting."""
    values = {
        key: namespace[name]
        for name, key in LEGACY_FIELDS.items()
        if namespace.get(name) not in {None, -1} and SETTINGS[key].kind.accepts(namespace[name])
    }
    values |= _keeping(namespace.get("retention_policies"), namespace.get("message_ttl_in_seconds"))
    return values | policy_json.read(namespace.get(NAMESPACE_FIELD) or {}).values


def topic_values(topic: Mapping[str, Any]) -> dict[str, Any]:
    """What a topic's own policies set, by key of the setting."""
    own = effective(topic)
    values = _keeping(own.get("retentionPolicies"), own.get("messageTTLInSeconds"))
    return values | policy_json.read(own.get(TOPIC_FIELD) or {}).values


def _keeping(retention: Mapping[str, Any] | None, ttl_s: int | None) -> dict[str, Any]:
    values = {key: retention[name] for name, key in _RETENTION.items() if name in retention} if retention else {}
    return values if ttl_s is None else {**values, "ttlDurationDefaultInSeconds": ttl_s}


def _overridden(config: BrokerConfig, values: Mapping[str, Any], origin: Origin) -> BrokerConfig:
    return config.overridden(values, origin) if values else config


class Policies:
    """What holds for each topic of an engine, read once and kept until it changes. Thread-safe.

    Args:
        config: The broker's settings.
        catalog: Where policies of namespaces and topics are.
        offloads: Whether policies are carried out here: then those that cannot be are logged.
    """

    def __init__(self, config: BrokerConfig, catalog: Catalog, *, offloads: bool = False) -> None:
        self._offloads = offloads
        self._config = config
        self._catalog = catalog
        self._lock = threading.Lock()
        self._known: dict[str, BrokerConfig] = {}
        self._changes = 0
        self._callbacks: list[Callable[[NamespaceName | None], None]] = []

    @property
    def config(self) -> BrokerConfig:
        """The broker's own settings."""
        return self._config

    def of(self, name: str) -> BrokerConfig:
        """What holds for a topic now. Waits for metadata where it is not known yet.

        Args:
            name: The topic's managed-ledger name; that of one partition has what holds for all.

        Raises:
            InvalidName: The name is none.
            MetadataError: The policies cannot be read.
        """
        known = self._known.get(name)
        if known is not None:
            return known
        with self._lock:
            changes = self._changes
        policy = self._read(TopicName.from_managed_ledger_name(name))
        with self._lock:
            if changes == self._changes:  # else it may have been read before the change
                self._known[name] = policy
        return policy

    def changed(self, namespace: NamespaceName | None) -> None:
        """Policies of a namespace or of its topics were changed; None: of any."""
        with self._lock:
            self._changes += 1
            below = "" if namespace is None else f"{namespace}/{Domain.PERSISTENT}/"
            self._known = {name: known for name, known in self._known.items() if not name.startswith(below)}
        for callback in self._callbacks:
            callback(namespace)

    def on_change(self, callback: Callable[[NamespaceName | None], None]) -> None:
        """Have someone called after each change, on the thread of whoever made it; not to wait."""
        self._callbacks.append(callback)

    def _read(self, topic: TopicName) -> BrokerConfig:
        try:
            namespace = self._catalog.policies(topic.namespace)
        except NotThere:  # deleted meanwhile, or never made: what is left of its topics obeys the broker
            namespace = {}
        own = self._catalog.topic_policies(topic)
        policy, problems = resolve_stored(self._config, namespace, own)
        for problem in problems:
            log.warning("policies of %s: passed over until they are changed: %s", topic, problem)
        # A setting of the broker may have been changed since the policies were checked, or another release stored them.
        for unmet in policy_checks.problems(policy) if self._offloads else ():
            log.warning("policies of %s: %s", topic, unmet.text)
        return policy
