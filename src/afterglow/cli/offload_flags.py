"""Offload policies on the command line: the flags of ``pulsar-admin``, and which fields of the JSON they set.

Only what is given changes. For drivers that have fields of their own, a value goes into these and into the general
ones, as ``pulsar-admin`` writes them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
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
"""Drivers whose bucket nobody finds without a region or an endpoint."""

_SUFFIXES: Final = {
    "region": "Region",
    "bucket": "Bucket",
    "endpoint": "ServiceEndpoint",
    "max_block_size": "MaxBlockSizeInBytes",
    "read_buffer_size": "ReadBufferSizeInBytes",
}
"""Flags whose fields begin with a prefix by driver."""

_FIELDS: Final = {
    "driver": _DRIVER,
    "file_system_uri": "fileSystemURI",
    "aws_id": "s3ManagedLedgerOffloadCredentialId",
    "aws_secret": "s3ManagedLedgerOffloadCredentialSecret",
    "s3_role": "s3ManagedLedgerOffloadRole",
    "s3_role_session_name": "s3ManagedLedgerOffloadRoleSessionName",
    "threshold_bytes": "managedLedgerOffloadThresholdInBytes",
    "threshold_seconds": "managedLedgerOffloadThresholdInSeconds",
    "deletion_lag": "managedLedgerOffloadDeletionLagInMillis",
    "read_priority": "managedLedgerOffloadedReadPriority",
    "streaming": "streamingOffloadEnabled",
}

_UNITS: Final = {
    "max_segment_size": ("maxOffloadSegmentSizeInBytes", "maxSizePerOffloadSegmentMbytes", _MIB),
    "max_segment_time": ("maxOffloadSegmentRolloverTimeInSeconds", "maxOffloadSegmentRolloverTimeMinutes", 60),
}
"""Flags with a field in the flag's unit, and one in a larger unit that is used where the value is a whole multiple."""

_EXTRA: Final = "managedLedgerExtraConfigurations"
"""The field with properties of the driver."""
_EXTRA_PREFIX: Final = "managedLedgerOffloadExtraConfig"
"""What stands before a property's name in broker.conf."""


@dataclass(frozen=True, slots=True)
class OffloadFlags:
    """What is to change; None leaves as it is."""

    driver: Annotated[
        str | None,
        typer.Option(
            "--driver", "-d", help="S3, aws-s3, filesystem, …; where none is ever given, the engine's own tier."
        ),
    ] = None
    region: Annotated[str | None, typer.Option("--region", "-r", help="Region of the bucket.")] = None
    bucket: Annotated[str | None, typer.Option("--bucket", "-b", help="Bucket or container.")] = None
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", "-e", help="URL of the store, where it is not the provider's own.")
    ] = None
    file_system_uri: Annotated[
        str | None, typer.Option("--file-system-uri", help="Root directory as file:///path, for filesystem.")
    ] = None
    aws_id: Annotated[str | None, typer.Option("--aws-id", "-i", help="Access key id, for S3.")] = None
    aws_secret: Annotated[str | None, typer.Option("--aws-secret", "-s", help="Secret access key, for S3.")] = None
    s3_role: Annotated[
        str | None, typer.Option("--s3-role", "--ro", "-ro", help="Role to assume through STS, for S3.")
    ] = None
    s3_role_session_name: Annotated[
        str | None, typer.Option("--s3-role-session-name", "-rsn", help="Session name of the role.")
    ] = None
    max_block_size: Annotated[
        int | None,
        typer.Option(
            *("--maxBlockSize", "-mbs", "--maxBlockSizeInBytes", "-m"),
            metavar="SIZE",
            parser=parameters.read_bytes,
            help="Size of the blocks of an offloaded ledger, such as 64M.",
        ),
    ] = None
    read_buffer_size: Annotated[
        int | None,
        typer.Option(
            *("--readBufferSize", "-rbs", "--readBufferSizeInBytes", "-rb"),
            metavar="SIZE",
            parser=parameters.read_bytes,
            help="Bytes fetched by one request of a reader, such as 1M.",
        ),
    ] = None
    deletion_lag: Annotated[
        int | None,
        typer.Option(
            *("--offloadAfterElapsed", "-oae", "--offloadDeletionLagInMillis", "-dl"),
            metavar="TIME",
            parser=parameters.read_milliseconds,
            help="Time from offload to the end of the hot copy, such as 4h; without a unit seconds.",
        ),
    ] = None
    threshold_bytes: Annotated[
        int | None,
        typer.Option(
            *("--offloadAfterThreshold", "-oat", "--offloadThresholdInBytes", "-t"),
            metavar="SIZE",
            parser=parameters.read_bytes_or_none,
            help="What a topic keeps out of the tier, such as 10G. 0: each ledger goes as it closes, -1: not by size.",
        ),
    ] = None
    threshold_seconds: Annotated[
        int | None,
        typer.Option(
            *("--offloadAfterThresholdInSeconds", "-oats", "--offloadThresholdInSeconds", "-ts"),
            metavar="TIME",
            parser=parameters.read_seconds_or_none,
            help="Time from a ledger's close to its offload, such as 1h. 0: at once, -1: not by time.",
        ),
    ] = None
    read_priority: Annotated[
        str | None,
        typer.Option(
            *("--offloadedReadPriority", "-orp"),
            metavar="PRIORITY",
            parser=parameters.read_priority,
            help="Which copy serves while both exist: tiered-storage-first or bookkeeper-first.",
        ),
    ] = None
    streaming: Annotated[
        bool | None, typer.Option("--streaming/--no-streaming", help="Whether entries go to the tier as they come.")
    ] = None
    max_segment_size: Annotated[
        int | None,
        typer.Option(
            "--max-segment-size",
            metavar="SIZE",
            parser=parameters.read_bytes,
            help="Size at which a segment closes, such as 64M.",
        ),
    ] = None
    max_segment_time: Annotated[
        int | None,
        typer.Option(
            "--max-segment-time",
            metavar="TIME",
            parser=parameters.read_seconds,
            help="Time after its first entry at which a segment closes, such as 10m.",
        ),
    ] = None
    extra_config: Annotated[
        list[Any] | None,
        typer.Option(
            "--extra-config",
            metavar="NAME=VALUE",
            parser=parameters.read_pair,
            help="A property of the driver; others stay. Repeatable.",
        ),
    ] = None
    further: Annotated[
        list[Any] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            parser=parameters.read_pair,
            help="Any other setting of a topic, by its name in broker.conf. Repeatable.",
        ),
    ] = None
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="A setting to set no longer, by its name. Repeatable."),
    ] = None

    @property
    def places(self) -> bool:
        """Whether a value is given that goes into fields by driver."""
        return any(getattr(self, flag) is not None for flag in _SUFFIXES)

    def check(self) -> None:
        """Check what needs no look at the server.

        Raises:
            ConfigError: Nothing is to change.
        """
        if all(getattr(self, field.name) is None for field in fields(self)):
            raise ConfigError("nothing to change: give a flag, such as --offloadAfterThreshold 1G")

    def applied_to(self, stored: Json, driver: str | None = None) -> Json:
        """Stored policies with what is to change.

        Args:
            stored: As the admin API gives them; not changed.
            driver: The one that holds where neither these flags nor the stored policies name one.

        Raises:
            ConfigError: The driver has no address, or what is to be set no longer is not set.
        """
        changed = dict(stored)
        chosen = str(self.driver or stored.get(_DRIVER) or driver or "").lower()
        for flag, field in _FIELDS.items():
            if (value := getattr(self, flag)) is not None:
                changed[field] = value
        for flag, suffix in _SUFFIXES.items():
            if (value := getattr(self, flag)) is not None:
                names = {_GENERAL_PREFIX + suffix, _OWN_PREFIX.get(chosen, _GENERAL_PREFIX) + suffix} - {_NO_FIELD}
                changed |= dict.fromkeys(sorted(names), value)
        for flag, (field, larger, unit) in _UNITS.items():
            if (value := getattr(self, flag)) is not None:
                changed.pop(field, None)
                changed.pop(larger, None)
                changed |= {larger: value // unit} if value % unit == 0 else {field: value}
        extra = dict(stored.get(_EXTRA) or {})
        for name, value in self.further or ():
            if name == _EXTRA:
                extra = _read_extra(value)
            elif name.startswith(_EXTRA_PREFIX) and name != _EXTRA_PREFIX:
                extra[name.removeprefix(_EXTRA_PREFIX)] = value
            else:
                changed[name] = value
        changed[_EXTRA] = extra = extra | dict(self.extra_config or ())
        for name in map(str.strip, self.unset or ()):
            if changed.pop(name, None) is None and extra.pop(name.removeprefix(_EXTRA_PREFIX), None) is None:
                raise ConfigError(f"--unset {name}: it is not set here; get-offload-policies lists what is")
        if not changed.get(_EXTRA):
            changed.pop(_EXTRA, None)
        _check_address(chosen, changed)
        return changed


def driver_of(policies: Json) -> str | None:
    """The driver that policies name."""
    return policies.get(_DRIVER) or None


def _read_extra(text: str) -> dict[str, str]:
    """The properties of a driver from one text, as it stands in broker.conf."""
    from afterglow.config.kinds import pairs  # noqa: PLC0415 - not needed for --help

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
