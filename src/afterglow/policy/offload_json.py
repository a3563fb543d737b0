"""Offload policies as Pulsar's JSON: conversion of the object's fields to values of settings, and back. Pure functions.

A field has the name of a setting or one of its aliases, so that names of the proposals that Pulsar dropped are accepted
too. Pulsar's own names are written, since its tools understand only these; the two limits of a segment, for which
Pulsar has no fields, have the names of PIP-76 if the values are whole.

Extra configurations are an object of strings, or a string as in ``broker.conf``; each may also be a field of its own,
under its key in ``broker.conf``.

Pulsar's tools cannot send fields that Pulsar does not have. Settings of streaming offload are therefore also accepted
among ``managedLedgerExtraConfigurations``; fields of the object take precedence over them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from afterglow.config import SETTINGS, Scope
from afterglow.config.load import find, nearest, spellings
from afterglow.config.settings_offload import OffloadSettings, StreamingSettings, TierSettings
from afterglow.config.value_types import MIB
from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TypeAlias

    from afterglow.config import BrokerConfig, Setting, ValueType

    Json: TypeAlias = dict[str, Any]

MASK: Final = "********"
"""Replaces a secret that is set."""

POLICY_SETTINGS: Final[Mapping[str, Setting]] = {
    row.key: row
    for row in SETTINGS.values()
    if row.section in {OffloadSettings, StreamingSettings, TierSettings} and row.scope is not Scope.BROKER
}
"""Settings that offload policies may set, by key, in the order of the table."""

RETENTION_SETTINGS: Final = ("defaultRetentionTimeInMinutes", "defaultRetentionSizeInMB", "ttlDurationDefaultInSeconds")
"""Settings that, together with these, decide when a ledger is offloaded and deleted."""
_EXTRA: Final = next(row for row in POLICY_SETTINGS.values() if row.prefix)
_WHOLE_UNITS: Final = {
    "maxOffloadSegmentSizeInBytes": ("maxSizePerOffloadSegmentMbytes", MIB),
    "maxOffloadSegmentRolloverTimeInSeconds": ("maxOffloadSegmentRolloverTimeMinutes", 60),
}
"""Name and unit for values that are whole multiples of the unit."""

_SUPERSEDED: Final = frozenset(
    {
        "managedLedgerOffloadAutoTriggerSizeThresholdBytes",
        "managedLedgerOffloadDeletionLagMs",
        "managedLedgerDataReadPriority",
    }
)
"""Pulsar's older names. If an object has both, Pulsar takes the value of the newer name."""

_DERIVED: Final = frozenset({"s3Driver", "gcsDriver", "fileSystemDriver"})
"""Fields that Pulsar's client derives from the driver's name and sends along; they are not stored."""


@dataclass(frozen=True, slots=True)
class OffloadFields:
    """Content of one object of offload policies."""

    given: Mapping[str, Any]
    """Values of the object's own fields, by key of the setting."""
    extra: Mapping[str, Any]
    """Values of settings among the extra configurations, by key of the setting."""
    unread: Mapping[str, Any]
    """Fields that are ignored, unchanged."""
    problems: tuple[str, ...]
    """Reasons why fields are ignored; each names the field and the fix."""

    @property
    def values(self) -> dict[str, Any]:
        """All settings that the object sets, by key. Extra configurations exclude those that are settings."""
        values = {**self.extra, **self.given}
        if _EXTRA.key in values:
            pairs = tuple(pair for pair in values[_EXTRA.key] if not _is_streaming(pair[0]))
            values[_EXTRA.key] = pairs
        return values


def read(fields: Mapping[str, Any]) -> OffloadFields:
    """Read an object of offload policies; null fields are unset."""
    problems: dict[str, str] = {}
    present = {
        name: value
        for name, value in fields.items()
        if value is not None and name not in _DERIVED and not (name in _SUPERSEDED and _has_newer(name, fields))
    }
    given = _read_all(present.items(), problems)
    unread = {name: fields[name] for name in problems}
    streaming = [pair for pair in given.get(_EXTRA.key, ()) if _is_streaming(pair[0])]
    extra = _read_all(streaming, problems)
    return OffloadFields(given, extra, unread, tuple(problems.values()))


def read_checked(fields: Mapping[str, Any]) -> OffloadFields:
    """As :func:`read`, for fields of a request.

    Raises:
        ConfigError: A field is unknown or its value is not valid.
    """
    found = read(fields)
    if found.problems:
        raise ConfigError(found.problems[0])
    return found


def write(values: Mapping[str, Any], *, masked: bool = False) -> Json:
    """The object that sets these values; a value of None becomes an empty string.

    Args:
        values: Values by key of the setting.
        masked: Whether secrets are replaced by :data:`MASK`.
    """
    written: Json = {}
    for key, row in POLICY_SETTINGS.items():
        if key in values:
            name, value = _write_one(key, values[key])
            written[name] = MASK if masked and row.secret and value else value
    return written


def write_all(policy: BrokerConfig) -> Json:
    """All settings of an effective policy as one object; unset ones are omitted, secrets masked."""
    values = {key: getattr(policy, row.attribute) for key, row in POLICY_SETTINGS.items()}
    return write({key: value for key, value in values.items() if value is not None}, masked=True)


def shown(stored: Mapping[str, Any]) -> Json:
    """A stored object as an answer: Pulsar's names, secrets masked."""
    fields = read(stored)
    return {**fields.unread, **write(fields.given, masked=True)}


def described(policy: BrokerConfig, *, with_source: bool = False) -> list[Json]:
    """Every value of an effective policy with its name and origin, in the order of the table; secrets masked.

    Args:
        policy: The policy.
        with_source: Whether rows also have the ``source`` of the value, such as a file and its table, or a flag.
    """
    rows = [row for row in SETTINGS.values() if row.key in POLICY_SETTINGS or row.key in RETENTION_SETTINGS]
    return [
        {
            "name": row.key,
            "value": MASK if row.secret and value is not None else _plain(value),
            "origin": policy.origin(row.key).kind.level,
            **({"source": str(policy.origin(row.key))} if with_source else {}),
        }
        for row in rows
        for value in (getattr(policy, row.attribute),)
    ]


def replaced(fields: Mapping[str, Any], stored: Mapping[str, Any]) -> Json:
    """The object to store for one in a request; a masked secret keeps its stored value.

    Raises:
        ConfigError: A field is unknown or its value is not valid.
    """
    return write(_unmasked(read_checked(fields), stored))


def merged(stored: Mapping[str, Any], changes: Mapping[str, Any]) -> Json:
    """An object with some fields changed, by any of their names; extra configurations are merged.

    Fields that cannot be read are preserved: another release may know them.

    Raises:
        ConfigError: A changed field is unknown or its value is not valid.
    """
    old, new = read(stored), read_checked(changes)
    pairs = {**dict(old.given.get(_EXTRA.key, ())), **dict(new.given.get(_EXTRA.key, ()))}
    extra = {_EXTRA.key: tuple(sorted(pairs.items()))} if pairs else {}
    return {**old.unread, **write({**old.given, **_unmasked(new, stored), **extra})}


def without(stored: Mapping[str, Any], key: str) -> Json:
    """An object without a setting, by any of its names."""
    old = read(stored)
    return {**old.unread, **write({name: value for name, value in old.given.items() if name != key})}


def _unmasked(fields: OffloadFields, stored: Mapping[str, Any]) -> dict[str, Any]:
    known = read(stored).given
    given = dict(fields.given)
    for key, value in given.items():
        if POLICY_SETTINGS[key].secret and value == MASK:
            if known.get(key) is None:
                raise ConfigError(f"{key}: {MASK} is a mask, and no value is stored; send the value")
            given[key] = known[key]
    return given


def _has_newer(name: str, fields: Mapping[str, Any]) -> bool:
    row = spellings()[name][0]
    value = fields.get(row.key)
    return value is not None and (value != "" or row.value_type.takes_empty)


def _is_streaming(name: str) -> bool:
    found = spellings().get(name)
    return found is not None and found[0].section is StreamingSettings and found[0].key in POLICY_SETTINGS


def _read_all(fields: Iterable[tuple[str, Any]], problems: dict[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in fields:
        try:
            row, value_type = _setting(name)
            if value == "" and not value_type.takes_empty:
                continue
            parsed = _read_one(name, row, value_type, value)
        except ConfigError as error:
            problems[name] = str(error)
            continue
        if row.prefix:
            old = dict(values.get(row.key, ()))
            if any(old.get(key, text) != text for key, text in parsed):
                problems[name] = f"{names[row.key]} and {name} give one property different values; remove one"
                continue
            parsed = values[row.key] = tuple(sorted({**old, **dict(parsed)}.items()))
        if values.setdefault(row.key, parsed) != parsed:
            problems[name] = f"{names[row.key]} and {name} give one setting different values; remove one"
        names.setdefault(row.key, name)
    return values


def _setting(name: str) -> tuple[Setting, ValueType[Any]]:
    found = find(name)
    if found is not None and found[0].key in POLICY_SETTINGS:
        return found
    if found is not None:
        raise ConfigError(f"{name} is not a field of offload policies; set it in broker.conf or by its own policy")
    meant = nearest(name)
    if meant is None or meant not in spellings() or spellings()[meant][0].key not in POLICY_SETTINGS:
        raise ConfigError(f"offload policies have no field {name!r}; docs/configuration.md lists every setting")
    raise ConfigError(f"offload policies have no field {name!r}; did you mean {meant}?")


def _read_one(name: str, row: Setting, value_type: ValueType[Any], value: object) -> Any:
    if row.prefix and not isinstance(value, str) and name == row.key:
        return _read_pairs(name, value)
    try:
        parsed = value_type.parse(_text(value))
        # A number for a string setting is a mistake, though Java would accept it.
        if row.value_type.accepts(parsed) and (isinstance(value, str) or not isinstance(parsed, str) or parsed is None):
            return parsed
    except ValueError:
        pass
    shown = "the value" if row.secret else repr(value)
    raise ConfigError(f"{name}: {shown} is not {value_type.description}")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return value.strip()
    raise ValueError(value)


def _read_pairs(name: str, value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: {value!r} is not an object of strings, nor {_EXTRA.value_type.description}")
    try:
        return tuple(sorted((key, _text(item)) for key, item in value.items() if item is not None))
    except ValueError as error:
        raise ConfigError(f"{name}: {error.args[0]!r} is not a string") from None


def _write_one(key: str, value: Any) -> tuple[str, Any]:
    name, unit = _WHOLE_UNITS.get(key, (key, 0))
    if unit and value % unit == 0:
        return name, value // unit
    return key, "" if value is None else _plain(value)


def _plain(value: Any) -> Any:
    """A value as JSON; an enum as its Java constant."""
    if isinstance(value, Enum):
        return value.name
    return dict(value) if isinstance(value, tuple) else value
