"""Options of ``format("afterglow")``, validated before anything is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias, TypeVar, cast

from afterglow.config.broker import SETTINGS
from afterglow.config.value_types import MIB, flag, integer, size
from afterglow.errors import ConfigError
from afterglow.format.schema import ENTRIES, MESSAGES, choose
from afterglow.read.scan_range import parse_time
from afterglow.spark.datasource.offsets import START, Point

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from afterglow.config.choices import ReadPriority
    from afterglow.config.value_types import ValueType
    from afterglow.read.split_reader import Include

Hot: TypeAlias = Literal["read", "skip"]
Entries: TypeAlias = Literal["auto", "bookkeeper", "broker"]

PARTITION_BYTES: Final = 32 * MIB
"""Bytes of blocks in a Spark partition, by default: some tenths of a second of work, and little to repeat."""

OPTIONS: Final = (
    "source",
    "topic",
    "topicsPattern",
    "start",
    "end",
    "since",
    "until",
    "readPriority",
    "tier",
    "metadata",
    "include",
    "columns",
    "decode",
    "hot",
    "entries",
    "pushdown",
    "maxPartitionBytes",
    "maxBytesPerTrigger",
    "maxEntriesPerTrigger",
    "failOnDataLoss",
)
"""All options, in their documented case; Spark does not distinguish case."""

_PRIORITY: Final = SETTINGS["managedLedgerOffloadedReadPriority"].value_type
_AGE: Final = re.compile(r"\s*\d+\s*[a-zA-Z]+\s*")
_Value = TypeVar("_Value")
_Default = TypeVar("_Default")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Parsed options."""

    source: str
    """Address of the source."""
    topics: tuple[str, ...]
    """Names of topics; empty if a pattern selects them."""
    topics_pattern: str | None
    """A regular expression that a whole name must match."""
    start: Point
    """First message, inclusive."""
    end: Point | None
    """End, exclusive; None: the end of the topic."""
    since_ms: int | None
    """Earliest time, epoch milliseconds, inclusive."""
    until_ms: int | None
    """Latest time, exclusive."""
    ages: tuple[str, ...]
    """Those of ``since`` and ``until`` that were given as an age, relative to the time of parsing."""
    read_priority: ReadPriority | None
    """The copy to read while both exist; None: by each topic's policy."""
    tier: str | None
    """Tier of all objects; overrides metadata and policies."""
    metadata: str | None
    """Address of our records, if they are not in the source."""
    include: Include
    columns: tuple[str, ...] | None
    """Columns in order; None: all of them."""
    decode: bool
    """Whether values are decoded by their schemas."""
    hot: Hot
    """Whether to read entries that no tier has."""
    entries: Entries
    """Where these entries are read in a Pulsar cluster."""
    pushdown: bool
    """Whether filters of the query prune."""
    max_partition_bytes: int
    """Of blocks in a Spark partition, unless a single block is larger."""
    max_bytes_per_trigger: int | None
    """Of blocks in a micro-batch; None: unlimited."""
    max_entries_per_trigger: int | None
    """In a micro-batch; None: unlimited."""
    fail_on_data_loss: bool | None
    """Whether missing entries are an error; None: only if a stream has not read them yet, not if they are in the range
    of ``start`` and ``end``."""

    @classmethod
    def parse(cls, given: Mapping[str, str], now_ms: int) -> Self:
        """Parse options.

        Args:
            given: Texts by name, in any case.
            now_ms: The time that ages are relative to.

        Raises:
            ConfigError: An option is unknown, missing or malformed, or two contradict each other.
            InvalidName: A position is malformed.
        """
        texts = _known(given)
        source = texts.get("source", "").strip()
        if not source:
            raise ConfigError(
                'the option "source" is missing; give the home of a server, http://HOST:PORT of an admin API, '
                "zk://HOST:PORT, or a tier alone, s3://BUCKET[/PREFIX]"
            )
        names = tuple(name for part in texts.get("topic", "").split(",") if (name := part.strip()))
        pattern = texts.get("topicsPattern")
        if bool(names) == (pattern is not None):
            raise ConfigError(
                'give either the option "topic" (one, or several separated by commas) or "topicsPattern" (a regular '
                f"expression); {'both were' if names else 'neither was'} given"
            )
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(
                    f"the option topicsPattern={pattern!r} is not a valid regular expression: {error}"
                ) from error
        end = texts.get("end")
        made = cls(
            source=source,
            topics=names,
            topics_pattern=pattern,
            start=Point.parse(texts["start"]) if "start" in texts else START,
            end=None if end is None or end.strip().lower() == "latest" else Point.parse(end),
            since_ms=parse_time(texts["since"], now_ms) if "since" in texts else None,
            until_ms=parse_time(texts["until"], now_ms) if "until" in texts else None,
            ages=tuple(name for name in ("since", "until") if _AGE.fullmatch(texts.get(name, ""))),
            read_priority=_value(texts, "readPriority", _PRIORITY, None),
            tier=texts.get("tier"),
            metadata=texts.get("metadata"),
            include=cast("Include", _one_of(texts, "include", "messages", "entries")),
            columns=_columns(texts),
            decode=_value(texts, "decode", flag(), default=False),
            hot=cast("Hot", _one_of(texts, "hot", "read", "skip")),
            entries=cast("Entries", _one_of(texts, "entries", "auto", "bookkeeper", "broker")),
            pushdown=_value(texts, "pushdown", flag(), default=False),
            max_partition_bytes=_value(texts, "maxPartitionBytes", size(minimum=1), PARTITION_BYTES),
            max_bytes_per_trigger=_value(texts, "maxBytesPerTrigger", size(minimum=1), None),
            max_entries_per_trigger=_value(texts, "maxEntriesPerTrigger", integer(minimum=1), None),
            fail_on_data_loss=_value(texts, "failOnDataLoss", flag(), None),
        )
        if made.decode and made.include == "entries":
            raise ConfigError("decode=true needs messages, but include=entries is given; leave one of them out")
        return made

    @property
    def schema(self) -> pa.Schema:
        """The selected columns, without those that ``decode`` adds.

        Raises:
            ConfigError: A column is unknown or named twice.
        """
        return choose(MESSAGES if self.include == "messages" else ENTRIES, self.columns)


def _known(given: Mapping[str, str]) -> dict[str, str]:
    """Options by their documented names."""
    names = {name.lower(): name for name in OPTIONS}
    if "provider" in given or any(name.startswith("option.") for name in given):
        raise ConfigError(
            "CREATE TABLE … USING afterglow is not supported: Spark passes other options than those given; "
            "use CREATE TEMPORARY VIEW … USING afterglow OPTIONS (source '…', topic '…')"
        )
    for name in given:
        if name.lower() in names:
            continue
        if name.lower() == "path":
            raise ConfigError('load() takes no path; write .option("source", …).option("topic", …).load()')
        near = get_close_matches(name.lower(), names, n=1)
        hint = f"did you mean {names[near[0]]!r}?" if near else f"the options are {', '.join(OPTIONS)}"
        raise ConfigError(f"unknown option {name!r}; {hint}")
    return {names[name.lower()]: text for name, text in given.items()}


def _columns(texts: Mapping[str, str]) -> tuple[str, ...] | None:
    if "columns" not in texts:
        return None
    names = tuple(name for part in texts["columns"].split(",") if (name := part.strip()))
    if not names:
        raise ConfigError('the option "columns" is empty; give names separated by commas, or leave it out for all')
    return names


def _one_of(texts: Mapping[str, str], name: str, default: str, *others: str) -> str:
    text = texts.get(name, default).strip().lower()
    if text not in {default, *others}:
        raise ConfigError(f"the option {name}={texts[name]!r} is not valid; give {' or '.join((default, *others))}")
    return text


def _value(texts: Mapping[str, str], name: str, value_type: ValueType[_Value], default: _Default) -> _Value | _Default:
    if name not in texts:
        return default
    try:
        value = value_type.parse(texts[name].strip())
    except ValueError:
        value = None
    if value is None or not value_type.accepts(value):
        raise ConfigError(f"the option {name}={texts[name]!r} is not {value_type.description}")
    return value
