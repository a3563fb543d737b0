"""Topic directory over an admin API, of Apache Pulsar or of Afterglow."""

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
from afterglow.source.directory import SourceSegment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.config import BrokerConfig
    from afterglow.format.schema import SchemaVersion
    from afterglow.metadata.admin_client import AdminClient
    from afterglow.metadata.names import TopicName
    from afterglow.source.cluster_hot import ClusterHot
    from afterglow.source.directory import SourceSnapshot

    Json = Mapping[str, Any]

_log = logging.getLogger(__name__)

_AFTERGLOW: Final = "afterglow"
"""JSON field that Afterglow adds to the answers of Pulsar's API."""
_RUNTIME: Final = Origin(OriginKind.FILE, "runtime configuration of a broker")


class AdminDirectory:
    """A :class:`~afterglow.source.directory.TopicDirectory` over an admin API.

    Args:
        api: The admin API.
        hot: Reads entries that no tier has.
        config: The settings of this process, for everything that the cluster does not define.
        service_url: Address of the brokers; None: the admin API is asked for it.
    """

    def __init__(self, api: AdminClient, hot: ClusterHot, config: BrokerConfig, service_url: str | None = None) -> None:
        self._api = api
        self._hot = hot
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
        """Full names of all topics; see :class:`TopicDirectory`."""
        return tuple(
            topic
            for tenant in self._api.tenants()
            for namespace in self._api.namespaces(tenant)
            for topic in sorted(self._api.topics(namespace))
        )

    def names_in_namespace(self, topic: TopicName) -> tuple[str, ...]:
        """Full names in the topic's namespace; see :class:`TopicDirectory`."""
        try:
            known = {*self._api.topics(topic.namespace), *self._api.partitioned_topics(topic.namespace)}
        except AfterglowError:
            return ()  # no such namespace, or no access: the names are only for a hint
        return tuple(sorted(known))

    def partitions(self, topic: TopicName) -> int:
        """Number of partitions of a topic; see :class:`TopicDirectory`."""
        return self._api.partitions(topic)

    def exists(self, topic: TopicName) -> bool:
        """Whether a topic exists; see :class:`TopicDirectory`."""
        return self._api.internal_stats(topic) is not None  # Pulsar's internal-info fails for a missing topic

    # --- one topic ---

    def snapshot(self, topic: TopicName) -> SourceSnapshot:
        """The current state of a topic; see :class:`TopicDirectory`."""
        stats = self._api.internal_stats(topic)
        answer = None if stats is None else self._api.internal_info(topic)
        if stats is None or answer is None:
            raise TopicMissing(f"topic does not exist any more: {topic} in source {self.source}")
        afterglow_part = answer.get(_AFTERGLOW)
        if afterglow_part is not None:
            info, open_entries = _afterglow_ledgers(afterglow_part, topic)
        else:
            info = ledger_list(answer, stats, str(topic))
            end = last_confirmed(stats, str(topic))
            open_entries = {row.ledgerId: 0 for row in info.ledgerInfo if not row.HasField("entries")}
            if end.ledger_id in open_entries:
                open_entries[end.ledger_id] = end.entry_id + 1
        with self._lock:
            self._policies.pop(topic, None)
        service_url = self._service_url or self._find_brokers(topic)
        without = f"{self.source} names no broker that serves {topic}; set service_url, or hot=skip"
        return self._hot.snapshot(
            topic, info, open_entries, service_url, without=without, has_bookies=afterglow_part is None
        )

    def policy(self, topic: TopicName) -> BrokerConfig:
        """Effective policy of a topic; see :class:`TopicDirectory`."""
        with self._lock:
            known = self._policies.get(topic)
        if known is None:
            known = self._fetch_policy(topic)
            with self._lock:
                self._policies[topic] = known
        return known

    def segments(self, topic: TopicName) -> tuple[SourceSegment, ...]:
        """Its offloaded segments, which Apache Pulsar has none of; see :class:`TopicDirectory`."""
        answer = self._api.internal_info(topic) or {}
        given = (answer.get(_AFTERGLOW) or {}).get("segments", [])
        found = (
            SourceSegment.parse(str(topic), base64.b64decode(text), f"{self.source} (segment {number} of {topic})")
            for number, text in enumerate(given)
        )
        return tuple(sorted(found, key=lambda segment: segment.begin))

    def schemas(self, topic: TopicName) -> tuple[SchemaVersion, ...]:
        """Every version of its schema; see :class:`TopicDirectory`."""
        answer = self._api.schemas(topic.base)
        return () if answer is None else schema_versions(answer, str(topic))

    # --- inside ---

    def _find_brokers(self, topic: TopicName) -> str | None:
        found = self._api.lookup(topic) or {}
        plain = found.get("brokerUrl") or None
        secure = found.get("brokerUrlTls") or found.get("brokerUrlSsl") or None
        return (secure or plain) if self._api.secure else (plain or secure)

    def _fetch_policy(self, topic: TopicName) -> BrokerConfig:
        # Pulsar has no policies of single partitions, and refuses the call if topic policies are disabled.
        applied = self._optional(lambda: self._api.offload_policies(topic.base))
        if applied is not None:
            policy, problems = resolve_stored(self._config, {}, {TOPIC_OFFLOAD: _unmasked(applied)})
        else:
            namespace = self._optional(lambda: self._api.namespace_policies(topic.namespace)) or {}
            policy, problems = resolve_stored(self._broker_settings(), namespace, {})
        for problem in problems:
            _log.info("policies of %s: ignored: %s", topic, problem)
        return policy

    def _optional(self, ask: Callable[[], Json | None]) -> Json | None:
        """An answer, or None if access is denied or the call fails: the settings below it apply then."""
        try:
            return ask()
        except (AccessDenied, MetadataUnavailable) as error:
            _log.info("%s: optional request failed: %s", self.source, error)
            return None

    def _broker_settings(self) -> BrokerConfig:
        """The settings of this process, overridden by the runtime configuration of a broker where it is accessible."""
        if self._broker is None:
            shown = self._optional(self._api.runtime_configuration) or {}
            known = {key: shown[key] for key in offload_json.POLICY_SETTINGS if key in shown}
            try:
                self._broker = self._config.overridden(offload_json.read(_unmasked(known)).values, _RUNTIME)
            except ConfigError as error:
                _log.info("broker settings of %s are ignored: %s", self.source, error)
                self._broker = self._config
        return self._broker


def _unmasked(fields: Json) -> Json:
    """Policies without masked secrets, which come from the environment."""
    return {name: value for name, value in fields.items() if value != offload_json.MASK}


def _afterglow_ledgers(afterglow_part: Json, topic: TopicName) -> tuple[ManagedLedgerInfo, dict[int, int]]:
    """The part of an answer that Afterglow adds: the stored ledger list, and the entries of open ledgers."""
    try:
        info = ManagedLedgerInfo.FromString(base64.b64decode(afterglow_part["info"]))
        return info, {int(ledger_id): int(entries) for ledger_id, entries in afterglow_part["written"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, DecodeError) as error:
        raise CorruptMetadata(f"{topic}: invalid ledger list from the admin API: {error!r}") from error
