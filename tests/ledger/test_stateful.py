"""A topic against a plain list: every operation, failures of disk and metadata, and crashes, in any order."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.faults import Fault, FaultRule, FaultyMetadataStore
from tests.support.ledgers import World, message
from tests.support.ledgers import settings as broker_settings

from afterglow.errors import AfterglowError, MetadataError, TopicTerminated
from afterglow.format.entry import split_broker_metadata
from afterglow.format.position import EARLIEST
from afterglow.ledger.retention import Retention
from afterglow.metadata.memory import MemoryMetadataStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.format.position import Position
    from afterglow.ledger.durable_cursor import DurableCursor
    from afterglow.ledger.managed_ledger import ManagedLedger

CURSORS = ("one", "two")


class TopicMachine(RuleBasedStateMachine):
    """The model: what must be in the topic, in order, and what each cursor must still see."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0
        self.known: list[int] = []  # acknowledged to the producer, and not trimmed
        self.unheard: list[int] = []  # sent behind them, outcome unknown: may be there, in order, as a prefix
        self.left: dict[str, set[int]] = {}  # per cursor: what it has not acknowledged, or not durably
        self.acked: dict[str, set[int]] = {}  # per cursor: what it has acknowledged, durably or not
        self.terminated = False
        self.last_time = 0
        self.trimmed = 0

    @initialize(
        seed=st.integers(0, 2**32),
        flaky=st.sampled_from([0.0, 0.02, 0.1]),
        entries=st.integers(1, 4),
    )
    def begin(self, seed: int, flaky: float, entries: int) -> None:
        note(f"metadata seed {seed}")
        faults = [
            FaultRule(fault, probability=flaky, times=None)
            for fault in (Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.LOST, Fault.CONFLICT)
            if flaky
        ]
        self.faulty = FaultyMetadataStore(MemoryMetadataStore(), faults, seed=seed)
        self.world = World(
            broker_settings(
                managed_ledger_max_entries_per_ledger=entries, managed_ledger_default_mark_delete_rate_limit=0.0
            ),
            self.faulty,
        )
        self.ledger = self._open()
        for name in CURSORS:
            self._insist(lambda name=name: self.ledger.cursors.create(name, EARLIEST))  # type: ignore[misc]
            self.left[name] = set()
            self.acked[name] = set()

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _insist(self, action: Callable[[], object]) -> None:
        """Do something until metadata lets it happen."""
        while True:
            try:
                action()
            except MetadataError:
                self.world.clock.advance(10)
            else:
                return

    def _refresh(self) -> None:
        """Read the list again: an edit with an unknown outcome may show at any later read."""
        self._insist(lambda: self.ledger.update(lambda _info: None))

    def _open(self) -> ManagedLedger:
        opened: list[ManagedLedger] = []
        self._insist(lambda: opened.append(self.world.open()))
        return opened[-1]

    def _done(self, number: int) -> Callable[[Position | AfterglowError], None]:
        def done(outcome: Position | AfterglowError) -> None:
            self.unheard.remove(number)
            if not isinstance(outcome, AfterglowError):
                self.known.append(number)
                for left in self.left.values():
                    left.add(number)

        return done

    def _send(self, messages: int = 1) -> None:
        number = self.numbers
        self.numbers += 1
        self.unheard.append(number)
        self.ledger.append((message(b"%d" % number),), messages, self._done(number))

    def _entries(self) -> list[tuple[Position, int]]:
        found = []
        for entry in self.ledger.reader.read(EARLIEST, 10_000, 1 << 30):
            _, bare = split_broker_metadata(entry.data)
            found.append((entry.position, int(bytes(bare).rpartition(b"\x00")[2])))
        return found

    def _cursor(self, name: str) -> DurableCursor:
        return self.ledger.cursors.get(name)

    # --- what happens -------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 4), messages=st.integers(0, 3), held=st.booleans())
    def append(self, count: int, messages: int, held: bool) -> None:  # noqa: FBT001
        self.world.hot.held = held
        for _ in range(count):
            self._send(messages)
        self.world.clock.advance(10)

    @rule(count=st.integers(1, 3))
    def complete_some(self, count: int) -> None:
        self.world.hot.complete(count)

    @rule()
    def run_one_task(self) -> None:
        self.world.executor.run_one()

    @rule()
    def settle(self) -> None:
        self.world.hot.held = False
        self.world.settle()
        assert not self.unheard

    @rule()
    def disk_full_for_a_while(self) -> None:
        self.world.hot.full = True
        before = len(self.known)
        self._send()
        self._send()
        self.world.hot.held = False
        self.world.settle()
        self.world.hot.full = False
        assert len(self.known) == before, "nothing is confirmed while the disk is full"
        assert not self.unheard
        self.world.clock.advance(10)

    @rule()
    def roll(self) -> None:
        self.world.hot.held = False
        self.world.settle()
        try:
            self.ledger.roll()
        except MetadataError:
            pass
        except TopicTerminated:
            assert self.terminated

    @rule(milliseconds=st.integers(-100_000, 100_000))
    def clock_jumps(self, milliseconds: int) -> None:
        self.world.clock.set_now_ms(max(self.world.clock.now_ms() + milliseconds, 1))

    @rule(survivors=st.integers(0, 3), busy=st.booleans())
    def crash(self, survivors: int, busy: bool) -> None:  # noqa: FBT001
        if busy:
            self.world.hot.held = False
            self.world.settle()
            self.append(4, 1, held=True)
        self.world.crash(survivors)
        self.ledger = self._open()
        self._insist(self.world.store.start)
        self._adopt_survivors()

    @rule()
    def close_and_open(self) -> None:
        self.world.hot.held = False
        self.world.settle()
        self.ledger.close()
        assert not self.unheard
        self.world.boot()
        self.ledger = self._open()

    def _adopt_survivors(self) -> None:
        """What became durable unheard of is part of the topic now; the rest never was."""
        found = [number for _, number in self._entries()]
        assert found[: len(self.known)] == self.known
        survivors = found[len(self.known) :]
        assert survivors == self.unheard[: len(survivors)], "in order, and nothing else"
        self.known += survivors
        self.unheard.clear()
        for left in self.left.values():
            left.update(survivors)

    @precondition(lambda self: self.known)
    @rule(name=st.sampled_from(CURSORS), at=st.integers(0, 100), durably=st.booleans())
    def ack(self, name: str, at: int, durably: bool) -> None:  # noqa: FBT001
        position, number = self._entries()[at % len(self.known)]
        self._acked(name, {number}, durably=durably, action=lambda: self._cursor(name).ack([(position, None)]))

    @precondition(lambda self: self.known)
    @rule(name=st.sampled_from(CURSORS), at=st.integers(0, 100), durably=st.booleans())
    def ack_through(self, name: str, at: int, durably: bool) -> None:  # noqa: FBT001
        entries = self._entries()
        at %= len(entries)
        numbers = {number for _, number in entries[: at + 1]}
        self._acked(name, numbers, durably=durably, action=lambda: self._cursor(name).ack_through(entries[at][0]))

    @precondition(lambda self: self.known)
    @rule(at=st.integers(0, 100), trim=st.booleans())
    def everybody_acks(self, at: int, trim: bool) -> None:  # noqa: FBT001
        for name in CURSORS:
            self.ack_through(name, at, durably=True)
        if trim:
            self.trim()

    def _acked(self, name: str, numbers: set[int], *, durably: bool, action: Callable[[], object]) -> None:
        action()
        self.acked[name] |= numbers
        if durably:
            self.world.hot.held = False
            results: list[object] = []
            self._cursor(name).flush(results.append)
            self.world.settle()
            assert results == [None]
            self.left[name] -= numbers

    @precondition(lambda self: self.known)
    @rule(name=st.sampled_from(CURSORS), at=st.integers(0, 100))
    def seek(self, name: str, at: int) -> None:
        entries = self._entries()
        position, number = entries[at % len(entries)]
        self._cursor(name).reset(position)
        self.world.hot.held = False
        self._cursor(name).flush()
        self.world.settle()
        self.left[name] = {other for other in self.known if other >= number}
        self.acked[name] = {other for other in self.known if other < number}

    @rule()
    def trim(self) -> None:
        """Trimmed entries are acknowledged by every cursor, and are the oldest ones."""
        self.world.hot.held = False
        self.world.settle()
        self.ledger.retention = Retention(0, 0)
        with suppress(MetadataError):
            self.ledger.trim()
        self.ledger.retention = Retention(-1, -1)
        self._refresh()
        self._let_go()

    def _let_go(self) -> None:
        found = [number for _, number in self._entries()]
        gone = self.known[: len(self.known) - len(found)]
        assert found == self.known[len(gone) :]
        for name in CURSORS:
            assert set(gone) <= self.acked[name], name
            self.left[name] -= set(gone)
        self.known = found
        self.trimmed += len(gone)

    @rule()
    def truncate(self) -> None:
        self.world.hot.held = False
        self.world.settle()
        with suppress(MetadataError):
            self.ledger.trimmer.truncate()
        self._refresh()
        for name in CURSORS:
            if not self._cursor(name).backlog:
                self.acked[name] |= set(self.known)
        found = [number for _, number in self._entries()]
        assert found == self.known[len(self.known) - len(found) :]
        for number in set(self.known) - set(found):
            for name in CURSORS:
                self.left[name].discard(number)
                self.acked[name].add(number)
        self.known = found

    @precondition(lambda self: self.numbers > 5)
    @rule(sure=st.integers(0, 5))
    def terminate(self, sure: int) -> None:
        if sure:  # rarely: there is not much to do after it
            return
        self.world.hot.held = False
        self.world.settle()
        try:
            last = self.ledger.terminate()
        except MetadataError:
            self._insist(self._terminate)
            last = self._terminate()
        assert last == self.ledger.terminated
        assert self.terminated or not self.known or last == self.ledger.layout.last
        self.terminated = True
        refused: list[object] = []
        self.ledger.append((message(b"no"),), 1, refused.append)
        self.world.settle()
        assert isinstance(refused[0], TopicTerminated)

    def _terminate(self) -> Position:
        return self.ledger.terminate()

    @precondition(lambda self: self.known)
    @rule(at=st.integers(0, 100), off=st.integers(-1, 1))
    def seek_by_time(self, at: int, off: int) -> None:
        times: list[tuple[Position, int]] = []
        for entry in self.ledger.reader.read(EARLIEST, 10_000, 1 << 30):
            metadata, _ = split_broker_metadata(entry.data)
            assert metadata is not None
            times.append((entry.position, metadata.broker_timestamp))
        moment = times[at % len(times)][1] + off
        expected = next((position for position, time in times if time >= moment), None)
        assert self.ledger.reader.first_at_or_after(moment).position == expected

    # --- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def readers_see_what_was_confirmed(self) -> None:
        if not hasattr(self, "ledger"):
            return
        entries = self._entries()
        assert [number for _, number in entries] == self.known
        assert [position for position, _ in entries] == sorted({position for position, _ in entries})
        assert self.ledger.layout.total_entries == len(entries)
        assert self.ledger.size_bytes == sum(
            len(entry.data) for entry in self.ledger.reader.read(EARLIEST, 10_000, 1 << 30)
        )

    @invariant()
    def index_and_time_are_unbroken(self) -> None:
        if not hasattr(self, "ledger"):
            return
        index: int | None = None
        time = 0
        for entry in self.ledger.reader.read(EARLIEST, 10_000, 1 << 30):
            metadata, _ = split_broker_metadata(entry.data)
            assert metadata is not None
            assert metadata.broker_timestamp >= time
            time = metadata.broker_timestamp
            if metadata.HasField("index"):
                assert index is None or index <= metadata.index <= index + 3
                index = metadata.index
        assert time == 0 or time >= self.last_time or self.ledger.layout.total_entries
        self.last_time = max(self.last_time, time)
        reached = self.ledger.last_stamp
        assert (reached.broker_time_ms or 0) >= self.last_time
        assert index is None or reached.index == index

    @invariant()
    def cursors_keep_their_word(self) -> None:
        """What was not acknowledged is seen; what was acknowledged durably is not."""
        if not hasattr(self, "ledger"):
            return
        entries = dict(self._entries())
        for name in CURSORS:
            cursor = self._cursor(name)
            unacked = {number for position, number in entries.items() if not cursor.is_acked(position)}
            assert set(self.known) - self.acked[name] <= unacked, name
            assert unacked <= self.left[name], name
            assert cursor.backlog == len(unacked)
            ahead = [number for position, number in entries.items() if position <= cursor.mark_delete]
            assert set(ahead) <= self.acked[name], name


TestTopic = TopicMachine.TestCase
TestTopic.settings = settings(max_examples=80, stateful_step_count=40, deadline=None, print_blob=True)
