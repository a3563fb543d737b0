"""Loads files, environment and arguments into a :class:`BrokerConfig`.

A later source wins over an earlier one: default, file, environment, argument. Within one source the same setting may
not have two different values, however its key is spelt. Either a whole configuration comes back or an error is raised.

Apache Pulsar has many more settings than our table. Their keys are accepted without effect, so that a stock
``broker.conf`` can be used as it is; any other unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afterglow.config.broker import SETTINGS, BrokerConfig
from afterglow.config.kinds import Kind
from afterglow.config.properties import decode_properties, parse_properties
from afterglow.config.setting import Origin, OriginKind, words
from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from afterglow.config.setting import Setting

ENVIRONMENT_PREFIX = "AFTERGLOW_CONF_"
"""A variable of this name followed by a key, as the key is spelt, sets it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Given:
    """A key with its text, as a source has it."""

    key: str
    text: str
    origin: Origin


def load_conf(
    path: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """Read a ``broker.conf`` and what overrides it.

    Args:
        path: The file, or None for none.
        environ: The environment, such as ``os.environ``; None: the environment does not count.
        overrides: Texts by key that win over everything else.

    Raises:
        ConfigError: The file cannot be read; a key is unknown; a value is malformed, out of range, or contradicts
            another.
    """
    if path is None:
        return resolve(from_environment(environ), from_arguments(overrides))
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror}; give the path of a broker.conf") from error
    return parse_conf(decode_properties(data), str(path), environ=environ, overrides=overrides)


def parse_conf(
    text: str,
    name: str = "broker.conf",
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """As :func:`load_conf`, for the content of a file; ``name`` is what messages and origins call it.

    Raises:
        ConfigError: As for :func:`load_conf`.
    """
    return resolve(from_properties(text, name), from_environment(environ), from_arguments(overrides))


def from_properties(text: str, name: str) -> list[Given]:
    """What the content of a ``.properties`` file gives.

    Raises:
        ConfigError: The text is malformed.
    """
    return [
        Given(item.key, item.value, Origin(OriginKind.FILE, f"{name}:{item.line}"))
        for item in parse_properties(text, name)
    ]


def from_environment(environ: Mapping[str, str] | None) -> list[Given]:
    """What the variables that begin with :data:`ENVIRONMENT_PREFIX` give."""
    return [
        Given(name.removeprefix(ENVIRONMENT_PREFIX), text, Origin(OriginKind.ENVIRONMENT, name))
        for name, text in sorted((environ or {}).items())
        if name.startswith(ENVIRONMENT_PREFIX)
    ]


def from_arguments(overrides: Mapping[str, str] | None) -> list[Given]:
    """What a caller gives."""
    origin = Origin(OriginKind.ARGUMENT, "argument")
    return [Given(key, text, origin) for key, text in (overrides or {}).items()]


def resolve(*sources: Iterable[Given]) -> BrokerConfig:
    """Make a configuration of several sources, the weakest first.

    Keys of a stock Pulsar that have no effect here are named in one warning.

    Raises:
        ConfigError: A key is unknown; a value is malformed, out of range, or contradicts another.
    """
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    without_effect: set[str] = set()
    for source in sources:
        for row, value, origin in _read(source, without_effect):
            # Sources add to a map pair by pair; every other value they replace.
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


def _read(source: Iterable[Given], without_effect: set[str]) -> Iterator[tuple[Setting, Any, Origin]]:
    """The values of one source; keys that only Pulsar implements go to ``without_effect``."""
    first: dict[str, tuple[Given, Any]] = {}
    for given in source:
        found = find(given.key)
        if found is None:
            if not is_pulsar_key(given.key):
                raise ConfigError(_unknown(given))
            without_effect.add(given.key)
            continue
        row, kind = found
        if not given.text.strip() and not kind.takes_empty:
            continue
        value = _value(row, kind, given)
        is_new = False
        # Each pair of a map counts as a setting of its own: it may stand in the map, or under a key with the prefix.
        for name, part in ((f"{row.key}.{key}", text) for key, text in value) if row.prefix else ((row.key, value),):
            earlier, earlier_part = first.setdefault(name, (given, part))
            is_new |= earlier is given
            if earlier_part != part:
                raise ConfigError(
                    f"{earlier.key} ({earlier.origin}) and {given.key} ({given.origin}) give one setting two different "
                    "values; remove one of them"
                )
        if is_new:
            yield row, value, given.origin


def _value(row: Setting, kind: Kind[Any], given: Given) -> Any:
    try:
        value = kind.parse(given.text.strip())
        if row.kind.accepts(value):
            return value
    except ValueError:
        pass
    shown = "the value" if row.secret else repr(given.text.strip())
    raise ConfigError(f"{given.key} ({given.origin}): {shown} is not {kind.description}")


def _unknown(given: Given) -> str:
    meant = nearest(given.key)
    cure = f"did you mean {meant}?" if meant else "docs/configuration.md lists every setting"
    return f"{given.key} ({given.origin}): no such setting; {cure}"


# --- keys ---


@cache
def spellings() -> Mapping[str, tuple[Setting, Kind[Any]]]:
    """Every key and alias of the table, with its setting and the kind that reads its text."""
    table: dict[str, tuple[Setting, Kind[Any]]] = {}
    for row in SETTINGS.values():
        table[row.key] = row, row.kind
        table |= {alias: (row, kind) for alias, kind in row.aliases.items()}
    return table


def find(key: str) -> tuple[Setting, Kind[Any]] | None:
    """The setting that a key belongs to, with the kind that reads its text; None for an unknown key."""
    found = spellings().get(key)
    return found if found is not None else _find_property(key)


def _find_property(key: str) -> tuple[Setting, Kind[Any]] | None:
    owner = next((row for row in SETTINGS.values() if row.prefix and key.startswith(row.prefix)), None)
    name = key.removeprefix(owner.prefix) if owner and owner.prefix else ""
    if not owner or not name:
        return None
    return owner, Kind("a text", lambda text: ((name, text),), owner.kind.accepts, takes_empty=True)


@cache
def pulsar_keys() -> frozenset[str]:
    """The keys of a stock Pulsar 4.0; one that ends in ``*`` stands for all that begin so."""
    lines = Path(__file__).with_name("pulsar_keys.txt").read_text("utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


@cache
def _pulsar_prefixes() -> tuple[str, ...]:
    return tuple(key[:-1] for key in pulsar_keys() if key.endswith("*"))


def is_pulsar_key(key: str) -> bool:
    """Whether a stock Pulsar 4.0 knows the key."""
    return key in pulsar_keys() or key.startswith(_pulsar_prefixes())


def nearest(key: str) -> str | None:
    """The known key that was probably meant, or None where none is near."""
    known = {name.lower(): name for name in (*pulsar_keys(), *spellings()) if not name.endswith("*")}
    close = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.75)
    if close:
        return known[close[0]]
    # A shortened name, as s3Bucket: all its words occur, and the fewest others.
    wanted = set(words(key))
    longer = [name for name in known.values() if wanted and wanted <= set(words(name))]
    return min(longer, key=lambda name: (len(name), name), default=None)
