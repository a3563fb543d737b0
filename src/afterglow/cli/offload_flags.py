"""Flags of ``set-offload-policies``, those of ``pulsar-admin`` and additional ones, and the JSON fields that they set.

For drivers that have specific fields, a value is written to these and to the general ones, as ``pulsar-admin`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from afterglow.cli import parameters
from afterglow.errors import ConfigError

Json = dict[str, Any]

_DRIVER: Final = "managedLedgerOffloadDriver"
_MIB: Final = 1 << 20

_OWN_PREFIX: Final = {
    "s3": "s3ManagedLedgerOffload",
    "aws-s3": "s3ManagedLedgerOffload",
    "aliyun-oss": "s3ManagedLedgerOffload",
    "google-cloud-storage": "gcsManagedLedgerOffload",
}
_GENERAL_PREFIX: Final = "managedLedgerOffload"
_NO_FIELD: Final = "gcsManagedLedgerOffloadServiceEndpoint"
_ADDRESSED: Final = ("s3", "aws-s3")
"""Drivers that need a region or an endpoint to find the bucket."""
_EXTRA: Final = "managedLedgerExtraConfigurations"
"""Field with additional properties of the driver."""
_EXTRA_PREFIX: Final = "managedLedgerOffloadExtraConfig"
"""Prefix of such a property in broker.conf."""


@dataclass(frozen=True, slots=True)
class _Flag:
    """An option and the field that it sets."""

    names: str
    help: str
    field: str = ""
    suffix: str = ""
    """Instead of ``field``: the part after a prefix that depends on the driver."""
    larger: tuple[str, int] | None = None
    """Field in a larger unit, with that unit; set instead if the value is a whole multiple."""
    metavar: str | None = None
    parser: Callable[[str], Any] | None = None
    type: Any = str

    @property
    def annotation(self) -> Any:
        """The annotation that typer reads."""
        option = typer.Option(*self.names.split(), metavar=self.metavar, parser=self.parser, help=self.help)
        return Annotated[self.type | None, option]


def _size(names: str, text: str, parser: Callable[[str], int] = parameters.read_bytes, **where: Any) -> _Flag:
    return _Flag(names, text, metavar="SIZE", parser=parser, type=int, **where)


def _time(names: str, text: str, parser: Callable[[str], int] = parameters.read_seconds, **where: Any) -> _Flag:
    return _Flag(names, text, metavar="TIME", parser=parser, type=int, **where)


_FLAGS: Final = {
    "driver": _Flag(
        "--driver -d", "Offload driver: S3, aws-s3, filesystem, …. Default: the server's own tier.", _DRIVER
    ),
    "region": _Flag("--region -r", "Region of the bucket.", suffix="Region"),
    "bucket": _Flag("--bucket -b", "Bucket or container.", suffix="Bucket"),
    "endpoint": _Flag(
        "--endpoint -e", "URL of the object store, if it is not the provider's default.", suffix="ServiceEndpoint"
    ),
    "file_system_uri": _Flag("--file-system-uri", "Root directory as file:///path, for filesystem.", "fileSystemURI"),
    "aws_id": _Flag("--aws-id -i", "Access key ID, for S3.", "s3ManagedLedgerOffloadCredentialId"),
    "aws_secret": _Flag("--aws-secret -s", "Secret access key, for S3.", "s3ManagedLedgerOffloadCredentialSecret"),
    "s3_role": _Flag("--s3-role --ro -ro", "Role to assume through STS, for S3.", "s3ManagedLedgerOffloadRole"),
    "s3_role_session_name": _Flag(
        "--s3-role-session-name -rsn", "Session name of the assumed role.", "s3ManagedLedgerOffloadRoleSessionName"
    ),
    "max_block_size": _size(
        "--maxBlockSize -mbs --maxBlockSizeInBytes -m",
        "Size of the blocks of an offloaded ledger, such as 64M.",
        suffix="MaxBlockSizeInBytes",
    ),
    "read_buffer_size": _size(
        "--readBufferSize -rbs --readBufferSizeInBytes -rb",
        "Bytes per read request, such as 1M.",
        suffix="ReadBufferSizeInBytes",
    ),
    "deletion_lag": _time(
        "--offloadAfterElapsed -oae --offloadDeletionLagInMillis -dl",
        "Time from offload to the deletion of the hot copy, such as 4h; seconds if there is no unit.",
        parameters.read_milliseconds,
        field="managedLedgerOffloadDeletionLagInMillis",
    ),
    "threshold_bytes": _size(
        "--offloadAfterThreshold -oat --offloadThresholdInBytes -t",
        "Size of a topic's newest data that is not offloaded, such as 10G. 0: none, -1: no size threshold.",
        parameters.read_bytes_or_none,
        field="managedLedgerOffloadThresholdInBytes",
    ),
    "threshold_seconds": _time(
        "--offloadAfterThresholdInSeconds -oats --offloadThresholdInSeconds -ts",
        "Time from the closing of a ledger to its offload, such as 1h. 0: immediately, -1: no time threshold.",
        parameters.read_seconds_or_none,
        field="managedLedgerOffloadThresholdInSeconds",
    ),
    "read_priority": _Flag(
        "--offloadedReadPriority -orp",
        "Copy that serves a read while both exist: tiered-storage-first or bookkeeper-first.",
        "managedLedgerOffloadedReadPriority",
        metavar="PRIORITY",
        parser=parameters.read_priority,
    ),
    "streaming": _Flag(
        "--streaming/--no-streaming",
        "Stream entries to the tier in segments while they are written.",
        "streamingOffloadEnabled",
        type=bool,
    ),
    "max_segment_size": _size(
        "--max-segment-size",
        "Size at which a segment closes, such as 64M.",
        field="maxOffloadSegmentSizeInBytes",
        larger=("maxSizePerOffloadSegmentMbytes", _MIB),
    ),
    "max_segment_time": _time(
        "--max-segment-time",
        "Time from the first entry of a segment to its closing, such as 10m.",
        field="maxOffloadSegmentRolloverTimeInSeconds",
        larger=("maxOffloadSegmentRolloverTimeMinutes", 60),
    ),
    "extra_config": _Flag(
        "--extra-config",
        "Additional property of the driver; others stay unchanged. Repeatable.",
        metavar="NAME=VALUE",
        parser=parameters.read_pair,
        type=list[Any],
    ),
    "further": _Flag(
        "--set",
        "Any other topic-level setting, by its name in broker.conf. Repeatable.",
        metavar="NAME=VALUE",
        parser=parameters.read_pair,
        type=list[Any],
    ),
    "unset": _Flag(
        "--unset", "Setting or property to remove, by its name. Repeatable.", metavar="NAME", type=list[str]
    ),
}
"""All flags by parameter name."""

OPTIONS: Final = {name: flag.annotation for name, flag in _FLAGS.items()}


class OffloadFlags:
    """The flags of a command line.

    Raises:
        ConfigError: No flag was given.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = {name: value for name, value in given.items() if value is not None}
        if not self._given:
            raise ConfigError("nothing to change; give a flag, such as --offloadAfterThreshold 1G")

    @property
    def by_driver(self) -> bool:
        """Whether a field depends on the driver."""
        return any(_FLAGS[name].suffix for name in self._given)

    def applied_to(self, stored: Json, driver: str | None = None) -> Json:
        """Return a copy of stored policies with the flags applied.

        Args:
            stored: Policies as the admin API returns them.
            driver: The effective driver, if neither the flags nor the stored policies name one.

        Raises:
            ConfigError: The driver has neither region nor endpoint, or a name of ``--unset`` is not set.
        """
        changed = dict(stored)
        chosen = str(self._given.get("driver") or stored.get(_DRIVER) or driver or "").lower()
        for name, value in self._given.items():
            flag = _FLAGS[name]
            if flag.suffix:
                prefixes = (_GENERAL_PREFIX, _OWN_PREFIX.get(chosen, _GENERAL_PREFIX))
                changed |= {prefix + flag.suffix: value for prefix in prefixes if prefix + flag.suffix != _NO_FIELD}
            elif flag.larger:
                larger, unit = flag.larger
                changed.pop(flag.field, None)
                changed.pop(larger, None)
                changed |= {larger: value // unit} if value % unit == 0 else {flag.field: value}
            elif flag.field:
                changed[flag.field] = value
        self._apply_by_name(changed)
        _check_address(chosen, changed)
        return changed

    def _apply_by_name(self, changed: Json) -> None:
        """Apply ``--set``, ``--extra-config`` and ``--unset``."""
        extra = dict(changed.get(_EXTRA) or {})
        for name, value in self._given.get("further", ()):
            if name == _EXTRA:
                extra = _read_extra(value)
            elif name.startswith(_EXTRA_PREFIX) and name != _EXTRA_PREFIX:
                extra[name.removeprefix(_EXTRA_PREFIX)] = value
            else:
                changed[name] = value
        changed[_EXTRA] = extra = extra | dict(self._given.get("extra_config", ()))
        for name in map(str.strip, self._given.get("unset", ())):
            if changed.pop(name, None) is None and extra.pop(name.removeprefix(_EXTRA_PREFIX), None) is None:
                raise ConfigError(
                    f"--unset {name}: not set at this level; get-offload-policies lists the policies that are"
                )
        if not changed.get(_EXTRA):
            changed.pop(_EXTRA, None)


def driver_of(policies: Json) -> str | None:
    """Return the driver that policies name."""
    return policies.get(_DRIVER) or None


def _read_extra(text: str) -> dict[str, str]:
    """Parse properties of a driver as written in broker.conf."""
    from afterglow.config.value_types import pairs  # noqa: PLC0415 - not needed for --help

    value_type = pairs()
    try:
        return dict(value_type.parse(text))
    except ValueError:
        raise ConfigError(
            f"--set {_EXTRA}: {text!r} is not {value_type.description}; --extra-config NAME=VALUE takes any value"
        ) from None


def _check_address(driver: str, policies: Json) -> None:
    if driver not in _ADDRESSED or driver_of(policies) is None:
        return
    prefixes = (_GENERAL_PREFIX, _OWN_PREFIX[driver])
    if not any(policies.get(prefix + suffix) for prefix in prefixes for suffix in ("Region", "ServiceEndpoint")):
        raise ConfigError(f"the driver {policies[_DRIVER]} needs --region or --endpoint to find its bucket")
