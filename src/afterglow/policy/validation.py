"""Validation of effective policies. Pure, except for the lookup of installed drivers.

The effective policy is validated, not a single stored object: a topic may set the driver and its namespace the bucket,
a namespace the retention and the broker the threshold. A policy that works with a surprising effect gives a warning.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from afterglow.config import SETTINGS
from afterglow.config.setting import OriginKind
from afterglow.config.settings_offload import driver_keys
from afterglow.errors import AfterglowError, ConfigError, NotSupported
from afterglow.tier.drivers import DRIVER_GROUP, can_stream, driver_factory, installed_drivers
from afterglow.tier.locations import TierLocation, Tiers, driver_setting, is_built_in, store_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.config import BrokerConfig

_DRIVER: Final = "managedLedgerOffloadDriver"
_BUCKETS: Final = ("S3", "aws-s3", "google-cloud-storage", "azureblob", "aliyun-oss")
"""Pulsar's drivers that need a bucket; case-insensitive."""
_S3_FAMILY: Final = {name.lower(): name for name in ("S3", "aws-s3", "aliyun-oss")}
_STORED_NAMES: Final = {
    "defaultRetentionSizeInMB": "retentionSizeInMB",
    "defaultRetentionTimeInMinutes": "retentionTimeInMinutes",
}
"""Names of settings in policies of namespaces and topics, where they differ."""
_UNLIMITED: Final = -1


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why an effective policy cannot be applied."""

    subject: str
    """Key of the wrong setting: two problems with the same subject are the same defect, whatever the values."""
    values: tuple[object, ...]
    """The values that contradict each other."""
    text: str
    """For users: the settings with their values and origins, and the fix."""


@cache
def drivers() -> tuple[str, ...]:
    """Names of the drivers that a policy may use. Cached: every change of a policy needs them."""
    return installed_drivers()


def problems(policy: BrokerConfig) -> tuple[Problem, ...]:
    """Reasons why an effective policy cannot be applied."""
    return (*_driver_problems(policy), *_unreachable_thresholds(policy))


def warnings(policy: BrokerConfig) -> tuple[str, ...]:
    """Parts of an effective policy that work with a surprising effect."""
    return (*_without_retention(policy), *_short_retention(policy))


def check(policy: BrokerConfig) -> tuple[str, ...]:
    """Check an effective policy.

    Returns:
        Warnings.

    Raises:
        ConfigError: It cannot be applied.
    """
    for problem in problems(policy):
        raise ConfigError(problem.text)
    return warnings(policy)


def _driver_problems(policy: BrokerConfig) -> Iterator[Problem]:
    driver = policy.managed_ledger_offload_driver
    if driver is None:
        return
    if driver.lower() not in {name.lower() for name in drivers()}:
        # The first words are Pulsar's own.
        yield Problem(
            _DRIVER,
            (driver,),
            f"The driver is not supported, support value: {', '.join(drivers())}; {_shown(policy, _DRIVER)} is not "
            f"among them: choose one, or install the package that adds it to the entry point group {DRIVER_GROUP}",
        )
    elif driver.lower() in {name.lower() for name in _BUCKETS} and not driver_setting(policy, driver, "Bucket"):
        keys = driver_keys(driver, "Bucket")
        yield Problem(
            keys[0],
            (driver,),
            f"The bucket must be specified for namespace offload: {_shown(policy, _DRIVER)} has none; set "
            f"{' or '.join(keys)}",
        )
    elif driver.lower() in _S3_FAMILY:
        try:
            store_options(TierLocation(_S3_FAMILY[driver.lower()], ""), policy)
        except NotSupported as error:
            yield Problem("s3ManagedLedgerOffloadRole", (driver,), str(error))
    elif not is_built_in(driver):
        yield from _external_problems(policy, driver)


def _external_problems(policy: BrokerConfig, driver: str) -> Iterator[Problem]:
    """Problems that an external driver itself reports."""
    try:
        offloader = driver_factory(driver)(policy, None, Tiers())
        _ = offloader.location
    except AfterglowError as error:
        yield Problem(_DRIVER, (driver, policy.managed_ledger_extra_configurations), str(error))
        return
    if policy.streaming_offload_enabled and not can_stream(offloader):
        yield Problem(
            "streamingOffloadEnabled",
            (driver,),
            f"{_shown(policy, 'streamingOffloadEnabled')}: {_shown(policy, _DRIVER)} takes whole ledgers only; set "
            "streamingOffloadEnabled=false, or choose a driver that streams",
        )


def _unreachable_thresholds(policy: BrokerConfig) -> Iterator[Problem]:
    """Thresholds that a ledger never reaches because retention deletes it first."""
    for threshold, threshold_key, retention, retention_key in _pairs(policy):
        if 0 < retention <= threshold:
            yield Problem(
                threshold_key,
                (threshold, retention),
                f"{_shown(policy, threshold_key)} is not below the retention, {_shown(policy, retention_key)}: ledgers "
                "would be deleted before they are offloaded; lower the threshold, or raise the retention",
            )


def _without_retention(policy: BrokerConfig) -> Iterator[str]:
    """Without retention, a ledger is deleted once all subscriptions have consumed it, offloaded or not."""
    for threshold, threshold_key, retention, retention_key in _pairs(policy):
        if threshold > _UNLIMITED and retention == 0:
            yield (
                f"{_shown(policy, threshold_key)} with {_shown(policy, retention_key)}: data that all "
                "subscriptions have consumed is deleted at once, also from the tier; set a retention to keep it"
            )


def _short_retention(policy: BrokerConfig) -> Iterator[str]:
    """Offloads whose result retention deletes at once. No data is lost that retention would keep."""
    minutes, retention_key = policy.default_retention_time_in_minutes, "defaultRetentionTimeInMinutes"
    if minutes <= 0:
        return
    age_key = "maxOffloadSegmentRolloverTimeInSeconds"
    if policy.streaming_offload_enabled and policy.max_offload_segment_rollover_time_in_seconds >= minutes * 60:
        yield (
            f"{_shown(policy, age_key)} is not below the retention, {_shown(policy, retention_key)}: a segment may be "
            "deleted as soon as it is offloaded; lower the segment's age, or raise the retention"
        )
    lag_key, lag_ms = "managedLedgerOffloadDeletionLagInMillis", policy.managed_ledger_offload_deletion_lag_in_millis
    # The default lag is long: an operator who lowers the retention has not set it.
    if lag_key in policy.origins and lag_ms is not None and lag_ms >= minutes * 60_000:
        yield (
            f"{_shown(policy, lag_key)} is not below the retention, {_shown(policy, retention_key)}: the hot log keeps "
            "every ledger until retention deletes it; lower the lag to save space, or raise the retention"
        )


def _pairs(policy: BrokerConfig) -> Iterator[tuple[int, str, int, str]]:
    """Each threshold with the retention that limits it, in the same unit."""
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


def _shown(policy: BrokerConfig, key: str) -> str:
    """A setting by the name of the level that sets it, with its value and origin."""
    origin = policy.origin(key)
    is_stored = origin.kind in {OriginKind.NAMESPACE, OriginKind.TOPIC}
    name = _STORED_NAMES.get(key, key) if is_stored else key
    where = f"broker, {origin}" if origin.kind.level == "broker" else str(origin)
    return f"{name}={getattr(policy, SETTINGS[key].attribute)} ({where})"
