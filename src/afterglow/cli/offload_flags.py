"""Flags of ``set-offload-policies``, those of ``pulsar-admin`` and ours, and the fields of the JSON that they set.

Only what is given changes. For drivers that have fields of their own, a value goes into these and into the general
ones, as ``pulsar-admin`` writes them.
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
"""Drivers whose bucket is not found without a region or an endpoint."""
_EXTRA: Final = "managedLedgerExtraConfigurations"
"""The field with properties of the driver."""
_EXTRA_PREFIX: Final = "managedLedgerOffloadExtraConfig"
"""What stands before a property's name in broker.conf."""


@dataclass(frozen=True, slots=True)
class _Flag:
    """One option, and where its value goes."""

    names: str
    help: str
    field: str = ""
    suffix: str = ""
    """Instead of a field: what follows a prefix by driver."""
    larger: tuple[str, int] | None = None
    """A field in a larger unit, which is used where the value is a whole multiple."""
    metavar: str | None = None
    parser: Callable[[str], Any] | None = None
    type: Any = str

    @property
    def annotation(self) -> Any:
        """The option as typer reads it."""
        option = typer.Option(*self.names.split(), metavar=self.metavar, parser=self.parser, help=self.help)
        return Annotated[self.type | None, option]


def _size(names: str, text: str, parser: Callable[[str], int] = parameters.read_bytes, **where: Any) -> _Flag:
    return _Flag(names, text, metavar="SIZE", parser=parser, type=int, **where)


def _time(names: str, text: str, parser: Callable[[str], int] = parameters.read_seconds, **where: Any) -> _Flag:
    return _Flag(names, text, metavar="TIME", parser=parser, type=int, **where)


_FLAGS: Final = {
    "driver": _Flag(
        "--driver -d", "S3, aws-s3, filesystem, …; where none is ever given, the server's own tier.", _DRIVER
    ),
    "region": _Flag("--region -r", "Region of the bucket.", suffix="Region"),
    "bucket": _Flag("--bucket -b", "Bucket or container.", suffix="Bucket"),
    "endpoint": _Flag(
        "--endpoint -e", "URL of the store, where it is not the provider's own.", suffix="ServiceEndpoint"
    ),
    "file_system_uri": _Flag("--file-system-uri", "Root directory as file:///path, for filesystem.", "fileSystemURI"),
    "aws_id": _Flag("--aws-id -i", "Access key id, for S3.", "s3ManagedLedgerOffloadCredentialId"),
    "aws_secret": _Flag("--aws-secret -s", "Secret access key, for S3.", "s3ManagedLedgerOffloadCredentialSecret"),
    "s3_role": _Flag("--s3-role --ro -ro", "Role to assume through STS, for S3.", "s3ManagedLedgerOffloadRole"),
    "s3_role_session_name": _Flag(
        "--s3-role-session-name -rsn", "Session name of the role.", "s3ManagedLedgerOffloadRoleSessionName"
    ),
    "max_block_size": _size(
        "--maxBlockSize -mbs --maxBlockSizeInBytes -m",
        "Size of the blocks of an offloaded ledger, such as 64M.",
        suffix="MaxBlockSizeInBytes",
    ),
    "read_buffer_size": _size(
        "--readBufferSize -rbs --readBufferSizeInBytes -rb",
        "Bytes fetched by one request of a reader, such as 1M.",
        suffix="ReadBufferSizeInBytes",
    ),
    "deletion_lag": _time(
        "--offloadAfterElapsed -oae --offloadDeletionLagInMillis -dl",
        "Time from offload to the end of the hot copy, such as 4h; without a unit seconds.",
        parameters.read_milliseconds,
        field="managedLedgerOffloadDeletionLagInMillis",
    ),
    "threshold_bytes": _size(
        "--offloadAfterThreshold -oat --offloadThresholdInBytes -t",
        "What a topic keeps out of the tier, such as 10G. 0: each ledger goes as it closes, -1: not by size.",
        parameters.read_bytes_or_none,
        field="managedLedgerOffloadThresholdInBytes",
    ),
    "threshold_seconds": _time(
        "--offloadAfterThresholdInSeconds -oats --offloadThresholdInSeconds -ts",
        "Time from a ledger's close to its offload, such as 1h. 0: at once, -1: not by time.",
        parameters.read_seconds_or_none,
        field="managedLedgerOffloadThresholdInSeconds",
    ),
    "read_priority": _Flag(
        "--offloadedReadPriority -orp",
        "Which copy serves while both exist: tiered-storage-first or bookkeeper-first.",
        "managedLedgerOffloadedReadPriority",
        metavar="PRIORITY",
        parser=parameters.read_priority,
    ),
    "streaming": _Flag(
        "--streaming/--no-streaming",
        "Whether entries go to the tier as they come.",
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
        "Time after its first entry at which a segment closes, such as 10m.",
        field="maxOffloadSegmentRolloverTimeInSeconds",
        larger=("maxOffloadSegmentRolloverTimeMinutes", 60),
    ),
    "extra_config": _Flag(
        "--extra-config",
        "A property of the driver; others stay. Repeatable.",
        metavar="NAME=VALUE",
        parser=parameters.read_pair,
        type=list[Any],
    ),
    "further": _Flag(
        "--set",
        "Any other setting of a topic, by its name in broker.conf. Repeatable.",
        metavar="NAME=VALUE",
        parser=parameters.read_pair,
        type=list[Any],
    ),
    "unset": _Flag("--unset", "A setting to set no longer, by its name. Repeatable.", metavar="NAME", type=list[str]),
}
"""All flags by the names of parameters."""

OPTIONS: Final = {name: flag.annotation for name, flag in _FLAGS.items()}


class OffloadFlags:
    """Flags that were given.

    Raises:
        ConfigError: None was.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = {name: value for name, value in given.items() if value is not None}
        if not self._given:
            raise ConfigError("nothing to change: give a flag, such as --offloadAfterThreshold 1G")

    @property
    def by_driver(self) -> bool:
        """Whether a value goes into fields that depend on the driver."""
        return any(_FLAGS[name].suffix for name in self._given)

    def applied_to(self, stored: Json, driver: str | None = None) -> Json:
        """Return stored policies with what is to change.

        Args:
            stored: As the admin API gives them; not changed.
            driver: The one that holds where neither these flags nor the stored policies name one.

        Raises:
            ConfigError: The driver has no address, or what is to be set no longer is not set.
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
                raise ConfigError(f"--unset {name}: it is not set here; get-offload-policies lists what is")
        if not changed.get(_EXTRA):
            changed.pop(_EXTRA, None)


def driver_of(policies: Json) -> str | None:
    """Return the driver that policies name."""
    return policies.get(_DRIVER) or None


def _read_extra(text: str) -> dict[str, str]:
    """Properties of a driver from one text, as it stands in broker.conf."""
    from afterglow.config.value_types import pairs  # noqa: PLC0415 - not needed for --help

    kind = pairs()
    try:
        return dict(kind.parse(text))
    except ValueError:
        raise ConfigError(
            f"--set {_EXTRA}: {text!r} is not {kind.description}; --extra-config NAME=VALUE adds one of any form"
        ) from None


def _check_address(driver: str, policies: Json) -> None:
    if driver not in _ADDRESSED or driver_of(policies) is None:
        return
    prefixes = (_GENERAL_PREFIX, _OWN_PREFIX[driver])
    if not any(policies.get(prefix + suffix) for prefix in prefixes for suffix in ("Region", "ServiceEndpoint")):
        raise ConfigError(f"the driver {policies[_DRIVER]} needs --region or --endpoint to find its bucket")
