"""Types of settings: how their text is read, which values are in range, how they are written back.

Every kind keeps one law: ``kind.parse(kind.render(value)) == value`` for each value that it accepts. Kinds know nothing
of keys, files or origins; a caller turns their ``ValueError`` into a message with :attr:`Kind.description`.

A plain number of a size or duration counts the unit that the key names; a suffix gives another. Suffixes are those of
``pulsar-admin``: ``k m g t`` (powers of 1024) for sizes and ``s m h d w y`` for durations, in any case, and ``ms``
besides. A value that is not a whole multiple of the key's unit is refused rather than rounded. Negative numbers mean
"no limit" wherever a key allows them and are never scaled.
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
class Kind(Generic[T]):
    """The type of a setting."""

    description: str
    """What is expected, as the end of a sentence: ``an integer, at least 1``."""
    parse: Callable[[str], T]
    """Reads text without surrounding white space; ``ValueError`` if it is none of this kind. Does not look at range."""
    accepts: Callable[[object], bool]
    """Whether a value has the right type and lies in range."""
    render: Callable[[T], str] = str
    """Writes a value as :attr:`parse` reads it."""
    takes_empty: bool = False
    """Whether an empty text means something; where it does not, a key without a value counts as not given."""


def text() -> Kind[str]:
    """Any text but the empty one."""
    return Kind("a text", str, lambda value: isinstance(value, str) and value != "")


def _parse_flag(word: str) -> bool:
    if word.lower() not in {"true", "false"}:
        raise ValueError(word)
    return word.lower() == "true"


def flag() -> Kind[bool]:
    """``true`` or ``false``. Java reads every other word as false; here it is an error."""
    return Kind("true or false", _parse_flag, lambda value: isinstance(value, bool), lambda value: str(value).lower())


def switch(kind: Kind[T], *, on: T, off: T) -> Kind[T]:
    """A flag that stands for one of two values of another kind."""
    return Kind(
        f"true ({kind.render(on)}) or false ({kind.render(off) or 'nothing'})",
        lambda word: on if _parse_flag(word) else off,
        lambda value: value in (on, off),
        lambda value: "true" if value == on else "false",
    )


def _parse_integer(digits: str) -> int:
    # int() alone would also take underscores and digits of other scripts, which no other reader of the file takes.
    if not _INTEGER.fullmatch(digits):
        raise ValueError(digits)
    return int(digits)


def bounds(minimum: object | None, maximum: object | None) -> str:
    """The end of a description: `` from 0 to 65535``, `` of at least 1``, or nothing."""
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    if minimum is not None:
        return f" of at least {minimum}"
    return "" if maximum is None else f" of at most {maximum}"


def is_integer(value: object, minimum: int | None, maximum: int | None) -> bool:
    """Whether the value is an ``int`` of 64 bits inside both bounds, each inclusive."""
    if isinstance(value, bool) or not isinstance(value, int) or not -_INT64_LIMIT <= value < _INT64_LIMIT:
        return False
    return (minimum is None or value >= minimum) and (maximum is None or value <= maximum)


def integer(minimum: int | None = None, maximum: int | None = None) -> Kind[int]:
    """A whole number of 64 bits; both bounds inclusive."""
    return Kind(
        f"an integer{bounds(minimum, maximum)}", _parse_integer, lambda value: is_integer(value, minimum, maximum)
    )


def port() -> Kind[int]:
    """A TCP port; 0 picks a free one."""
    return integer(0, 65535)


def decimal(minimum: float, maximum: float) -> Kind[float]:
    """A finite number; both bounds inclusive."""

    def accepts(value: object) -> bool:
        return isinstance(value, float) and math.isfinite(value) and minimum <= value <= maximum

    return Kind(f"a number{bounds(minimum, maximum)}", float, accepts, repr)


def optional(kind: Kind[T]) -> Kind[T | None]:
    """A value that may be absent, written as nothing at all."""
    return Kind(
        f"{kind.description}, or nothing",
        lambda word: kind.parse(word) if word else None,
        lambda value: value is None or kind.accepts(value),
        lambda value: "" if value is None else kind.render(value),
        takes_empty=True,
    )


def choice(members: type[E], spellings: Mapping[str, E] | None = None) -> Kind[E]:
    """One member of an enumeration, by value, by name, or by one of the further spellings; case does not count."""
    known = {word.lower(): member for member in members for word in (member.value, member.name)}
    known |= {word.lower(): member for word, member in (spellings or {}).items()}

    def parse(word: str) -> E:
        try:
            return known[word.lower()]
        except KeyError:
            raise ValueError(word) from None

    return Kind(
        "one of " + ", ".join(member.value for member in members),
        parse,
        lambda value: isinstance(value, members),
        lambda value: value.value,
    )


def several(kind: Kind[T], plural: str) -> Kind[tuple[T, ...]]:
    """Values separated by commas, in the order given; repeats are dropped."""

    def parse(words: str) -> tuple[T, ...]:
        return tuple(dict.fromkeys(kind.parse(word.strip()) for word in words.split(",") if word.strip()))

    return Kind(
        f"{plural}, separated by commas",
        parse,
        lambda value: isinstance(value, tuple) and all(kind.accepts(item) for item in value),
        lambda value: ",".join(kind.render(item) for item in value),
        takes_empty=True,
    )


def names() -> Kind[tuple[str, ...]]:
    """Texts separated by commas."""
    return several(text(), "texts")


def pairs() -> Kind[tuple[tuple[str, str], ...]]:
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

    return Kind(
        "key=value pairs, separated by commas",
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
) -> Kind[int]:
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
        # Whole multiples of a larger unit read better; where the key names a unit of its own, the number stands for it.
        fitting = [] if unit > 1 else [item for item in measure.suffixes.items() if value > 0 and value % item[1] == 0]
        if not fitting:
            return str(value)
        suffix, scale = max(fitting, key=itemgetter(1))
        return f"{value // scale}{suffix}"

    limits = bounds(*(None if bound is None else render(bound) for bound in (minimum, maximum)))
    expected = f"a {measure.noun} in {measure.units[plain]} (or like {measure.example}){limits}"
    return Kind(expected, parse, lambda value: is_integer(value, minimum, maximum), render)


def size(unit: int = 1, *, plain: int | None = None, minimum: int | None = 0, maximum: int | None = None) -> Kind[int]:
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
) -> Kind[int]:
    """A span of time.

    Args:
        unit: Milliseconds that the value counts.
        plain: Milliseconds that a number without a suffix counts; ``unit`` unless given.
        minimum: Smallest value, in units, inclusive.
        maximum: Largest value, in units, inclusive.
    """
    return _quantity(_DURATION, unit=unit, plain=plain, minimum=minimum, maximum=maximum)
