"""Tiers that offload policies of tenants may name.

A superuser may name any tier. Other roles may name the server's own tier and those of ``allowedTiers``: a policy
decides where the data of topics, and requests with the server's credentials, are sent. A change is checked against the
policies before it: a tier that a superuser has set for a namespace or a topic stays allowed there when another role
changes other fields.

An entry allows all locations below it, by whole path segments: ``s3://bucket/a`` allows ``s3://bucket/a/b`` and not
``s3://bucket/ab``. Symbolic links are resolved before directories are compared. An entry for a bucket applies to one
service: to the endpoint or, without one, the region that it names, else to those of the broker's settings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import parse_qsl

from afterglow.config.settings_offload import driver_keys
from afterglow.errors import ConfigError, NotSupported, TierNotAllowed
from afterglow.policy.fields import namespace_settings, of_scope, topic_settings
from afterglow.policy.resolver import NAMESPACE, TOPIC
from afterglow.tier.locations import (
    FILESYSTEM,
    MEMORY,
    TierLocation,
    driver_setting,
    is_built_in,
    location_of_policy,
    location_of_url,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from afterglow.config import BrokerConfig

    Json: TypeAlias = Mapping[str, Any]

_BUCKET_DRIVER: Final = "aws-s3"
"""The driver whose keys give region and endpoint of an entry: of all drivers it has the most aliases."""
_DRIVERS: Final = ("S3", "aws-s3", FILESYSTEM)
"""One driver for each set of keys that name a location; ``aliyun-oss`` uses those of ``S3``."""
_LOCATION: Final = frozenset(
    {
        "managedLedgerOffloadDriver",
        "fileSystemURI",
        "managedLedgerExtraConfigurations",
        *(
            key
            for driver in _DRIVERS
            for suffix in ("Bucket", "Region", "ServiceEndpoint")
            for key in driver_keys(driver, suffix)
        ),
    }
)
"""Settings that decide where objects go, by key."""


@dataclass(frozen=True, slots=True)
class StoredPolicies:
    """Stored policies that result in one effective policy, as Pulsar's JSON."""

    namespace: Json
    topic: Json
    """Empty for the effective policy of the namespace."""


@dataclass(frozen=True, slots=True)
class _UnresolvedLocation:
    """A location that only an external driver can resolve, or that this release cannot use."""

    driver: str
    settings: tuple[object, ...]

    def __str__(self) -> str:
        return f"a location of the driver {self.driver}"


class AllowedTiers:
    """Decides which tiers policies of roles other than superusers may name.

    Args:
        config: The broker's settings.
        own: The server's own tier; None if it has none.

    Raises:
        ConfigError: An entry of ``allowedTiers`` is not the address of a tier.
    """

    def __init__(self, config: BrokerConfig, own: TierLocation | None) -> None:
        self._config = config
        self._own = own
        self._entries = tuple(_entry(text, config) for text in config.allowed_tiers)

    def check(self, subject: str, wanted: StoredPolicies, *current: StoredPolicies) -> None:
        """Refuse policies that name a tier which is neither allowed nor in use already.

        Args:
            subject: The namespace or topic, for the message.
            wanted: The new policies.
            *current: Policies whose tiers may stay.

        Raises:
            TierNotAllowed: The new policies name one.
        """
        known = {location for policies in current for location in self._locations(policies)}
        for location in self._locations(wanted):
            if location not in known and not self._allows(location):
                raise TierNotAllowed(
                    f"offload policies of {subject} may not name {location}: it is neither the server's own tier nor "
                    "among allowedTiers; ask a superuser to set the policy, or add the tier to allowedTiers in "
                    "broker.conf"
                )

    def _locations(self, policies: StoredPolicies) -> Iterator[TierLocation | _UnresolvedLocation]:
        """The locations that policies name, including those that apply once another level names the driver."""
        for topic in (policies.topic, of_scope(policies.topic, is_global=True)):
            policy = self._config
            for values, origin in (
                (namespace_settings(policies.namespace).offload, NAMESPACE),
                (topic_settings(topic).offload, TOPIC),
            ):
                if named := {key: value for key, value in values.items() if key in _LOCATION}:
                    policy = policy.overridden(named, origin)
            yield from self._location(policy)
            driver = policy.managed_ledger_offload_driver
            for other in _DRIVERS:
                if driver is None or (other == FILESYSTEM) != (driver.lower() == FILESYSTEM):
                    yield from self._location(replace(policy, managed_ledger_offload_driver=other))

    def _location(self, policy: BrokerConfig) -> Iterator[TierLocation | _UnresolvedLocation]:
        driver = policy.managed_ledger_offload_driver
        try:
            if driver is None or is_built_in(driver):
                yield location_of_policy(policy, self._own)
                return
        except ConfigError:
            return  # without a bucket or directory nothing is offloaded
        except NotSupported:
            pass  # this release cannot write to the directory; another may
        settings = tuple(value for row, value, _ in policy.rows() if row.key in _LOCATION)
        yield _UnresolvedLocation(str(driver), settings)

    def _allows(self, location: TierLocation | _UnresolvedLocation) -> bool:
        own = (self._own, *self._location(self._config))
        if location in own:
            return True
        if isinstance(location, _UnresolvedLocation):
            return False
        tiers = [tier for tier in own if isinstance(tier, TierLocation)]
        return any(_is_below(location, tier) and _is_below(tier, location) for tier in tiers) or any(
            _is_below(location, entry) for entry in self._entries
        )


def _entry(text: str, config: BrokerConfig) -> TierLocation:
    scheme = text.partition("://")[0]
    # Only for buckets: the name of a directory may contain a question mark.
    address, _, query = text.partition("?") if scheme == "s3" else (text, "", "")
    try:
        options = dict(parse_qsl(query, strict_parsing=True)) if query else {}
        if not options.keys() <= {"endpoint", "region"}:
            raise ConfigError("only endpoint and region can be given")
        region, endpoint = (
            options.get(name, driver_setting(config, _BUCKET_DRIVER, suffix) or "")
            for name, suffix in (("region", "Region"), ("endpoint", "ServiceEndpoint"))
        )
        return location_of_url(address, region=region, endpoint=endpoint)
    except (ValueError, NotSupported) as error:
        raise ConfigError(
            f"allowedTiers: {text!r} is not the address of a tier: {error}; write file:///path or "
            "s3://bucket[/prefix][?endpoint=URL&region=NAME]"
        ) from error


def _is_below(location: TierLocation, top: TierLocation) -> bool:
    """Whether a location equals another one or is below it, in the same service."""
    if _service(location) != _service(top):
        return False
    path, above = _segments(location), _segments(top)
    return path is not None and above is not None and path[: len(above)] == above


def _service(location: TierLocation) -> tuple[str, str, str]:
    kind = location.driver if location.driver in {FILESYSTEM, MEMORY} else "s3"
    # Buckets of the same name in two regions may have two owners; an endpoint is one service, whatever the region.
    return kind, location.endpoint.rstrip("/"), "" if location.endpoint else location.region


def _segments(location: TierLocation) -> tuple[str, ...] | None:
    """The path of a location; None if it cannot be compared safely."""
    if location.driver == FILESYSTEM:
        try:
            return Path(location.bucket, location.prefix).resolve().parts
        except (OSError, RuntimeError, ValueError):  # a loop of symbolic links, or an invalid file name
            return None
    # A policy may append a prefix to the bucket's name.
    segments = tuple(f"{location.bucket}/{location.prefix}".rstrip("/").split("/"))
    return None if {"", ".", ".."} & set(segments) else segments
