"""Policies and settings of a Pulsar cluster that apply to its topics, read from the admin API with their origins."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from afterglow.errors import AccessDenied, CorruptMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from afterglow.metadata.names import NamespaceName, TopicName

    Json: TypeAlias = Mapping[str, Any]

T = TypeVar("T")

_READERS: Final = 8
"""Topics whose policies are read at a time."""
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """An effective value, with its origin."""

    value: T
    origin: str
    """Where it is set, in words: ``topic``, ``topic (global)``, ``namespace public/default`` or ``broker``."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that could not be read."""

    reason: str


class QuotaType(StrEnum):
    """What a backlog quota limits."""

    SIZE = "destination_storage"
    AGE = "message_age"


class QuotaPolicy(StrEnum):
    """What happens when a backlog quota is exceeded."""

    HOLD_PRODUCERS = "producer_request_hold"
    REFUSE_PRODUCERS = "producer_exception"
    EVICT = "consumer_backlog_eviction"


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """An effective backlog quota that has a limit."""

    kind: QuotaType
    limit: int
    """Bytes, or seconds; 0 is exceeded by the first entry."""
    policy: QuotaPolicy


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention of acknowledged entries; -1 is without limit."""

    minutes: int
    size_mib: int


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Settings of the brokers. All brokers of a cluster are expected to have the same."""

    version: str | None
    """The release; None if the API does not return it."""
    runtime: Mapping[str, str] | Unknown
    """Runtime configuration, which needs a superuser."""

    @property
    def system_cursors(self) -> frozenset[str] | Unknown:
        """``additionalSystemCursorNames``; empty in releases that do not have it."""
        if isinstance(self.runtime, Unknown):
            return self.runtime
        names = self.runtime.get("additionalSystemCursorNames", "").strip("[]{} ")
        return frozenset(name.strip() for name in names.split(",") if name.strip())

    def is_enabled(self, name: str, *, default: bool) -> bool | Unknown:
        """A setting that is true or false."""
        if isinstance(self.runtime, Unknown):
            return self.runtime
        return {"true": True, "false": False}.get(self.runtime.get(name, ""), default)


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What applies to a topic, or to every partition of a partitioned one."""

    topic: str
    """Full name, without partition."""
    broker: BrokerSettings
    ttl_s: Setting[int] | Unknown
    """Message TTL; 0 is without limit."""
    backlog_quotas: tuple[Setting[BacklogQuota], ...] | Unknown
    subscription_expiration_minutes: Setting[int] | Unknown
    """0 is never."""
    retention: Setting[Retention] | Unknown
    max_subscriptions: Setting[int] | Unknown
    """0 is without limit."""
    subscriptions: tuple[str, ...] | Unknown
    """Names of the subscriptions that exist."""
    auth_mode: Setting[str] | Unknown
    """``subscription_auth_mode``: ``None`` or ``Prefix``."""
    auto_creation: Setting[bool] | Unknown
    """Whether a consumer may create its subscription."""


# --- reading --------------------------------------------------------------------------------------------------------


class AdminApi(Protocol):
    """The methods of :class:`~afterglow.metadata.admin_client.AdminClient` that are needed here."""

    def version(self) -> str | None:
        """Return the release of the broker."""
        ...

    def runtime_configuration(self) -> dict[str, Any] | None:
        """Return the runtime configuration of a broker."""
        ...

    def namespace_policies(self, namespace: NamespaceName) -> dict[str, Any] | None:
        """Return all policies of a namespace."""
        ...

    def topic_policy(self, topic: TopicName, policy: str, *, is_global: bool = False) -> Any:
        """Return the value that is set for a topic itself."""
        ...

    def subscriptions(self, topic: TopicName) -> tuple[str, ...]:
        """Return the names of the subscriptions of a topic."""
        ...


class SettingsReader:
    """Reads what applies to topics: settings of the brokers once, policies of each namespace once, then of each topic.

    Policies of topics take precedence over those of their namespace, and these over settings of the brokers. Global
    topic policies are read where a namespace is replicated. What the token may not read is :class:`Unknown`.

    Args:
        api: The admin API of the cluster.
    """

    def __init__(self, api: AdminApi) -> None:
        self._api = api
        self._broker: BrokerSettings | None = None
        self._namespaces: dict[NamespaceName, Json | Unknown] = {}

    def read(self, topics: Iterable[TopicName]) -> tuple[TopicSettings, ...]:
        """Read what applies to topics; partitions of one topic have the same, which is read and returned once.

        Raises:
            MetadataUnavailable: The API does not respond.
            CorruptMetadata: A response is invalid.
        """
        bases = tuple(dict.fromkeys(topic.base for topic in topics))
        broker = self._read_broker()
        for namespace in dict.fromkeys(topic.namespace for topic in bases):
            self._read_namespace(namespace)
        with ThreadPoolExecutor(_READERS, "afterglow-cluster-checks") as pool:
            return tuple(pool.map(lambda topic: self._read_topic(topic, broker), bases))

    def read_backlog_quotas(self, topic: TopicName) -> tuple[Setting[BacklogQuota], ...] | Unknown:
        """Read the backlog quotas of a topic alone, by one request once those of its namespace are known.

        Raises:
            MetadataUnavailable: The API does not respond.
            CorruptMetadata: A response is invalid.
        """
        broker = self._read_broker()
        self._read_namespace(topic.namespace)
        return _TopicReader(self._api, topic.base, self._namespaces[topic.namespace], broker).backlog_quotas()

    def _read_broker(self) -> BrokerSettings:
        if self._broker is None:
            try:
                found = self._api.runtime_configuration()
                runtime: Mapping[str, str] | Unknown = (
                    Unknown("the admin API does not return the runtime configuration")
                    if found is None
                    else {name: str(value) for name, value in found.items()}
                )
            except AccessDenied as error:
                runtime = Unknown(str(error))
            self._broker = BrokerSettings(self._api.version(), runtime)
        return self._broker

    def _read_namespace(self, namespace: NamespaceName) -> None:
        if namespace not in self._namespaces:
            try:
                self._namespaces[namespace] = self._api.namespace_policies(namespace) or {}
            except AccessDenied as error:
                self._namespaces[namespace] = Unknown(str(error))

    def _read_topic(self, topic: TopicName, broker: BrokerSettings) -> TopicSettings:
        namespace = self._namespaces[topic.namespace]
        read = _TopicReader(self._api, topic, namespace, broker)
        try:
            subscriptions: tuple[str, ...] | Unknown = self._api.subscriptions(topic)
        except AccessDenied as error:
            subscriptions = Unknown(str(error))
        return TopicSettings(
            str(topic),
            broker,
            ttl_s=read.number("messageTTL", "message_ttl_in_seconds", "ttlDurationDefaultInSeconds"),
            backlog_quotas=read.backlog_quotas(),
            subscription_expiration_minutes=read.number(
                "subscriptionExpirationTime",
                "subscription_expiration_time_minutes",
                "subscriptionExpirationTimeMinutes",
            ),
            retention=read.retention(),
            max_subscriptions=read.number(
                "maxSubscriptionsPerTopic", "max_subscriptions_per_topic", "maxSubscriptionsPerTopic"
            ),
            subscriptions=subscriptions,
            auth_mode=read.auth_mode(),
            auto_creation=read.auto_creation(),
        )


class _TopicReader:
    """Reads the policies of one topic and resolves them."""

    def __init__(self, api: AdminApi, topic: TopicName, namespace: Json | Unknown, broker: BrokerSettings) -> None:
        self._api = api
        self._topic = topic
        self._namespace = namespace
        self._broker = broker
        clusters = () if isinstance(namespace, Unknown) else namespace.get("replication_clusters") or ()
        self._levels = (False, True) if len(clusters) > 1 else (False,)

    def number(self, policy: str, field: str, setting: str) -> Setting[int] | Unknown:
        found = self._of_topic(policy)
        if isinstance(found, Unknown):
            return found
        if found is None:
            found = self._of_namespace(field)
        if isinstance(found, Unknown):
            return found
        if found is None:
            found = self._of_broker(setting)
        if isinstance(found, Unknown):
            return found
        return replace(found, value=_as_int(policy, found))

    def backlog_quotas(self) -> tuple[Setting[BacklogQuota], ...] | Unknown:
        of_topic = self._of_topic("backlogQuotaMap")
        of_namespace = self._of_namespace("backlog_quota_map")
        found: list[Setting[BacklogQuota]] = []
        for kind in QuotaType:
            quota: Setting[BacklogQuota | None] | Unknown | None = None
            for level in (of_topic, of_namespace):
                if quota is None and level is not None:
                    quota = level if isinstance(level, Unknown) else _quota(kind, level)
            if quota is None:
                quota = self._broker_quota(kind)
            if isinstance(quota, Unknown):
                return quota
            if quota.value is not None:
                found.append(Setting(quota.value, quota.origin))
        return tuple(found)

    def retention(self) -> Setting[Retention] | Unknown:
        found = self._of_topic("retention")
        if found is None:
            found = self._of_namespace("retention_policies")
        if isinstance(found, Unknown):
            return found
        if found is not None:
            given = _as_object("retention", found)
            value = Retention(int(given.get("retentionTimeInMinutes", 0)), int(given.get("retentionSizeInMB", 0)))
            return Setting(value, found.origin)
        minutes, size = self._of_broker("defaultRetentionTimeInMinutes"), self._of_broker("defaultRetentionSizeInMB")
        if isinstance(minutes, Unknown):
            return minutes
        if isinstance(size, Unknown):
            return size
        value = Retention(_as_int("defaultRetentionTimeInMinutes", minutes), _as_int("defaultRetentionSizeInMB", size))
        return Setting(value, "broker")

    def auth_mode(self) -> Setting[str] | Unknown:
        found = self._of_namespace("subscription_auth_mode")
        if isinstance(found, Unknown):
            return found
        return Setting("None", "default of Pulsar") if found is None else replace(found, value=str(found.value))

    def auto_creation(self) -> Setting[bool] | Unknown:
        found = self._of_namespace("autoSubscriptionCreationOverride")
        if isinstance(found, Unknown):
            return found
        if found is not None:
            given = _as_object("autoSubscriptionCreationOverride", found)
            return Setting(bool(given.get("allowAutoSubscriptionCreation", True)), found.origin)
        enabled = self._broker.is_enabled("allowAutoSubscriptionCreation", default=True)
        return enabled if isinstance(enabled, Unknown) else Setting(enabled, "broker")

    def _of_topic(self, policy: str) -> Setting[Any] | Unknown | None:
        try:
            for is_global in self._levels:
                value = self._api.topic_policy(self._topic, policy, is_global=is_global)
                if value is not None and value != {}:
                    return Setting(value, "topic (global)" if is_global else "topic")
        except AccessDenied as error:
            return Unknown(str(error))
        return None

    def _of_namespace(self, field: str) -> Setting[Any] | Unknown | None:
        if isinstance(self._namespace, Unknown):
            return self._namespace
        value = self._namespace.get(field)
        return None if value is None else Setting(value, f"namespace {self._topic.namespace}")

    def _of_broker(self, setting: str) -> Setting[Any] | Unknown:
        if isinstance(self._broker.runtime, Unknown):
            return self._broker.runtime
        return Setting(self._broker.runtime.get(setting) or 0, "broker")

    def _broker_quota(self, kind: QuotaType) -> Setting[BacklogQuota | None] | Unknown:
        runtime = self._broker.runtime
        if isinstance(runtime, Unknown):
            return runtime
        policy = QuotaPolicy(runtime.get("backlogQuotaDefaultRetentionPolicy") or QuotaPolicy.HOLD_PRODUCERS)
        if kind is QuotaType.AGE:
            limit = int(runtime.get("backlogQuotaDefaultLimitSecond") or -1)
            is_limited = limit > 0
        else:
            limit = int(runtime.get("backlogQuotaDefaultLimitBytes") or -1)
            if limit < 0:
                limit = int(float(runtime.get("backlogQuotaDefaultLimitGB") or -1) * _GIB)
            is_limited = limit > 0
        return Setting(BacklogQuota(kind, limit, policy) if is_limited else None, "broker")


def _quota(kind: QuotaType, found: Setting[Any]) -> Setting[BacklogQuota | None] | None:
    """The quota of one kind in a map of quotas; None if the map has none of that kind."""
    given = _as_object("backlogQuota", found).get(kind.value)
    if given is None:
        return None
    try:
        # Old releases wrote the size as "limit".
        size = given.get("limitSize", given.get("limit", -1))
        limit = int(size if kind is QuotaType.SIZE else given.get("limitTime", -1))
        policy = QuotaPolicy(given.get("policy") or QuotaPolicy.HOLD_PRODUCERS)
    except (AttributeError, TypeError, ValueError) as error:
        raise CorruptMetadata(f"backlogQuota of {found.origin} is not a valid quota: {given!r}") from error
    is_limited = limit >= 0 if kind is QuotaType.SIZE else limit > 0
    return Setting(BacklogQuota(kind, limit, policy) if is_limited else None, found.origin)


def _as_int(name: str, found: Setting[Any]) -> int:
    try:
        return int(found.value)
    except (TypeError, ValueError) as error:
        raise CorruptMetadata(f"{name} of {found.origin} is not a number: {found.value!r}") from error


def _as_object(name: str, found: Setting[Any]) -> Json:
    if not isinstance(found.value, dict):
        raise CorruptMetadata(f"{name} of {found.origin} is not a JSON object: {found.value!r}")
    return found.value
