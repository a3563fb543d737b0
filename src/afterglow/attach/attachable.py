"""Rules by which topics are left out of attach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from afterglow.metadata.names import Domain

if TYPE_CHECKING:
    from afterglow.metadata.names import TopicName

_BROKER_TENANTS: Final = {
    "pulsar": "tenant pulsar belongs to the brokers (system namespace, health checks)",
    "sla-monitor": "tenant sla-monitor belongs to the brokers",
}
_EVENT_TOPICS: Final = {
    "__change_events": "__change_events holds topic policies",
    "__transaction_buffer_snapshot": "transaction buffer snapshots are a system topic",
    "__transaction_buffer_snapshot_segments": "transaction buffer snapshots are a system topic",
    "__transaction_buffer_snapshot_indexes": "transaction buffer snapshots are a system topic",
}


def exclusion_rule(topic: TopicName) -> str | None:
    """Return the rule by which a topic is not attached; None if it is attachable. Pure."""
    if topic.domain is Domain.NON_PERSISTENT:
        return "non-persistent topics are not stored"
    if rule := _BROKER_TENANTS.get(topic.namespace.tenant):
        return rule
    name = topic.base.local_name
    if rule := _EVENT_TOPICS.get(name):
        return rule
    if name.endswith("__transaction_pending_ack"):
        return "…__transaction_pending_ack is a log of transactions"
    if name.startswith("__transaction_log_"):
        return "__transaction_log_… is a log of transactions"
    if name.startswith("__"):
        return "names that begin with __ are those of system topics, which are not offloaded"
    return None


def is_attachable(topic: TopicName) -> bool:
    """Return whether a topic can be attached; :func:`exclusion_rule` names the rule if not. Pure."""
    return exclusion_rule(topic) is None
