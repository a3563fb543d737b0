"""Loading of files, environment variables and arguments into a :class:`BrokerConfig`.

Precedence, lowest first: default, file, environment, argument. Within one source two spellings of a setting must not
have different values.

Apache Pulsar has many more settings than our table. Their keys are accepted without effect, so that a stock
``broker.conf`` can be used unchanged; any other unknown key is an error that names the nearest known key.
"""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afterglow.config.broker import SETTINGS, BrokerConfig
from afterglow.config.properties import decode_properties, parse_properties
from afterglow.config.setting import Origin, OriginKind, words
from afterglow.config.value_types import ValueType
from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from afterglow.config.setting import Setting

ENVIRONMENT_PREFIX = "AFTERGLOW_CONF_"
"""Prefix of environment variables that set a key: ``AFTERGLOW_CONF_webServicePort``."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RawSetting:
    """A key and its unparsed text, with the origin."""

    key: str
    text: str
    origin: Origin


def load_conf(
    path: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """Load a configuration.

    Args:
        path: A ``broker.conf``, or None.
        environ: Environment variables, such as ``os.environ``; None ignores the environment.
        overrides: Texts by key that take precedence over all other sources.

    Raises:
        ConfigError: The file cannot be read; a key is unknown; a value is malformed, out of range, or contradicts
            another.
    """
    if path is None:
        return resolve(from_environment(environ), from_arguments(overrides))
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration file {path}: {error.strerror}; give the path of a broker.conf"
        ) from error
    return parse_conf(decode_properties(data), str(path), environ=environ, overrides=overrides)


def parse_conf(
    text: str,
    name: str = "broker.conf",
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """Parse the content of a ``broker.conf``; messages and origins refer to it as ``name``.

    Raises:
        ConfigError: As for :func:`load_conf`.
    """
    return resolve(from_properties(text, name), from_environment(environ), from_arguments(overrides))


def from_properties(text: str, name: str) -> list[RawSetting]:
    """Read the settings of a ``.properties`` file.

    Raises:
        ConfigError: The text is malformed.
    """
    return [
        RawSetting(item.key, item.value, Origin(OriginKind.FILE, f"{name}:{item.line}"))
        for item in parse_properties(text, name)
    ]


def from_environment(environ: Mapping[str, str] | None) -> list[RawSetting]:
    """Read the settings of environment variables that begin with :data:`ENVIRONMENT_PREFIX`."""
    return [
        RawSetting(name.removeprefix(ENVIRONMENT_PREFIX), text, Origin(OriginKind.ENVIRONMENT, name))
        for name, text in sorted((environ or {}).items())
        if name.startswith(ENVIRONMENT_PREFIX)
    ]


def from_arguments(overrides: Mapping[str, str] | None) -> list[RawSetting]:
    """Read the settings that a caller passes as arguments."""
    origin = Origin(OriginKind.ARGUMENT, "argument")
    return [RawSetting(key, text, origin) for key, text in (overrides or {}).items()]


def resolve(*sources: Iterable[RawSetting]) -> BrokerConfig:
    """Merge several sources, lowest precedence first, into a configuration.

    One warning lists the keys of Apache Pulsar that have no effect.

    Raises:
        ConfigError: A key is unknown; a value is malformed, out of range, or contradicts another.
    """
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    without_effect: set[str] = set()
    for source in sources:
        for row, value, origin in _read(source, without_effect):
            # Maps are merged pair by pair; any other value replaces the earlier one.
            merged = {**dict(values.get(row.attribute, ())), **dict(value)} if row.prefix else None
            values[row.attribute] = value if merged is None else tuple(sorted(merged.items()))
            origins[row.key] = origin
    config = BrokerConfig(**values, origins=origins)
    if without_effect:
        _log.warning(
            "%d settings of Apache Pulsar have no effect in Afterglow: %s",
            len(without_effect),
            ", ".join(sorted(without_effect)),
        )
    return config


def _read(source: Iterable[RawSetting], without_effect: set[str]) -> Iterator[tuple[Setting, Any, Origin]]:
    """Parse the settings of one source; keys that only Pulsar implements are added to ``without_effect``."""
    first: dict[str, tuple[RawSetting, Any]] = {}
    for given in source:
        found = find(given.key)
        if found is None:
            if not is_pulsar_key(given.key):
                raise ConfigError(_unknown(given))
            without_effect.add(given.key)
            continue
        row, value_type = found
        if not given.text.strip() and not value_type.takes_empty:
            continue
        value = _value(row, value_type, given)
        is_new = False
        # Each pair of a map counts as a separate setting: it may be in the map, or under a key with the prefix.
        for name, part in ((f"{row.key}.{key}", text) for key, text in value) if row.prefix else ((row.key, value),):
            earlier, earlier_part = first.setdefault(name, (given, part))
            is_new |= earlier is given
            if earlier_part != part:
                raise ConfigError(
                    f"{earlier.key} ({earlier.origin}) and {given.key} ({given.origin}) set one setting to different "
                    "values; remove one of them"
                )
        if is_new:
            yield row, value, given.origin


def _value(row: Setting, value_type: ValueType[Any], given: RawSetting) -> Any:
    try:
        value = value_type.parse(given.text.strip())
        if row.value_type.accepts(value):
            return value
    except ValueError:
        pass
    shown = "the value" if row.secret else repr(given.text.strip())
    raise ConfigError(f"{given.key} ({given.origin}): {shown} is not {value_type.description}")


def _unknown(given: RawSetting) -> str:
    suggestion = nearest(given.key)
    hint = f"did you mean {suggestion}?" if suggestion else "docs/configuration.md lists every setting"
    return f"{given.key} ({given.origin}): no such setting; {hint}"


# --- keys ---


@cache
def spellings() -> Mapping[str, tuple[Setting, ValueType[Any]]]:
    """Return every key and alias of the table, with its setting and the type that parses its text."""
    table: dict[str, tuple[Setting, ValueType[Any]]] = {}
    for row in SETTINGS.values():
        table[row.key] = row, row.value_type
        table |= {alias: (row, value_type) for alias, value_type in row.aliases.items()}
    return table


def find(key: str) -> tuple[Setting, ValueType[Any]] | None:
    """Return the setting of a key and the type that parses its text; None for an unknown key."""
    found = spellings().get(key)
    return found if found is not None else _find_property(key)


def _find_property(key: str) -> tuple[Setting, ValueType[Any]] | None:
    owner = next((row for row in SETTINGS.values() if row.prefix and key.startswith(row.prefix)), None)
    name = key.removeprefix(owner.prefix) if owner and owner.prefix else ""
    if not owner or not name:
        return None
    return owner, ValueType("a string", lambda text: ((name, text),), owner.value_type.accepts, takes_empty=True)


@cache
def pulsar_keys() -> frozenset[str]:
    """Return the keys of Apache Pulsar 4.0; a trailing ``*`` makes one a prefix."""
    lines = Path(__file__).with_name("pulsar_keys.txt").read_text("utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


@cache
def _pulsar_prefixes() -> tuple[str, ...]:
    return tuple(key[:-1] for key in pulsar_keys() if key.endswith("*"))


def is_pulsar_key(key: str) -> bool:
    """Return whether Apache Pulsar 4.0 has the key."""
    return key in pulsar_keys() or key.startswith(_pulsar_prefixes())


def nearest(key: str) -> str | None:
    """Return the known key that was probably meant, or None."""
    known = {name.lower(): name for name in (*pulsar_keys(), *spellings()) if not name.endswith("*")}
    close = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.75)
    if close:
        return known[close[0]]
    # A shortened name such as s3Bucket: the shortest key that has all its words.
    wanted = set(words(key))
    longer = [name for name in known.values() if wanted and wanted <= set(words(name))]
    return min(longer, key=lambda name: (len(name), name), default=None)
