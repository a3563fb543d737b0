"""Sizes and durations: a plain number counts the unit that the key names, a suffix says another.

Suffixes are those of ``pulsar-admin``: ``k m g t`` (powers of 1024) for sizes and ``s m h d w y`` for durations, in any
case, and ``ms`` besides. A value that is no whole multiple of the key's unit is refused rather than rounded. Negative
numbers mean "no limit" wherever a key allows them and are never scaled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from afterglow.config.kinds import Kind, bounds, is_integer

if TYPE_CHECKING:
    from collections.abc import Mapping

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
