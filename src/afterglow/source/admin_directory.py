"""The topics of a cluster as its admin API tells of them: of an Apache Pulsar, or of an Afterglow."""

from __future__ import annotations

import base64
import logging
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from afterglow.config import Origin, OriginKind
from afterglow.errors import (
    AccessDenied,
    AfterglowError,
    ConfigError,
    CorruptMetadata,
    MetadataUnavailable,
    TopicMissing,
)
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.metadata.admin_responses import last_confirmed, ledger_list, schema_versions
from afterglow.policy import offload_json
from afterglow.policy.fields import TOPIC_OFFLOAD
from afterglow.policy.resolver import resolve_stored
from afterglow.read.hot_readers import HotLocation, NoHot, RemoteHot
from afterglow.source.directory import Look, SourceSegment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.config import BrokerConfig
    from afterglow.format.schema import SchemaVersion
    from afterglow.metadata.admin_client import AdminClient
    from afterglow.metadata.cluster_credentials import ClusterCredentials
    from afterglow.metadata.names import TopicName

    Json = Mapping[str, Any]

_log = logging.getLogger(__name__)

_OURS: Final = "afterglow"
"""Where an Afterglow adds to what Pulsar answers."""
_RUNTIME: Final = Origin(OriginKind.FILE, "runtime configuration of a broker")


class AdminDirectory:
    """A :class:`~afterglow.source.directory.TopicDirectory` over an admin API.

    Args:
        api: The admin API.
        credentials: Credentials for the brokers.
        config: The settings of this process: they hold where the cluster says nothing.
        service_url: The brokers, where the admin API is not to be asked for them.
    """

    def __init__(
        self, api: AdminClient, credentials: ClusterCredentials, config: BrokerConfig, service_url: str | None = None
    ) -> None:
        self._api = api
        self._credentials = credentials
        self._config = config
        self._service_url = service_url
        self._lock = Lock()
        self._policies: dict[TopicName, BrokerConfig] = {}
        self._broker: BrokerConfig | None = None

    @property
    def source(self) -> str:
        """Its address, for messages."""
        return self._api.url

    # --- names ---

    def topics(self) -> tuple[str, ...]:
        """Full names of all topics; see the protocol."""
        return tuple(
            topic
            for tenant in self._api.tenants()
            for namespace in self._api.namespaces(tenant)
            for topic in sorted(self._api.topics(namespace))
        )

    def names_beside(self, topic: TopicName) -> tuple[str, ...]:
        """Full names in the topic's namespace; see the protocol."""
        try:
            known = {*self._api.topics(topic.namespace), *self._api.partitioned_topics(topic.namespace)}
        except AfterglowError:
            return ()  # no such namespace, or none of our concern: it is only for a hint
        return tuple(sorted(known))

    def partitions(self, topic: TopicName) -> int:
        """How many partitions a topic has; see the protocol."""
        return self._api.partitions(topic)

    def exists(self, topic: TopicName) -> bool:
        """Whether there is such a topic; see the protocol."""
        return self._api.internal_stats(topic) is not None  # to a question for its list Pulsar answers with a failure

    # --- one topic ---

    def look(self, topic: TopicName) -> Look:
        """A topic as it is now; see the protocol.

        Raises:
            TopicMissing: There is no such topic any more.
            CorruptMetadata: What is told of it makes no sense.
        """
        stats = self._api.internal_stats(topic)
        answer = None if stats is None else self._api.internal_info(topic)
        if stats is None or answer is None:
            raise TopicMissing(f"source {self.source} has no topic {topic} any more")
        ours = answer.get(_OURS)
        if ours is not None:
            info, written = _our_list(ours, topic)
        else:
            info = ledger_list(answer, stats, str(topic))
            end = last_confirmed(stats, str(topic))
            written = {row.ledgerId: 0 for row in info.ledgerInfo if not row.HasField("entries")}
            if end.ledger_id in written:
                written[end.ledger_id] = end.entry_id + 1
        with self._lock:
            self._policies.pop(topic, None)
        return self._looked(topic, info, written)

    def policy(self, topic: TopicName) -> BrokerConfig:
        """What holds for a topic; see the protocol."""
        with self._lock:
            known = self._policies.get(topic)
        if known is None:
            known = self._ask_policy(topic)
            with self._lock:
                self._policies[topic] = known
        return known

    def segments(self, topic: TopicName) -> tuple[SourceSegment, ...]:
        """Its offloaded segments, which Apache Pulsar has none of; see the protocol.

        Raises:
            CorruptMetadata: A record is damaged.
        """
        answer = self._api.internal_info(topic) or {}
        given = (answer.get(_OURS) or {}).get("segments", [])
        found = (
            SourceSegment.parse(str(topic), base64.b64decode(text), f"{self.source} (segment {number} of {topic})")
            for number, text in enumerate(given)
        )
        return tuple(sorted(found, key=lambda segment: segment.begin))

    def schemas(self, topic: TopicName) -> tuple[SchemaVersion, ...]:
        """Every version of its schema; see the protocol."""
        answer = self._api.schemas(topic.base)
        return () if answer is None else schema_versions(answer, str(topic))

    # --- inside ---

    def _looked(self, topic: TopicName, info: ManagedLedgerInfo, written: Mapping[int, int]) -> Look:
        service_url = self._service_url or self._find_brokers(topic)
        if service_url is None:
            reason = f"{self.source} names no broker that serves {topic}; give service_url, or hot=skip"
            return Look(info, NoHot(reason), None)
        location = HotLocation(topic=str(topic), service_url=service_url, credentials=self._credentials)
        known = {row.ledgerId: row.entries for row in info.ledgerInfo if row.HasField("entries")}
        newest = max(written, default=None)
        return Look(info, RemoteHot(location.address(), str(topic), {**known, **written}, newest), location)

    def _find_brokers(self, topic: TopicName) -> str | None:
        found = self._api.lookup(topic) or {}
        plain = found.get("brokerUrl") or None
        secure = found.get("brokerUrlTls") or found.get("brokerUrlSsl") or None
        return (secure or plain) if self._api.secure else (plain or secure)

    def _ask_policy(self, topic: TopicName) -> BrokerConfig:
        # Of a partition Pulsar tells nothing; where topics have no policies of their own, it refuses the question.
        applied = self._if_told(lambda: self._api.offload_policies(topic.base))
        if applied is not None:
            policy, problems = resolve_stored(self._config, {}, {TOPIC_OFFLOAD: _unmasked(applied)})
        else:
            namespace = self._if_told(lambda: self._api.namespace_policies(topic.namespace)) or {}
            policy, problems = resolve_stored(self._broker_settings(), namespace, {})
        for problem in problems:
            _log.info("policies of %s: passed over: %s", topic, problem)
        return policy

    def _if_told(self, ask: Callable[[], Json | None]) -> Json | None:
        """An answer, or None where we may not have it, or nobody has: what is needed may be known otherwise."""
        try:
            return ask()
        except (AccessDenied, MetadataUnavailable) as error:
            _log.info("%s does not tell: %s", self.source, error)
            return None

    def _broker_settings(self) -> BrokerConfig:
        """The settings of this process under those that a broker shows to whoever may see them."""
        if self._broker is None:
            shown = self._if_told(self._api.runtime_configuration) or {}
            told = {key: shown[key] for key in offload_json.POLICY_SETTINGS if key in shown}
            try:
                self._broker = self._config.overridden(offload_json.read(_unmasked(told)).values, _RUNTIME)
            except ConfigError as error:
                _log.info("settings of the brokers of %s are passed over: %s", self.source, error)
                self._broker = self._config
        return self._broker


def _unmasked(fields: Json) -> Json:
    """Policies without the secrets that are not shown: these come from the environment."""
    return {name: value for name, value in fields.items() if value != offload_json.MASK}


def _our_list(ours: Json, topic: TopicName) -> tuple[ManagedLedgerInfo, dict[int, int]]:
    """What an Afterglow adds: the list as it is stored, and the entries of ledgers that it leaves open."""
    try:
        info = ManagedLedgerInfo.FromString(base64.b64decode(ours["info"]))
        return info, {int(ledger_id): int(entries) for ledger_id, entries in ours["written"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, DecodeError) as error:
        raise CorruptMetadata(f"{topic}: what the admin API tells of its ledgers makes no sense: {error!r}") from error
