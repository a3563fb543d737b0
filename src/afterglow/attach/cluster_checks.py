"""Checks of what applies to a topic of a Pulsar cluster for danger to unread entries, producers, or our subscription.

What a token may not read counts as a risk too, since it cannot be excluded. Rules of Apache Pulsar:

* Message TTL acknowledges old entries on behalf of every subscription, except those in ``additionalSystemCursorNames``
  (4.0 and newer).
* Inactive subscriptions are deleted after ``subscriptionExpirationTimeMinutes`` without a consumer. Names in
  ``additionalSystemCursorNames`` are spared only since apache/pulsar#26149 (4.0.13, 4.2.4, 5.0.0).
* Backlog quotas count the slowest subscription, whatever its name. ``consumer_backlog_eviction`` skips entries;
  ``producer_request_hold`` and ``producer_exception`` disconnect producers. ``backlogQuotaCheckEnabled=false`` stops
  both, but new producers are still refused.
* Retention applies to acknowledged entries: it neither holds back nor endangers others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from afterglow.attach.cluster_settings import QuotaPolicy, QuotaType, Unknown
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from afterglow.attach.cluster_settings import BacklogQuota, Setting, TopicSettings

RELEASE_SHARE: Final = 0.7
"""Share of a backlog quota at which ``--when-behind release`` gives up the hold."""


class Consequence(StrEnum):
    """What a policy may do to a subscription that is behind, or because of it."""

    DROPS_ENTRIES = "drops entries that are not in the tier"
    BLOCKS_PRODUCERS = "blocks producers"
    DELETES_SUBSCRIPTION = "deletes the subscription"
    REFUSES_SUBSCRIPTION = "refuses the subscription"
    UNKNOWN = "cannot be excluded"


class WhenBehind(StrEnum):
    """What happens when the tier is behind so far that a backlog quota is nearly exceeded."""

    HOLD = "hold"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Risk:
    """A policy or setting that must be changed or accepted before a topic is attached."""

    topic: str
    policy: str
    """Its name in Pulsar."""
    value: str
    origin: str
    """Where it is set; for an unknown value, why it is unknown."""
    consequence: Consequence
    detail: str
    """What may happen, and when."""
    fix: str

    def __str__(self) -> str:
        return (
            f"{self.topic}: {self.policy}={self.value} ({self.origin}) {self.consequence}: {self.detail}; {self.fix}, "
            "or accept it with --accept-risk"
        )


def check(
    settings: TopicSettings, subscription: str, *, when_behind: WhenBehind = WhenBehind.HOLD, role: str | None = None
) -> tuple[Risk, ...]:
    """Return what may drop unread entries, block producers, or delete or refuse the subscription. Pure.

    Args:
        settings: What applies to the topic.
        subscription: Name of our subscription.
        when_behind: ``RELEASE`` gives up the hold before a size quota blocks producers; see :func:`release_bytes`.
        role: Role of our token; None if it is not known.
    """
    risks = [
        _check_ttl(settings, subscription),
        *_check_quotas(settings, when_behind),
        _check_expiration(settings, subscription),
        _check_max_subscriptions(settings, subscription),
        _check_auth_mode(settings, subscription, role),
        _check_auto_creation(settings, subscription),
    ]
    return tuple(risk for risk in risks if risk is not None)


def release_bytes(quotas: tuple[Setting[BacklogQuota], ...] | Unknown, share: float = RELEASE_SHARE) -> int | None:
    """Return the backlog at which ``--when-behind release`` gives up the hold; None if the topic has no size quota.

    Pure. If the quotas could not be read the result is None as well; :func:`check` then reports a risk.
    """
    if isinstance(quotas, Unknown):
        return None
    limits = [quota.value.limit for quota in quotas if quota.value.kind is QuotaType.SIZE]
    return int(min(limits) * share) if limits else None


def spares_ttl(version: str | None) -> bool:
    """Return whether a release spares names in ``additionalSystemCursorNames`` from message TTL. Pure."""
    release = _release(version)
    return release is not None and release >= (4, 0, 0)


def spares_expiration(version: str | None) -> bool:
    """Return whether a release spares these names from inactivity expiry, as of apache/pulsar#26149. Pure."""
    release = _release(version)
    if release is None:
        return False
    if release[:2] == (4, 0):
        return release >= (4, 0, 13)
    is_milestone = release == (5, 0, 0) and "-" in str(version)
    return release >= (4, 2, 4) and not is_milestone


_RELEASE: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def _release(version: str | None) -> tuple[int, int, int] | None:
    found = _RELEASE.match(version or "")
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def _check_ttl(settings: TopicSettings, subscription: str) -> Risk | None:
    ttl = settings.ttl_s
    if isinstance(ttl, Unknown):
        return _unknown(settings, "messageTTL", ttl, "message TTL acknowledges entries that are not in the tier")
    if ttl.value <= 0:
        return None
    version, system_cursors = settings.broker.version, settings.broker.system_cursors
    spared = not isinstance(system_cursors, Unknown) and subscription in system_cursors
    if spared and spares_ttl(version):
        return None
    detail = f"entries older than {ttl.value} s are acknowledged on behalf of subscription {subscription!r}"
    if isinstance(system_cursors, Unknown) and spares_ttl(version):
        detail += f", unless additionalSystemCursorNames has it, which cannot be read: {system_cursors.reason}"
    fix = "remove the TTL: pulsar-admin topics remove-message-ttl, or namespaces remove-message-ttl"
    if not spared:
        fix = f"add {subscription} to additionalSystemCursorNames of the brokers (4.0 and newer), or {fix}"
    return Risk(settings.topic, "messageTTL", f"{ttl.value} s", ttl.origin, Consequence.DROPS_ENTRIES, detail, fix)


def _check_quotas(settings: TopicSettings, when_behind: WhenBehind) -> list[Risk]:
    quotas = settings.backlog_quotas
    if isinstance(quotas, Unknown):
        what = "a backlog quota skips entries that are not in the tier, or blocks producers"
        return [_unknown(settings, "backlogQuota", quotas, what)]
    return [risk for quota in quotas if (risk := _check_quota(settings, quota, when_behind)) is not None]


def _check_quota(settings: TopicSettings, quota: Setting[BacklogQuota], when_behind: WhenBehind) -> Risk | None:
    kind, limit, policy = quota.value.kind, quota.value.limit, quota.value.policy
    is_enforced = settings.broker.is_enabled("backlogQuotaCheckEnabled", default=True) is not False
    is_size = kind is QuotaType.SIZE
    behind = f"{limit} bytes" if is_size else f"{limit} s"
    fix = f"remove the quota: pulsar-admin namespaces remove-backlog-quota --type {kind}, or topics … likewise"
    if policy is QuotaPolicy.EVICT:
        if not is_enforced:
            return None
        consequence = Consequence.DROPS_ENTRIES
        detail = f"entries of the slowest subscription are skipped once the tier is {behind} behind"
    else:
        if when_behind is WhenBehind.RELEASE and is_size:
            return None
        consequence = Consequence.BLOCKS_PRODUCERS
        who = "producers are disconnected" if is_enforced else "new producers are refused"
        detail = f"{who} once the tier is {behind} behind, also while attach is stopped"
        if is_size:
            fix = f"use --when-behind release, or {fix}"
    return Risk(settings.topic, f"backlogQuota[{kind}]", f"{behind} {policy}", quota.origin, consequence, detail, fix)


def _check_expiration(settings: TopicSettings, subscription: str) -> Risk | None:
    name = "subscriptionExpirationTimeMinutes"
    expiration = settings.subscription_expiration_minutes
    if isinstance(expiration, Unknown):
        return _unknown(settings, name, expiration, "the subscription is deleted after a time without a consumer")
    if expiration.value <= 0:
        return None
    version, system_cursors = settings.broker.version, settings.broker.system_cursors
    spared = not isinstance(system_cursors, Unknown) and subscription in system_cursors
    if spared and spares_expiration(version):
        return None
    detail = f"subscription {subscription!r} is deleted when attach is stopped for {expiration.value} minutes"
    if spared:
        detail += f"; release {version} does not spare names in additionalSystemCursorNames (apache/pulsar#26149)"
    elif isinstance(system_cursors, Unknown) and spares_expiration(version):
        detail += f", unless additionalSystemCursorNames has it, which cannot be read: {system_cursors.reason}"
    fix = "set it to 0: pulsar-admin namespaces set-subscription-expiration-time --time 0"
    if spared:
        fix += ", or upgrade to 4.0.13, 4.2.4 or newer"
    elif spares_expiration(version):
        fix = f"add {subscription} to additionalSystemCursorNames of the brokers, or {fix}"
    value = str(expiration.value)
    return Risk(settings.topic, name, value, expiration.origin, Consequence.DELETES_SUBSCRIPTION, detail, fix)


def _check_max_subscriptions(settings: TopicSettings, subscription: str) -> Risk | None:
    name = "maxSubscriptionsPerTopic"
    limit, existing = settings.max_subscriptions, settings.subscriptions
    if isinstance(limit, Unknown):
        return _unknown(settings, name, limit, "a new subscription is refused")
    if limit.value <= 0 or (not isinstance(existing, Unknown) and subscription in existing):
        return None
    if isinstance(existing, Unknown):
        detail = f"the subscriptions that exist cannot be listed: {existing.reason}"
        consequence = Consequence.UNKNOWN
    elif len(existing) < limit.value:
        return None
    else:
        detail = f"the topic has {len(existing)} subscriptions already, without {subscription!r}"
        consequence = Consequence.REFUSES_SUBSCRIPTION
    fix = f"raise it to at least {limit.value + 1}: pulsar-admin namespaces set-max-subscriptions-per-topic"
    return Risk(settings.topic, name, str(limit.value), limit.origin, consequence, detail, fix)


def _check_auth_mode(settings: TopicSettings, subscription: str, role: str | None) -> Risk | None:
    name = "subscription_auth_mode"
    mode = settings.auth_mode
    if settings.broker.is_enabled("authorizationEnabled", default=True) is False:
        return None
    if isinstance(mode, Unknown):
        return _unknown(settings, name, mode, "a subscription whose name does not begin with the role is refused")
    if mode.value != "Prefix" or (role is not None and subscription.startswith(role)):
        return None
    consequence = Consequence.UNKNOWN if role is None else Consequence.REFUSES_SUBSCRIPTION
    known = "the role of the token" if role is None else f"the role {role!r}"
    detail = f"the name of the subscription, {subscription!r}, must begin with {known}, unless that is a superuser's"
    fix = f"choose --subscription {role or 'ROLE'}-{subscription}"
    return Risk(settings.topic, name, mode.value, mode.origin, consequence, detail, fix)


def _check_auto_creation(settings: TopicSettings, subscription: str) -> Risk | None:
    allowed, existing = settings.auto_creation, settings.subscriptions
    if isinstance(allowed, Unknown) or allowed.value:
        return None  # if it is unknown and forbidden, the first subscribe reports it
    if not isinstance(existing, Unknown) and subscription in existing:
        return None
    detail = f"subscription {subscription!r} does not exist, and a consumer may not create it"
    fix = f"create it: pulsar-admin topics create-subscription -s {subscription} -m earliest {settings.topic}"
    consequence = Consequence.UNKNOWN if isinstance(existing, Unknown) else Consequence.REFUSES_SUBSCRIPTION
    return Risk(settings.topic, "allowAutoSubscriptionCreation", "false", allowed.origin, consequence, detail, fix)


def _unknown(settings: TopicSettings, policy: str, unknown: Unknown, what: str) -> Risk:
    tenant = TopicName.parse(settings.topic).namespace.tenant
    fix = f"give --token of a role that administers tenant {tenant!r}; settings of the brokers need a superuser"
    detail = f"whether {what} is not known"
    return Risk(settings.topic, policy, "unknown", unknown.reason, Consequence.UNKNOWN, detail, fix)
