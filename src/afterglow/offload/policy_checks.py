"""Whether policies can be obeyed. Pure but for the look at which drivers are installed.

Checked is what would hold, not what one object says: a topic may set the driver and its namespace the bucket. A policy
that can be obeyed and will surprise comes with warnings instead.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from afterglow.config.sections.tier import driver_keys
from afterglow.errors import ConfigError
from afterglow.read.places import driver_setting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.config import BrokerConfig

DRIVER_GROUP: Final = "afterglow.offloaders"
"""Entry points of drivers, by name."""

_BUCKETS: Final = ("S3", "aws-s3", "google-cloud-storage", "azureblob", "aliyun-oss")
_DRIVERS: Final = (*_BUCKETS, "filesystem")
"""Pulsar's drivers; case does not count."""
_UNLIMITED: Final = -1


@cache
def drivers() -> tuple[str, ...]:
    """Names of all drivers that a policy may name: Pulsar's, and what is installed."""
    return tuple(dict.fromkeys((*_DRIVERS, *sorted(entry_points(group=DRIVER_GROUP).names))))


def problems(policy: BrokerConfig) -> tuple[str, ...]:
    """Why what would hold for a topic cannot be obeyed: each names the setting and the cure."""
    return (*_driver_problems(policy), *_outlived(policy))


def warnings(policy: BrokerConfig) -> tuple[str, ...]:
    """What whoever sets a policy should know: it can be obeyed and will surprise."""
    return tuple(_pointless(policy))


def check(policy: BrokerConfig, before: BrokerConfig | None = None) -> tuple[str, ...]:
    """Check what would hold for a topic.

    Args:
        policy: What would hold.
        before: What holds now. A problem that is there already is no reason to refuse the change of something else.

    Returns:
        What whoever sets it should know.

    Raises:
        ConfigError: It cannot be obeyed.
    """
    known = () if before is None else problems(before)
    for problem in problems(policy):
        if problem not in known:
            raise ConfigError(problem)
    return tuple(warning for warning in warnings(policy) if before is None or warning not in warnings(before))


def _driver_problems(policy: BrokerConfig) -> Iterator[str]:
    driver = policy.managed_ledger_offload_driver
    if driver is None:
        return
    if driver.lower() not in {name.lower() for name in drivers()}:
        yield (
            f"The driver is not supported, support value: {', '.join(drivers())}; managedLedgerOffloadDriver is "
            f"{driver!r}"
        )
    elif driver.lower() in {name.lower() for name in _BUCKETS} and not driver_setting(policy, driver, "Bucket"):
        keys = " or ".join(driver_keys(driver, "Bucket"))
        yield f"The bucket must be specified for namespace offload: set {keys} for the driver {driver}"


def _outlived(policy: BrokerConfig) -> Iterator[str]:
    """Thresholds that retention never lets a ledger reach: it would be deleted first."""
    for threshold, threshold_key, retention, retention_key in _pairs(policy):
        if 0 < retention <= threshold:
            yield (
                f"{threshold_key}={threshold} is not below the retention of {retention} ({retention_key}, "
                f"{policy.origin(retention_key)}): ledgers would be deleted before they are offloaded; lower the "
                "threshold, or raise the retention"
            )


def _pointless(policy: BrokerConfig) -> Iterator[str]:
    """Without retention a ledger goes once all have consumed it, offloaded or not."""
    for threshold, threshold_key, retention, retention_key in _pairs(policy):
        if threshold > _UNLIMITED and retention == 0:
            yield (
                f"{threshold_key}={threshold} with {retention_key}=0 ({policy.origin(retention_key)}): what all "
                "subscriptions have consumed is deleted at once, in the tier too; set a retention to keep it"
            )


def _pairs(policy: BrokerConfig) -> Iterator[tuple[int, str, int, str]]:
    """Each threshold with the retention that matches it, in one unit."""
    minutes, megabytes = policy.default_retention_time_in_minutes, policy.default_retention_size_in_mb
    yield (
        policy.managed_ledger_offload_threshold_in_bytes,
        "managedLedgerOffloadThresholdInBytes",
        megabytes if megabytes < 0 else megabytes << 20,
        "defaultRetentionSizeInMB",
    )
    yield (
        policy.managed_ledger_offload_threshold_in_seconds,
        "managedLedgerOffloadThresholdInSeconds",
        minutes if minutes < 0 else minutes * 60,
        "defaultRetentionTimeInMinutes",
    )
