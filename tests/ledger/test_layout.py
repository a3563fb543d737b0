from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterglow.format.position import EARLIEST, LATEST, Position
from afterglow.ledger.layout import Layout

LEDGERS = st.dictionaries(st.integers(0, 12), st.integers(0, 4), max_size=6).map(lambda known: sorted(known.items()))
POSITIONS = st.builds(Position, st.integers(-1, 13), st.integers(-1, 5)) | st.sampled_from([EARLIEST, LATEST])


@given(LEDGERS, POSITIONS, POSITIONS)
def test_arithmetic_of_positions_is_that_of_a_plain_list(
    ledgers: list[tuple[int, int]], one: Position, other: Position
) -> None:
    layout = Layout.of(ledgers)
    entries = [Position(ledger_id, entry_id) for ledger_id, count in ledgers for entry_id in range(count)]
    assert layout.total_entries == len(entries)
    assert layout.at_or_after(one) == next((entry for entry in entries if entry >= one), None)
    assert layout.contains(one) == (one in entries)
    assert layout.rank(one) == sum(entry <= one for entry in entries)
    assert layout.entries_between(one, other) == sum(one < entry <= other for entry in entries)
    spans = [
        Position(span.ledger_id, entry_id)
        for span in layout.ranges(one)
        for entry_id in range(span.first, span.last + 1)
    ]
    assert spans == [entry for entry in entries if entry >= one]
    assert [layout.at_rank(rank) for rank in range(len(entries))] == entries
    if entries:
        assert (layout.first, layout.last) == (entries[0], entries[-1])
    else:
        assert layout.last < Position(99, 0)
        assert layout.first <= Position(99, 0)


def test_growing_the_tail_is_the_same_as_laying_out_anew() -> None:
    assert Layout.of([(1, 2), (5, 0)]).with_tail(3) == Layout.of([(1, 2), (5, 3)])


def test_a_rank_beyond_the_end_is_an_error() -> None:
    with pytest.raises(IndexError):
        Layout.of([(1, 2)]).at_rank(2)
