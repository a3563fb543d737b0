from __future__ import annotations

import pytest

from afterglow.format.position import Position
from afterglow.ledger.ledger_list import LedgerRecord
from afterglow.ledger.retention import Retention, consumed_before, ledgers_to_trim, ledgers_to_truncate

MIB = 1024 * 1024
NOW = 1_000_000_000
MINUTE = 60_000


def ledger(ledger_id: int, *, mib: int = 1, age_minutes: int = 10, entries: int | None = 5) -> LedgerRecord:
    closed_ms = 0 if entries is None else NOW - age_minutes * MINUTE
    return LedgerRecord(ledger_id, entries, None if entries is None else mib * MIB, closed_ms, None, hot_deleted=False)


OPEN = ledger(9, entries=None)
LIST = [ledger(1, age_minutes=40), ledger(2, age_minutes=30), ledger(3, age_minutes=20), OPEN]


def trimmed(minutes: int, megabytes: int, below: int | None = None, used: frozenset[int] = frozenset()) -> list[int]:
    return ledgers_to_trim(LIST, below, Retention.of(minutes, megabytes), NOW, used.__contains__)


@pytest.mark.parametrize(
    ("minutes", "megabytes", "going"),
    [
        (0, 0, [1, 2, 3]),  # nothing is retained
        (-1, -1, []),  # for ever
        (35, -1, [1]),
        (30, -1, [1]),  # as old is not older
        (29, -1, [1, 2]),
        (-1, 1, [1, 2]),  # what is left is 1 MiB
        (-1, 2, [1]),
        (-1, 3, []),
        (-1, 0, [1, 2, 3]),
        (25, 2, [1, 2]),  # either limit trims
        (35, 1, [1, 2]),
    ],
)
def test_a_consumed_ledger_is_trimmed_by_age_or_by_size_as_in_pulsar(
    minutes: int, megabytes: int, going: list[int]
) -> None:
    assert trimmed(minutes, megabytes) == going


def test_what_is_not_consumed_stays_and_keeps_what_follows() -> None:
    assert trimmed(0, 0, below=3) == [1, 2]
    assert trimmed(0, 0, below=1) == []


def test_a_ledger_kept_by_retention_keeps_older_ones_after_it() -> None:
    """As after a clock that went back: a topic must not get a hole."""
    ledgers = [ledger(1, age_minutes=20), ledger(2, age_minutes=40), OPEN]
    assert ledgers_to_trim(ledgers, None, Retention.of(30, -1), NOW, lambda _: False) == []


def test_a_ledger_in_use_stays_and_keeps_what_follows() -> None:
    assert trimmed(0, 0, used=frozenset({2})) == [1]
    assert ledgers_to_truncate(LIST, {2}.__contains__) == [1]


def test_the_last_ledger_stays_also_when_all_are_closed() -> None:
    assert ledgers_to_trim(LIST[:3], None, Retention(0, 0), NOW, lambda _: False) == [1, 2]
    assert ledgers_to_truncate(LIST[:3], lambda _: False) == [1, 2]
    assert ledgers_to_trim([], None, Retention(0, 0), NOW, lambda _: False) == []


@pytest.mark.parametrize(
    ("mark_deletes", "below"),
    [
        ([], None),
        ([Position(2, 4), Position(3, 1)], 3),  # the slowest has consumed ledger 2 wholly
        ([Position(3, 4), Position(1, 2)], 1),  # whatever others have consumed
        ([Position(2, 3)], 2),
        ([Position(2, -1)], 2),
        ([Position(9, 100)], 9),  # the open ledger has no end yet
        ([Position(5, 3)], 5),  # a ledger that is gone
    ],
)
def test_the_slowest_cursor_bounds_what_is_consumed(mark_deletes: list[Position], below: int | None) -> None:
    assert consumed_before(mark_deletes, LIST) == below
