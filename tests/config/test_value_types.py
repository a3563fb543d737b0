from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterglow.config import EntryInterceptor, ReadPriority, duration, size
from afterglow.config.value_types import (
    GIB,
    KIB,
    MIB,
    MINUTE_MS,
    SECOND_MS,
    choice,
    decimal,
    flag,
    integer,
    names,
    optional,
    pairs,
    port,
    several,
    switch,
    text,
)

if TYPE_CHECKING:
    from afterglow.config import ValueType

INT64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)
WORDS = st.text(st.characters(exclude_characters=",=", exclude_categories=("Z", "C")), min_size=1)


@given(INT64)
def test_an_integer_reads_back_as_written(value: int) -> None:
    value_type = integer()
    assert value_type.accepts(value)
    assert value_type.parse(value_type.render(value)) == value


@pytest.mark.parametrize("unit", [1, KIB, MIB, GIB])
@given(value=INT64)
def test_a_size_reads_back_as_written(unit: int, value: int) -> None:
    value_type = size(unit, minimum=None)
    assert value_type.parse(value_type.render(value)) == value


@pytest.mark.parametrize("unit", [1, SECOND_MS, MINUTE_MS])
@given(value=INT64)
def test_a_duration_reads_back_as_written(unit: int, value: int) -> None:
    value_type = duration(unit, minimum=None)
    assert value_type.parse(value_type.render(value)) == value


@given(st.floats(0, 1))
def test_a_decimal_reads_back_as_written(value: float) -> None:
    value_type = decimal(0.0, 1.0)
    assert value_type.accepts(value)
    assert value_type.parse(value_type.render(value)) == value


@given(st.lists(WORDS, unique=True))
def test_a_list_reads_back_as_written(words: list[str]) -> None:
    value = tuple(words)
    assert names().parse(names().render(value)) == value


@given(st.dictionaries(WORDS, WORDS))
def test_a_map_reads_back_as_written(words: dict[str, str]) -> None:
    value = tuple(sorted(words.items()))
    assert pairs().accepts(value)
    assert pairs().parse(pairs().render(value)) == value


@pytest.mark.parametrize(
    ("value_type", "word", "value"),
    [
        (flag(), "TRUE", True),
        (port(), "+8080", 8080),
        (size(), "64M", 64 * MIB),
        (size(), "64 m", 64 * MIB),
        (size(), "5242880", 5 * MIB),
        (size(), "1t", 1024 * GIB),
        (size(MIB), "2g", 2048),
        (size(plain=MIB), "64", 64 * MIB),
        (size(plain=MIB), "512k", 512 * KIB),
        (size(plain=MIB, minimum=-1), "-1", -1),
        (duration(), "10m", 600),
        (duration(), "1y", 365 * 86_400),
        (duration(1), "4H", 14_400_000),
        (duration(SECOND_MS, plain=MINUTE_MS), "10", 600),
        (duration(SECOND_MS, plain=MINUTE_MS), "45s", 45),
        (decimal(0.0, 1.0), "1", 1.0),
        (optional(port()), "", None),
        (optional(port()), "6650", 6650),
        (names(), "a, b,,a ", ("a", "b")),
        (pairs(), "b=2, a=1=1", (("a", "1=1"), ("b", "2"))),
        (choice(ReadPriority), "BOOKKEEPER_FIRST", ReadPriority.BOOKKEEPER_FIRST),
        (choice(ReadPriority), "Tiered-Storage-First", ReadPriority.TIERED_STORAGE_FIRST),
        (several(choice(EntryInterceptor), "words"), "index", (EntryInterceptor.INDEX,)),
        (switch(names(), on=("a",), off=()), "true", ("a",)),
        (switch(names(), on=("a",), off=()), "false", ()),
    ],
)
def test_text_is_read(value_type: ValueType[object], word: str, value: object) -> None:
    assert value_type.parse(word) == value
    assert value_type.accepts(value)


@pytest.mark.parametrize(
    ("value_type", "word"),
    [
        (flag(), "yes"),
        (flag(), "1"),
        (integer(), "1_000"),
        (integer(), "１"),  # noqa: RUF001 - a digit of another width is what is tried
        (integer(), "1.0"),
        (size(), "64MB"),
        (size(), "64Q"),
        (size(), "-1M"),
        (size(), "64\N{KELVIN SIGN}"),
        (size(MIB), "512k"),
        (duration(), "1500ms"),
        (duration(), "10 minutes"),
        (decimal(0.0, 1.0), "half"),
        (choice(ReadPriority), "tiered"),
        (pairs(), "a"),
        (pairs(), "=1"),
    ],
)
def test_invalid_text_is_refused(value_type: ValueType[object], word: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        value_type.parse(word)


@pytest.mark.parametrize(
    ("value_type", "value"),
    [
        (port(), -1),
        (port(), 65_536),
        (port(), True),
        (port(), "80"),
        (integer(), 2**63),
        (size(), -1),
        (size(minimum=1), 0),
        (size(maximum=10), 11),
        (duration(minimum=-1), -2),
        (decimal(0.0, 1.0), 1.1),
        (decimal(0.0, 1.0), float("nan")),
        (decimal(0.0, 1.0), 1),
        (text(), ""),
        (flag(), 1),
        (choice(ReadPriority), "bookkeeper-first"),
        (names(), ["a"]),
        (names(), ("",)),
        (pairs(), (("a",),)),
        (pairs(), ("ab",)),
    ],
)
def test_a_value_out_of_range_or_of_another_type_is_refused(value_type: ValueType[object], value: object) -> None:
    assert not value_type.accepts(value)
