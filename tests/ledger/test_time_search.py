from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.ledgers import World, message, settings

from afterglow.config.choices import EntryInterceptor
from afterglow.errors import CorruptEntry
from afterglow.format.entry import encode_broker_metadata
from afterglow.format.position import EARLIEST, Position
from afterglow.ledger.entry_source import EntrySlice, HotSource
from afterglow.ledger.layout import Layout
from afterglow.ledger.reader import StoredEntry
from afterglow.ledger.time_search import TimeSearch, entry_time

if TYPE_CHECKING:
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.managed_ledger import ManagedLedger

STAMPED = tuple(EntryInterceptor)


def scan(ledger: ManagedLedger, time_ms: int) -> Position | None:
    """The plain way: the first entry whose time, the broker's or else the client's, is at or after the moment."""
    for entry in ledger.reader.read(EARLIEST, 1_000_000, 1 << 40):
        if entry_time(entry.data).time_ms >= time_ms:
            return entry.position
    return None


def topic(world: World, rng: random.Random, parts: list[tuple[bool, int]]) -> ManagedLedger:
    """A topic with stamped and unstamped ranges, with publish times in random order, over many ledgers."""
    ledger = world.open()
    for stamped, count in parts:
        world.config = settings(
            broker_entry_metadata_interceptors=STAMPED if stamped else (), managed_ledger_max_entries_per_ledger=37
        )
        world.crash()
        ledger = world.open()
        for _ in range(count):
            world.clock.advance(rng.choice([0, 0, 0.001, 0.003, 0.5]))
            world.append(ledger, message(b"x" * rng.randrange(50), world.clock.now_ms() + rng.randrange(-5000, 5000)))
    return ledger


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([(True, 600)], id="always on"),
        pytest.param([(False, 200), (True, 400)], id="switched on half-way"),
        pytest.param([(True, 150), (False, 150), (True, 150), (False, 30)], id="on and off"),
        pytest.param([(False, 200)], id="never on"),
    ],
)
def test_seek_by_time_lands_where_a_plain_scan_does(parts: list[tuple[bool, int]]) -> None:
    seed = random.SystemRandom().getrandbits(32)
    rng = random.Random(seed)
    world = World()
    start = world.clock.now_ms()
    ledger = topic(world, rng, parts)
    end = world.clock.now_ms()
    times = [
        (entry.position, entry_time(entry.data).time_ms) for entry in ledger.reader.read(EARLIEST, 10_000, 1 << 30)
    ]
    moments = [rng.randrange(start - 6000, end + 6000) for _ in range(1000)]
    moments += [time_ms + off for _, time_ms in rng.sample(times, 100) for off in (-1, 0, 1)]
    for moment in moments:
        expected = next((position for position, time_ms in times if time_ms >= moment), None)
        assert ledger.reader.first_at_or_after(moment).position == expected, (seed, moment)
        assert ledger.reader.find_by_time(moment) == (expected or ledger.layout.last.next()), (seed, moment)
        older = [position for position, _ in times if expected is None or position < expected]
        assert ledger.reader.last_before(moment) == (older[-1] if older else None), (seed, moment)


def test_a_search_probes_few_entries_and_parses_none_of_their_messages() -> None:
    world = World(settings(managed_ledger_max_entries_per_ledger=500))
    ledger = world.open()
    rng = random.Random(7)
    for _ in range(4000):
        world.clock.advance(0.002)
        world.append(ledger, message(b"x" * 200, rng.randrange(2**40)))
    whole = sum(entry_time(entry.data).parsed_bytes for entry in ledger.reader.read(EARLIEST, 10_000, 1 << 30))
    for number in range(200):
        moment = world.clock.now_ms() - rng.randrange(8000)
        found = ledger.reader.first_at_or_after(moment)
        if number < 3:
            assert found.position == scan(ledger, moment)
        assert found.cost.entries <= 2 + 9 + 1  # ends of the open ledger, and a bisection of 500
        assert found.cost.parsed_bytes <= found.cost.entries * 20
        assert found.cost.parsed_bytes * 100 < whole


def test_an_empty_topic_has_no_entry_at_any_time() -> None:
    ledger = World().open()
    found = ledger.reader.first_at_or_after(0)
    assert (found.position, found.cost.entries) == (None, 0)
    assert ledger.reader.last_before(2**60) is None
    assert ledger.reader.find_by_time(0) == ledger.layout.last.next()


def test_trimmed_ledgers_are_not_searched() -> None:
    world = World()
    ledger = world.open()
    world.append(ledger, message(b"a"))
    ledger.trimmer.truncate()
    world.clock.advance(1)
    (kept,) = world.append(ledger, message(b"b"))
    assert ledger.reader.first_at_or_after(0).position == kept


@pytest.mark.parametrize("damaged", [{0, 1, 2}, {2}, {37, 38}, {298, 299}, set(range(300))], ids=str)
def test_unstamped_entries_that_are_damaged_are_passed_over(damaged: set[int]) -> None:
    class LeavesOut(HotSource):
        def probe(self, ledger_info: ManagedLedgerInfo.LedgerInfo, first: int, last: int, max_bytes: int) -> EntrySlice:
            if ledger_info.ledgerId == 1 and first in damaged:
                whole = [at for at in range(first, last + 1) if at not in damaged]
                return EntrySlice(last + 1, ()) if not whole else self.probe(ledger_info, whole[0], last, max_bytes)
            end = min((at for at in damaged if ledger_info.ledgerId == 1 and at > first), default=last + 1)
            return self.read(ledger_info, first, min(last, end - 1), max_bytes)

    world = World(settings(broker_entry_metadata_interceptors=(), managed_ledger_cache_size_mb=0))
    ledger = world.open()
    world.append(ledger, *(message(b"x", 1_000 + at) for at in range(300)))
    ledger.roll()
    world.append(ledger, message(b"x", 1_300))
    world.sources = lambda name: LeavesOut(name, world.hot)
    world.crash()
    ledger = world.open()
    positions = [Position(1, at) for at in range(300)] + [Position(2, 0)]
    for moment in (0, 1_000, 1_001, 1_002, 1_003, 1_037, 1_299, 1_300):
        whole = (at for at in range(301) if 1_000 + at >= moment and at not in damaged)
        assert ledger.reader.first_at_or_after(moment).position == positions[next(whole)], moment
    assert ledger.reader.first_at_or_after(1_301).position is None


class Fixed:
    """Entries in one ledger, given as they are stored."""

    def __init__(self, entries: list[bytes]) -> None:
        self.entries = entries
        self.layout = Layout.of([(1, len(entries))])

    def probe(self, position: Position, max_entries: int, max_bytes: int) -> list[StoredEntry]:
        first = position.entry_id if position.ledger_id == 1 else 0
        chosen = enumerate(self.entries[first : first + max_entries], first)
        return [StoredEntry(Position(1, at), data) for at, data in chosen]

    def narrow(self, _ledger_id: int, entries: range, _time_ms: int, *, stamped: bool) -> range:
        del stamped
        return entries


def stored(broker: int | None, publish: int) -> bytes:
    head = b"" if broker is None else encode_broker_metadata(broker, None)
    return head + message(b"payload", publish)


TIMES = st.integers(0, 50)


@given(st.lists(TIMES, max_size=30), st.lists(TIMES, max_size=30), st.integers(-1, 52))
def test_a_switch_within_one_ledger_is_found(before: list[int], after: list[int], moment: int) -> None:
    entries = Fixed([stored(None, time) for time in before] + [stored(time, 99) for time in sorted(after)])
    times = [*before, *sorted(after)]
    expected = next((at for at, time in enumerate(times) if time >= moment), None)
    found = TimeSearch(entries, entries.layout, {}).first_at_or_after(moment).position
    assert found == (None if expected is None else Position(1, expected))


@given(st.lists(st.tuples(TIMES, st.booleans()), min_size=1, max_size=40), st.integers(-1, 52))
def test_markers_without_a_stamp_between_stamped_entries_do_not_mislead(
    drawn: list[tuple[int, bool]], moment: int
) -> None:
    """As Pulsar writes them: the first and the last entry stamped, markers between not."""
    times = sorted(time for time, _ in drawn)
    marker = [drawn[at][1] and 0 < at < len(drawn) - 1 for at in range(len(drawn))]
    entries = Fixed([stored(None if marker[at] else time, time) for at, time in enumerate(times)])
    expected = next((at for at, time in enumerate(times) if time >= moment and not marker[at]), None)
    found = TimeSearch(entries, entries.layout, {}).first_at_or_after(moment).position
    assert found == (None if expected is None else Position(1, expected))


def test_what_is_no_message_has_no_time_and_is_passed_over() -> None:
    entries = Fixed([b"", b"\x0e\x02\x00\x00\x00\xff", b"\x00\x00\x00\x02\xff\xff", stored(None, 5), b"junk!"])
    assert TimeSearch(entries, entries.layout, {}).first_at_or_after(5).position == Position(1, 3)
    assert TimeSearch(entries, entries.layout, {}).first_at_or_after(6).position is None


@pytest.mark.parametrize("damaged", [b"", b"\x0e\x02\x00", b"\x0e\x02\x00\x00\x00\x09\x08", b"\x00\x00\x00\x01\xff"])
def test_a_damaged_envelope_is_reported(damaged: bytes) -> None:
    with pytest.raises(CorruptEntry):
        entry_time(damaged)


def test_an_index_alone_is_no_time() -> None:
    entry = encode_broker_metadata(None, 7) + message(b"x", 44)
    assert (entry_time(entry).time_ms, entry_time(entry).by_broker) == (44, False)
