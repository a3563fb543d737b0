from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from afterglow.format.position import Position
from afterglow.ledger.acks import Acks, BatchAcks, EntryRanges, from_words, to_words
from afterglow.ledger.layout import Layout

ENTRY = st.integers(0, 30)
LEDGER = st.integers(0, 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), LEDGER, ENTRY, st.integers(0, 5)),
        st.tuples(st.just("remove"), LEDGER, st.integers(-1, 31), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_ranges_are_a_set_of_entries(steps: list[tuple[str, int, int, int]]) -> None:
    ranges = EntryRanges()
    model: set[Position] = set()
    for kind, ledger_id, entry_id, more in steps:
        if kind == "add":
            new = {Position(ledger_id, entry) for entry in range(entry_id, entry_id + more + 1)}
            assert ranges.add(ledger_id, entry_id, entry_id + more) == len(new - model)
            model |= new
        else:
            ranges.remove_through(Position(ledger_id, entry_id))
            model = {position for position in model if position > Position(ledger_id, entry_id)}
        found = list(ranges)
        assert {Position(id_, entry) for id_, first, last in found for entry in range(first, last + 1)} == model
        assert ranges.count == len(model)
        assert len(ranges) == len(found)
        # Ranges that overlap or touch are one.
        assert all(left[0] < right[0] or left[2] + 1 < right[1] for left, right in pairwise(found))
        for position in (Position(ledger, entry) for ledger in range(3) for entry in range(38)):
            assert (position in ranges) == (position in model)


@given(st.sets(st.integers(0, 200)))
def test_words_of_a_bit_set_are_those_of_java(bits: set[int]) -> None:
    number = sum(1 << bit for bit in bits)
    words = to_words(number)
    assert from_words(words) == number
    assert all(-(2**63) <= word < 2**63 for word in words)
    assert not words or words[-1] != 0
    assert from_words([word & (2**64 - 1) for word in words]) == number
    assert from_words([*words, 0]) == number


def test_the_highest_bit_of_a_word_makes_it_negative() -> None:
    assert to_words(1 << 63) == (-(2**63),)
    assert to_words(0) == ()


@given(st.lists(st.tuples(st.integers(0, 4), st.sets(st.integers(0, 69), min_size=1)), max_size=20))
def test_a_batch_is_acked_when_all_its_messages_are(acks: list[tuple[int, set[int]]]) -> None:
    size = 70
    batches = BatchAcks()
    model: dict[Position, set[int]] = {}
    for entry_id, messages in acks:
        position = Position(1, entry_id)
        left = model.setdefault(position, set(range(size)))
        left -= messages
        words = to_words(sum(1 << bit for bit in range(size) if bit not in messages))
        assert batches.ack(position, words) == (not left)
        if not left:
            model[position] = set(range(size))  # removed: the caller keeps whole entries elsewhere
        partly = {known: bits for known, bits in model.items() if len(bits) < size}
        assert {known: set(_bits(words)) for known, words in batches} == partly
        assert [known for known, _ in batches] == sorted(partly)


def test_batches_up_to_a_position_are_removed_together() -> None:
    batches = BatchAcks()
    for entry_id in range(5):
        batches.ack(Position(1, entry_id), (1,))
    batches.remove_through(Position(1, 2))
    batches.drop(Position(1, 4))
    batches.drop(Position(9, 9))
    assert list(batches) == [(Position(1, 3), (1,))]


def _bits(words: tuple[int, ...]) -> list[int]:
    number = from_words(words)
    return [bit for bit in range(number.bit_length()) if number >> bit & 1]


@given(
    st.lists(st.tuples(st.integers(1, 2), st.integers(0, 9), st.booleans()), max_size=6),
    st.integers(1, 2),
    st.integers(0, 9),
    st.integers(0, 9),
)
@example([(2, 5, True)], 2, 3, 4)
@example([(2, 5, False)], 2, 3, 4)
@example([(2, 5, True), (2, 8, False)], 2, 6, 1)
def test_a_range_is_known_to_have_an_acknowledgement_or_none(
    acks: list[tuple[int, int, bool]], ledger_id: int, first: int, length: int
) -> None:
    layout = Layout.of([(1, 20), (2, 20)])
    all_acks = Acks(Position(1, 1))
    touched = {(1, 0), (1, 1)}
    for ledger, entry_id, is_whole in acks:
        all_acks.ack(Position(ledger, entry_id), None if is_whole else (-2,), layout)
        touched.add((ledger, entry_id))
    expected = any((ledger_id, entry_id) in touched for entry_id in range(first, first + length + 1))
    assert all_acks.is_any_acked(ledger_id, first, first + length) == expected


@given(
    st.lists(st.lists(st.builds(Position, st.integers(0, 3), st.integers(-2, 12)), max_size=15), max_size=6),
    st.sets(st.integers(0, 9), max_size=2),
)
def test_entries_acknowledged_together_are_those_acknowledged_one_by_one(
    groups: list[list[Position]], batches: set[int]
) -> None:
    layout = Layout.of([(1, 10), (2, 5)])
    together, single = Acks(Position(1, -1)), Acks(Position(1, -1))
    for entry_id in batches:
        for acks in (together, single):
            acks.ack(Position(1, entry_id), (1,), layout)
    for positions in groups:
        assert together.ack_all(positions, layout) == sum(single.ack(each, None, layout) for each in positions)
        assert (together.mark_delete, list(together.entries)) == (single.mark_delete, list(single.entries))
        assert list(together.batches) == list(single.batches)
