"""Effective policy of a topic: broker settings overridden by namespace and topic policies.

The effective policy *is* a :class:`BrokerConfig`: typed, immutable, validated as a whole, and with the origin of each
value. For each field the topic overrides the namespace, which overrides the broker; extra configurations are merged. A
partition has the policies of its partitioned topic.

Stored values that this release cannot read are ignored one by one, with a warning: Pulsar or another release wrote
them, and they must not stop a topic. A caller that sets such a value gets an error.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from afterglow.config import Origin, OriginKind
from afterglow.errors import ConfigError, NotFound
from afterglow.metadata.names import Domain, TopicName
from afterglow.policy import validation
from afterglow.policy.fields import DELETED, namespace_settings, topic_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.catalog.catalog import Catalog
    from afterglow.config import BrokerConfig
    from afterglow.metadata.names import NamespaceName
    from afterglow.policy.fields import LevelSettings

    EffectivePolicy: TypeAlias = BrokerConfig
    Stored: TypeAlias = Mapping[str, Any]

log = logging.getLogger(__name__)

NAMESPACE: Final = Origin(OriginKind.NAMESPACE, "namespace policies")
TOPIC: Final = Origin(OriginKind.TOPIC, "topic policies")

_VALIDATION: Final = "isSchemaValidationEnforced"


def resolve(config: BrokerConfig, namespace: Stored, topic: Stored) -> EffectivePolicy:
    """The effective policy of a topic.

    Args:
        config: The broker's settings.
        namespace: Its namespace's policies, as Pulsar's JSON.
        topic: Its own policies, as Pulsar's JSON. Empty for the effective policy of the namespace.

    Raises:
        ConfigError: Values of different levels contradict each other.
    """
    policy = overridden(config, namespace_settings(namespace).all, NAMESPACE)
    return overridden(policy, topic_settings(topic).all, TOPIC)


def resolve_stored(config: BrokerConfig, namespace: Stored, topic: Stored) -> tuple[EffectivePolicy, tuple[str, ...]]:
    """The effective policy of a topic; stored policies that are not valid are ignored.

    A change of a namespace can contradict offload policies of a topic. Then the offload policies of the topic are
    ignored as a whole. Its other policies stay effective: above all retention, which decides what is deleted.

    Returns:
        The policy, and the reasons why stored values are ignored.
    """
    policy, of_namespace = _with_level(config, namespace_settings(namespace), NAMESPACE)
    policy, of_topic = _with_level(policy, topic_settings(topic), TOPIC)
    return policy, (*of_namespace, *of_topic)


def _with_level(policy: BrokerConfig, settings: LevelSettings, origin: Origin) -> tuple[BrokerConfig, tuple[str, ...]]:
    problems = [f"{origin.kind.level}: {problem}" for problem in settings.problems]
    try:
        return overridden(policy, settings.all, origin), tuple(problems)
    except ConfigError as error:
        return overridden(policy, settings.plain, origin), (*problems, str(error))


def overridden(config: BrokerConfig, values: Mapping[str, Any], origin: Origin) -> BrokerConfig:
    """Settings overridden by those of one level.

    Raises:
        ConfigError: A value contradicts another setting.
    """
    # Schema validation that the broker enforces cannot be disabled; a topic can disable that of its namespace.
    is_enforced = config.is_schema_validation_enforced and config.origin(_VALIDATION).kind.level != "namespace"
    if is_enforced and _VALIDATION in values:
        values = {key: value for key, value in values.items() if key != _VALIDATION}
    return config.overridden(values, origin) if values else config


class Policies:
    """Effective policies of all topics, cached until they change. Thread-safe.

    Args:
        config: The broker's settings.
        catalog: Stores the policies of namespaces and topics.
        offloads: Whether this process offloads: then policies that it cannot apply are logged.
    """

    def __init__(self, config: BrokerConfig, catalog: Catalog, *, offloads: bool = False) -> None:
        self._offloads = offloads
        self._config = config
        self._catalog = catalog
        self._lock = threading.Lock()
        self._cache: dict[str, EffectivePolicy] = {}
        # Topics without policies of their own share the policy of their namespace: one read and one object for all.
        self._namespaces: dict[NamespaceName, tuple[EffectivePolicy, tuple[str, ...]]] = {}
        self._changes = 0
        self._callbacks: list[Callable[[NamespaceName | None], None]] = []

    @property
    def config(self) -> BrokerConfig:
        """The broker's own settings."""
        return self._config

    def of(self, name: str) -> EffectivePolicy:
        """The effective policy of a topic. Waits for metadata where it is not cached.

        Args:
            name: The topic's managed-ledger name; a partition has the policy of its partitioned topic.

        Raises:
            InvalidName: The name is not that of a topic.
            MetadataError: The policies cannot be read.
        """
        cached = self._cache.get(name)
        if cached is not None:
            return cached
        topic = TopicName.from_managed_ledger_name(name)
        with self._lock:
            changes = self._changes
            base = self._namespaces.get(topic.namespace)
        base = base or self._read_namespace(topic.namespace)
        policy = self._read_topic(topic, *base)
        with self._lock:
            if changes == self._changes:  # else the policies may have been read before the change
                self._cache[name] = policy
                self._namespaces[topic.namespace] = base
        return policy

    def of_namespace(self, namespace: NamespaceName) -> tuple[EffectivePolicy, bool]:
        """The effective policy of a namespace, and whether it is being deleted. Always read from metadata.

        Raises:
            NotFound: The namespace does not exist.
            MetadataError: The policies cannot be read.
        """
        stored = self._catalog.policies(namespace)
        return resolve_stored(self._config, stored, {})[0], bool(stored.get(DELETED))

    def changed(self, namespace: NamespaceName | None) -> None:
        """Drop the cached policies of a namespace and its topics, or of all, and notify of the change."""
        with self._lock:
            self._changes += 1
            below = "" if namespace is None else f"{namespace}/{Domain.PERSISTENT}/"
            self._cache = {name: cached for name, cached in self._cache.items() if not name.startswith(below)}
            kept = {} if namespace is None else {key: at for key, at in self._namespaces.items() if key != namespace}
            self._namespaces = kept
        for callback in self._callbacks:
            callback(namespace)

    def on_change(self, callback: Callable[[NamespaceName | None], None]) -> None:
        """Register a callback for changes. It runs on the thread that made the change and must not wait."""
        self._callbacks.append(callback)

    def _read_namespace(self, namespace: NamespaceName) -> tuple[EffectivePolicy, tuple[str, ...]]:
        try:
            stored = self._catalog.policies(namespace)
        except NotFound:  # deleted meanwhile, or never created: the broker's settings apply
            stored = {}
        return _with_level(self._config, namespace_settings(stored), NAMESPACE)

    def _read_topic(self, topic: TopicName, base: EffectivePolicy, problems: tuple[str, ...]) -> EffectivePolicy:
        policy, own = _with_level(base, topic_settings(self._catalog.topic_policies(topic)), TOPIC)
        for problem in (*problems, *own):
            log.warning("policies of %s: ignored until changed: %s", topic, problem)
        # A setting of the broker may have changed since the policies were validated, or another release stored them.
        for unmet in validation.problems(policy) if self._offloads else ():
            log.warning("policies of %s: %s", topic, unmet.text)
        return policy
