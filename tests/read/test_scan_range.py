from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from afterglow.errors import ConfigError
from afterglow.format.position import EARLIEST, LATEST, Position
from afterglow.ledger.ledger_list import LedgerRecord
from afterglow.read.scan_range import ScanRange, parse_time

NOW_MS = 1_800_000_000_000


def ledgers(*last_times: int | None) -> list[LedgerRecord]:
    """Ledgers 10, 20, 30 … whose last entries have these broker times."""
    return [
        LedgerRecord(10 * number, 1, 1, 1, last_ms, hot_deleted=False) for number, last_ms in enumerate(last_times, 1)
    ]


@pytest.mark.parametrize(
    ("last_times", "since", "until", "read"),
    [
        ((100, 200, 300), None, None, [(10, 31)]),
        ((100, 200, 300), 200, None, [(20, 31)]),
        ((100, 200, 300), 201, None, [(30, 31)]),
        ((100, 200, 300), 301, None, []),
        ((100, 200, 300), None, 100, [(10, 11)]),
        ((100, 200, 300), None, 101, [(10, 21)]),
        ((100, 200, 300), 150, 160, [(20, 21)]),
        ((100, None, 300, None), 250, None, [(20, 41)]),  # nothing is known of those without a time
        ((100, 200, 300, None), None, 50, [(10, 11), (40, 41)]),
        ((None, None), 10, 20, [(10, 21)]),
    ],
)
def test_ledgers_that_time_rules_out_are_not_read(
    last_times: tuple[int | None, ...], since: int | None, until: int | None, read: list[tuple[int, int]]
) -> None:
    found = ScanRange.of(None, None, since, until, NOW_MS).ranges(ledgers(*last_times))
    assert found == [(Position(first, -1), Position(end, -1)) for first, end in read]


def test_positions_bound_the_ranges() -> None:
    found = ScanRange.of("10:3", "30:2:1", None, None, NOW_MS).ranges(ledgers(100, 200, 300, 400))
    assert found == [(Position(10, 3), Position(30, 3))]  # of entry 30:2 one message is wanted
    assert ScanRange.of("50:0", None, None, None, NOW_MS).ranges(ledgers(100)) == []
    assert ScanRange.of("10:3", "10:3", None, None, NOW_MS).ranges(ledgers(100)) == []


def test_without_bounds_everything_is_read() -> None:
    scan_range = ScanRange.of(None, None, None, None, NOW_MS)
    assert (scan_range.start, scan_range.end, scan_range.has_times) == (EARLIEST, LATEST, False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (5, 5),
        ("1794772800000", 1_794_772_800_000),
        ("2026-11-15T20:00:00Z", 1_794_772_800_000),
        ("2026-11-15t21:00:00.0019+01:00", 1_794_772_800_001),
        (datetime(2026, 11, 15, 20, tzinfo=UTC), 1_794_772_800_000),
        (datetime(2026, 11, 15, 19, tzinfo=timezone(timedelta(hours=-1))), 1_794_772_800_000),
        ("15m", NOW_MS - 15 * 60_000),
        ("2d", NOW_MS - 2 * 86_400_000),
        ("250 ms", NOW_MS - 250),
    ],
)
def test_times_in_every_spelling(given: str | int | datetime, expected: int) -> None:
    assert parse_time(given, NOW_MS) == expected


@pytest.mark.parametrize(
    "given",
    ["", "now", "-1", "2026-11-15", "2026-11-15T20:00:00", "2026-13-01T00:00:00Z", "1.5h", datetime(2026, 1, 1)],  # noqa: DTZ001
)
def test_an_invalid_time_is_refused(given: str | datetime) -> None:
    with pytest.raises(ConfigError, match="is not a valid time"):
        parse_time(given, NOW_MS)
