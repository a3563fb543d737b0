from __future__ import annotations

import pytest

from afterglow.errors import InvalidPosition
from afterglow.format.frames import frame_entries, iter_entries
from afterglow.format.position import EARLIEST, LATEST, LedgerRange, Position
from afterglow.hot.pulsar.raw_entries import RawEntries, ReadProgress, plan_ranges

LEDGERS = [LedgerRange(3, 0, 9), LedgerRange(5, 0, 4), LedgerRange(8, 0, 99)]


def test_one_ledger_needs_no_expected_ranges() -> None:
    assert plan_ranges(Position(3, 4), Position(3, 4)) == (LedgerRange(3, 4, 4),)
    assert plan_ranges(Position(3, 0), Position(3, 9)) == (LedgerRange(3, 0, 9),)


def test_expected_ranges_are_cut_to_the_requested_one() -> None:
    assert plan_ranges(Position(3, 7), Position(8, 2), LEDGERS) == (
        LedgerRange(3, 7, 9),
        LedgerRange(5, 0, 4),
        LedgerRange(8, 0, 2),
    )
    assert plan_ranges(Position(5, 1), Position(5, 3), LEDGERS) == (LedgerRange(5, 1, 3),)


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        pytest.param(Position(3, 5), Position(3, 4), [], id="wrong way round"),
        pytest.param(EARLIEST, Position(3, 4), [], id="no entry to begin with"),
        pytest.param(Position(3, 4), LATEST, [], id="no entry to end with"),
        pytest.param(Position(3, -1), Position(3, 4), [], id="before the first entry"),
        pytest.param(Position(3, 4), Position(5, 0), [], id="ledgers in between unknown"),
        pytest.param(Position(3, 10), Position(5, 0), LEDGERS, id="behind the end of its ledger"),
        pytest.param(Position(3, 0), Position(5, 5), LEDGERS, id="end behind the end of its ledger"),
        pytest.param(Position(4, 0), Position(5, 4), LEDGERS, id="of a ledger that is not there"),
        pytest.param(Position(3, 0), Position(7, 4), LEDGERS, id="to a ledger that is not there"),
        pytest.param(Position(3, 0), Position(8, 4), [LEDGERS[2], *LEDGERS[:2]], id="out of order"),
        pytest.param(Position(3, 0), Position(8, 4), [LEDGERS[0], *LEDGERS], id="twice"),
    ],
)
def test_what_cannot_be_read_is_refused(begin: Position, end: Position, expected: list[LedgerRange]) -> None:
    with pytest.raises(InvalidPosition):
        plan_ranges(begin, end, expected)


def test_a_course_ends_with_each_ledger_and_with_the_last() -> None:
    progress = ReadProgress("t", LEDGERS[:2])
    assert (progress.awaited, progress.left, progress.current) == (Position(3, 0), 15, LEDGERS[0])
    assert progress.advance_by(4) is False
    assert (progress.awaited, progress.left, progress.current) == (Position(3, 4), 11, LedgerRange(3, 4, 9))
    assert "no entry 3:4 (wanted up to 5:4): gone" in str(progress.missing("gone"))
    assert progress.advance_by(6) is True
    assert (progress.awaited, progress.done) == (Position(5, 0), False)
    assert progress.advance_by(5) is True
    assert (progress.left, progress.done) == (0, True)


def test_a_run_has_the_positions_of_its_entries() -> None:
    run = RawEntries(3, 7, 2, memoryview(frame_entries([b"seven", b""], 7)), 0)
    assert (run.last_entry_id, run.payload_bytes) == (8, 5)
    assert [(i, bytes(data)) for i, data in iter_entries(run.data, run.frames)] == [(7, b"seven"), (8, b"")]
