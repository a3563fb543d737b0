"""Types of setting values: parsing, validation and rendering.

Every type satisfies ``parse(render(value)) == value`` for each value that it accepts. Types do not know keys, files or
origins; the caller turns a ``ValueError`` into a message with :attr:`ValueType.description`.

A size or duration without a suffix is in the unit that the key names. Suffixes are those of ``pulsar-admin``, in any
case: ``k m g t`` (powers of 1024) for sizes, ``s m h d w y`` for durations, and additionally ``ms``. A value that is
not a whole multiple of the key's unit is rejected rather than rounded. Negative numbers mean "no limit" where a key
allows them and are never scaled.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

_INTEGER = re.compile(r"[+-]?[0-9]+")
_INT64_LIMIT = 2**63


@dataclass(frozen=True, slots=True)
class ValueType(Generic[T]):
    """The type of a setting's values."""

    description: str
    """The expected value, as the end of a sentence: ``an integer of at least 1``."""
    parse: Callable[[str], T]
    """Parses text without surrounding white space; raises ``ValueError`` on a syntax error. Ignores the range."""
    accepts: Callable[[object], bool]
    """Whether a value has the right Python type and is in range."""
    render: Callable[[T], str] = str
    """Inverse of :attr:`parse`."""
    takes_empty: bool = False
    """Whether an empty text is a value; otherwise a key without a value counts as not given."""


def text() -> ValueType[str]:
    """Text that is not empty."""
    return ValueType("a string", str, lambda value: isinstance(value, str) and value != "")


def _parse_flag(word: str) -> bool:
    if word.lower() not in {"true", "false"}:
        raise ValueError(word)
    return word.lower() == "true"


def flag() -> ValueType[bool]:
    """``true`` or ``false``. Java reads any other word as false; here it is an error."""
    return ValueType(
        "true or false", _parse_flag, lambda value: isinstance(value, bool), lambda value: str(value).lower()
    )


def switch(value_type: ValueType[T], *, on: T, off: T) -> ValueType[T]:
    """A flag that selects one of two values of another type."""
    return ValueType(
        f"true ({value_type.render(on)}) or false ({value_type.render(off) or 'nothing'})",
        lambda word: on if _parse_flag(word) else off,
        lambda value: value in (on, off),
        lambda value: "true" if value == on else "false",
    )


def _parse_integer(digits: str) -> int:
    # int() alone would also accept underscores and digits of other scripts, which Pulsar rejects in the same file.
    if not _INTEGER.fullmatch(digits):
        raise ValueError(digits)
    return int(digits)


def bounds(minimum: object | None, maximum: object | None) -> str:
    """Return the end of a description: `` from 0 to 65535``, `` of at least 1``, or nothing."""
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    if minimum is not None:
        return f" of at least {minimum}"
    return "" if maximum is None else f" of at most {maximum}"


def is_integer(value: object, minimum: int | None, maximum: int | None) -> bool:
    """Return whether the value is a 64-bit ``int`` within both bounds (inclusive)."""
    if isinstance(value, bool) or not isinstance(value, int) or not -_INT64_LIMIT <= value < _INT64_LIMIT:
        return False
    return (minimum is None or value >= minimum) and (maximum is None or value <= maximum)


def integer(minimum: int | None = None, maximum: int | None = None) -> ValueType[int]:
    """A 64-bit integer; both bounds are inclusive."""
    return ValueType(
        f"an integer{bounds(minimum, maximum)}", _parse_integer, lambda value: is_integer(value, minimum, maximum)
    )


def port() -> ValueType[int]:
    """A TCP port; 0 picks a free one."""
    return integer(0, 65535)


def decimal(minimum: float, maximum: float) -> ValueType[float]:
    """A finite number; both bounds are inclusive."""

    def accepts(value: object) -> bool:
        return isinstance(value, float) and math.isfinite(value) and minimum <= value <= maximum

    return ValueType(f"a number{bounds(minimum, maximum)}", float, accepts, repr)


def optional(value_type: ValueType[T]) -> ValueType[T | None]:
    """A value that may be absent, written as an empty text."""
    return ValueType(
        f"{value_type.description}, or empty",
        lambda word: value_type.parse(word) if word else None,
        lambda value: value is None or value_type.accepts(value),
        lambda value: "" if value is None else value_type.render(value),
        takes_empty=True,
    )


def choice(members: type[E], spellings: Mapping[str, E] | None = None) -> ValueType[E]:
    """One member of an enumeration, by value, by name, or by one of the additional spellings, in any case."""
    known = {word.lower(): member for member in members for word in (member.value, member.name)}
    known |= {word.lower(): member for word, member in (spellings or {}).items()}

    def parse(word: str) -> E:
        try:
            return known[word.lower()]
        except KeyError:
            raise ValueError(word) from None

    return ValueType(
        "one of " + ", ".join(member.value for member in members),
        parse,
        lambda value: isinstance(value, members),
        lambda value: value.value,
    )


def several(value_type: ValueType[T], plural: str) -> ValueType[tuple[T, ...]]:
    """Values separated by commas, in the order given, without duplicates."""

    def parse(words: str) -> tuple[T, ...]:
        return tuple(dict.fromkeys(value_type.parse(word.strip()) for word in words.split(",") if word.strip()))

    return ValueType(
        f"a comma-separated list of {plural}",
        parse,
        lambda value: isinstance(value, tuple) and all(value_type.accepts(item) for item in value),
        lambda value: ",".join(value_type.render(item) for item in value),
        takes_empty=True,
    )


def names() -> ValueType[tuple[str, ...]]:
    """A comma-separated list of strings."""
    return several(text(), "strings")


def pairs() -> ValueType[tuple[tuple[str, str], ...]]:
    """A map from text to text, as pairs sorted by key: ``a=1,b=2``."""

    def parse_pair(word: str) -> tuple[str, str]:
        key, separator, value = word.partition("=")
        if not separator or not key.strip():
            raise ValueError(word)
        return key.strip(), value.strip()

    def accepts(value: object) -> bool:
        return isinstance(value, tuple) and all(
            isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(word, str) for word in pair) for pair in value
        )

    return ValueType(
        "a comma-separated list of key=value pairs",
        lambda words: tuple(sorted(dict(parse_pair(word) for word in words.split(",") if word.strip()).items())),
        accepts,
        lambda value: ",".join(f"{key}={word}" for key, word in value),
        takes_empty=True,
    )


KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

_NEGATIVE = re.compile(r"-[0-9]+")
_QUANTITY = re.compile(r"(\+?[0-9]+) *([A-Za-z]*)")


@dataclass(frozen=True, slots=True)
class _Measure:
    noun: str
    suffixes: Mapping[str, int]
    units: Mapping[int, str]
    example: str


_SIZE = _Measure(
    "size", {"K": KIB, "M": MIB, "G": GIB, "T": TIB}, {1: "bytes", KIB: "KiB", MIB: "MiB", GIB: "GiB"}, example="64M"
)
_DURATION = _Measure(
    "duration",
    {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS, "y": 365 * DAY_MS},
    {1: "milliseconds", SECOND_MS: "seconds", MINUTE_MS: "minutes", HOUR_MS: "hours"},
    example="10m",
)


def _quantity(
    measure: _Measure, *, unit: int, plain: int | None, minimum: int | None, maximum: int | None
) -> ValueType[int]:
    plain = plain or unit
    scales = {"": plain} | {suffix.lower(): scale for suffix, scale in measure.suffixes.items()}

    def parse(word: str) -> int:
        if _NEGATIVE.fullmatch(word):
            return int(word)
        match = _QUANTITY.fullmatch(word)
        scale = scales.get(match[2].lower()) if match else None
        if match is None or scale is None:
            raise ValueError(word)
        value, remainder = divmod(int(match[1]) * scale, unit)
        if remainder:
            raise ValueError(word)
        return value

    def render(value: int) -> str:
        # A suffix is easier to read. Keys that name a unit get a plain number in that unit.
        fitting = [] if unit > 1 else [item for item in measure.suffixes.items() if value > 0 and value % item[1] == 0]
        if not fitting:
            return str(value)
        suffix, scale = max(fitting, key=itemgetter(1))
        return f"{value // scale}{suffix}"

    limits = bounds(*(None if bound is None else render(bound) for bound in (minimum, maximum)))
    expected = f"a {measure.noun} in {measure.units[plain]} (or with a unit, as in {measure.example}){limits}"
    return ValueType(expected, parse, lambda value: is_integer(value, minimum, maximum), render)


def size(
    unit: int = 1, *, plain: int | None = None, minimum: int | None = 0, maximum: int | None = None
) -> ValueType[int]:
    """A number of bytes.

    Args:
        unit: Bytes that the value counts.
        plain: Bytes that a number without a suffix counts; ``unit`` unless given. An alias that counts MiB for a
            setting in bytes has ``plain=MIB``.
        minimum: Smallest value, in units, inclusive.
        maximum: Largest value, in units, inclusive.
    """
    return _quantity(_SIZE, unit=unit, plain=plain, minimum=minimum, maximum=maximum)


def duration(
    unit: int = SECOND_MS, *, plain: int | None = None, minimum: int | None = 0, maximum: int | None = None
) -> ValueType[int]:
    """A duration.

    Args:
        unit: Milliseconds that the value counts.
        plain: Milliseconds that a number without a suffix counts; ``unit`` unless given.
        minimum: Smallest value, in units, inclusive.
        maximum: Largest value, in units, inclusive.
    """
    return _quantity(_DURATION, unit=unit, plain=plain, minimum=minimum, maximum=maximum)
