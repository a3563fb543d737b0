"""Missing positions of requested ranges."""

from __future__ import annotations

import pytest

from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.ledger.layout import Layout
from afterglow.read.retained import RetainedRange
from afterglow.read.scan_range import ScanRange

TOPIC = "persistent://public/default/t"


def ledger_list(*ledgers: tuple[int, int | None]) -> ManagedLedgerInfo:
    """Ledgers as id and number of entries; None: it is still written."""
    info = ManagedLedgerInfo()
    for ledger_id, entries in ledgers:
        info.ledgerInfo.add(ledgerId=ledger_id, entries=entries)
    return info


LEDGERS = ledger_list((3, 10), (7, 5), (9, None))
RETAINED = RetainedRange.of(TOPIC, LEDGERS, Layout.of([(3, 10), (7, 5), (9, 4)]), hot=True)
TIERED = RetainedRange.of(TOPIC, LEDGERS, Layout.of([(7, 5)]), hot=False)


def missing_message(retained: RetainedRange, start: str | None, end: str | None = None) -> str | None:
    error = retained.missing(ScanRange.of(start, end, None, None, 0))
    return None if error is None else str(error)


@pytest.mark.parametrize(
    ("start", "end", "missing"),
    [
        ("1:5", None, "from 1:5 to latest: 1:5 to 3:0 was trimmed, or never written, and 3:0 through 9:3 is available"),
        ("1:5:2", "7:2", "from 1:5:2 to 7:2: 1:5 to 3:0 was trimmed"),
        ("1:5", "2:7", "from 1:5 to 2:7: 1:5 to 2:7 was trimmed"),
        (None, "2:7", "from earliest to 2:7: earliest to 2:7 was trimmed"),
        ("9:5", None, "from 9:5 to latest: 9:5 to latest was never written"),
        ("100:0", "200:0", "from 100:0 to 200:0: 100:0 to 200:0 was never written"),
        (None, "9:9", "from earliest to 9:9: 9:4 to 9:9 is not written yet"),
        (None, "9:4:1", "from earliest to 9:4:1: 9:4 to 9:5 is not written yet"),
        ("1:0", "9:9", "1:0 to 3:0 was trimmed, or never written, 9:4 to 9:9 is not written yet, and"),
    ],
)
def test_a_range_beyond_the_retained_one_is_reported(start: str | None, end: str | None, missing: str) -> None:
    text = missing_message(RETAINED, start, end)
    assert text is not None
    assert text.startswith(f"entries of the requested range are missing: {TOPIC} from ")
    assert missing in text


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (None, None),
        ("earliest", "latest"),
        ("latest", None),
        ("3:-1", None),
        ("3:0", "9:4"),
        ("3:99", None),  # after the end of a ledger: the next entry is the first of the next ledger
        ("5:0", None),  # between two ledgers that are left, nothing was trimmed
        ("9:4", None),  # the end, where a reader continues that has read everything
        (None, "7:99"),
        (None, "10:0"),  # all of ledger 9, as far as it goes
        (None, "3:0"),
        ("1:0", "1:0"),  # nothing
        ("2:0", "1:0"),
    ],
)
def test_a_range_without_a_position_that_is_missing_is_not(start: str | None, end: str | None) -> None:
    assert missing_message(RETAINED, start, end) is None


def test_a_topic_without_ledgers_has_no_position() -> None:
    empty = RetainedRange.of(TOPIC, ledger_list(), Layout(), hot=True)
    assert missing_message(empty, None) is None
    assert missing_message(empty, "latest") is None
    text = missing_message(empty, "1:0")
    assert text is not None
    assert (
        "1:0 to latest was never written, or is not visible yet, and no entry is available; start at earliest" in text
    )


def test_entries_skipped_with_the_hot_log_are_not_missing() -> None:
    for start, end in ((None, None), ("3:5", None), ("9:100", None), ("3:0", "9:100")):
        assert missing_message(TIERED, start, end) is None
    for start in ("1:0", "10:0"):
        text = missing_message(TIERED, start)
        assert text is not None
        assert "and 7:0 through 7:4 is available" in text


def test_nothing_more_is_expected_of_a_ledger_that_has_ended() -> None:
    ended = RetainedRange.of(TOPIC, ledger_list((3, 10)), Layout.of([(3, 10)]), hot=True)
    assert missing_message(ended, None, "3:99") is None
    assert missing_message(ended, "3:10") is None
    assert missing_message(ended, "3:11") is not None


@pytest.mark.parametrize(
    ("scan_range", "why"),
    [
        (ScanRange.of("3:1", "3:0", None, None, 0), "end 3:0 is before start 3:1"),
        (ScanRange.of("3:1:2", "3:1:1", None, None, 0), "end 3:1 is before start 3:1"),
        (ScanRange.of(None, None, 10, 9, 0), "until (epoch millisecond 9) is before since (10)"),
        (ScanRange.of("3:1", "3:1", 10, 10, 0), None),
        (ScanRange.of("latest", None, None, None, 0), None),
        (ScanRange.of(None, "earliest", None, None, 0), None),
    ],
)
def test_bounds_that_are_the_wrong_way_round_are_known(scan_range: ScanRange, why: str | None) -> None:
    assert scan_range.empty_reason == why
