"""The contract of hot logs as a test class: subclass it, say how to open your log, and run pytest.

    class TestMyLog(HotLogContract):
        @pytest.fixture
        def log(self, tmp_path):
            with MyLog(tmp_path) as log:
                yield log

What it demands is written in :mod:`afterglow.hot.log`. Logs that keep what they are given across a restart override
``reopen`` too.
"""

from __future__ import annotations

import threading
from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.framed import together

from afterglow.errors import HotLogError, LedgerClosed, LedgerMissing
from afterglow.format.frames import FRAME_BYTES, FramedEntries, frame_entries
from afterglow.hot.log import HotLedger, HotLog, KeyedState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# How long a completion may take before the test fails; nothing waits this long when all is well.
_TIMEOUT_S: Final = 20.0

_ENTRIES: Final = [b"first", b"", b"x" * 3000, b"\x00\xff", b"last"]


class Completions:
    """Collects the outcomes of appends, and waits for them."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[int, HotLogError | None]] = []
        """Numbers in the order in which they were asked for, with their outcomes, in the order of completion."""
        self._asked = 0
        self._changed = threading.Condition()

    def next(self) -> Callable[[HotLogError | None], None]:
        """A completion for the next append."""
        number = self._asked
        self._asked += 1

        def done(error: HotLogError | None) -> None:
            with self._changed:
                self.outcomes.append((number, error))
                self._changed.notify_all()

        return done

    def wait(self) -> list[HotLogError | None]:
        """The outcomes of all that was asked for, once they are there."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.outcomes) >= self._asked, _TIMEOUT_S), "no completion"
            return [error for _, error in self.outcomes]


def append_all(ledger: HotLedger, entries: Sequence[bytes]) -> None:
    """Append entries and wait until all are confirmed."""
    completions = Completions()
    for entry in entries:
        ledger.append((entry,), completions.next())
    assert completions.wait() == [None] * len(entries)


def _never(_: HotLogError | None) -> None:
    pytest.fail("the completion of a refused append was called")


def read_all(ledger: HotLedger) -> list[bytes]:
    """All confirmed entries."""
    return [bytes(entry) for entry in ledger.read(0, ledger.confirmed)]


class HotLogContract:
    """What every hot log must do."""

    @pytest.fixture
    def log(self) -> HotLog:
        """Return an empty log of the test's own."""
        raise NotImplementedError("override the fixture `log`")

    @pytest.fixture
    def flush(self, log: HotLog) -> Callable[[], None]:
        """Return what brings confirmed entries to where they are read from, where that is more than one place."""
        _ = log
        return lambda: None

    # --- appending --------------------------------------------------------------------------------------------------

    def test_it_is_a_hot_log_and_its_ledgers_are_hot_ledgers(self, log: HotLog) -> None:
        """The seams are checked when the program runs, too."""
        assert isinstance(log, HotLog)
        assert isinstance(log, KeyedState)
        assert isinstance(log.create(), HotLedger)

    def test_a_new_ledger_is_empty_and_open(self, log: HotLog) -> None:
        """Nothing is confirmed before the first append."""
        ledger = log.create()
        assert (ledger.confirmed, ledger.size_bytes, ledger.closed) == (-1, 0, False)
        assert ledger.read(0, 10) == []
        assert ledger.read_frames(0, 100)[1] == 0
        assert log.ledgers() == (ledger.ledger_id,)

    def test_entries_get_ids_from_0_without_gaps(self, log: HotLog) -> None:
        """The id is known before the entry is durable."""
        ledger, completions = log.create(), Completions()
        assert [ledger.append((entry,), completions.next()) for entry in _ENTRIES] == [0, 1, 2, 3, 4]
        completions.wait()
        assert ledger.confirmed == 4
        assert ledger.size_bytes == sum(map(len, _ENTRIES))

    def test_completions_come_in_the_order_of_appends(self, log: HotLog) -> None:
        """A receipt is never overtaken."""
        ledger, completions = log.create(), Completions()
        for _ in range(500):
            ledger.append((b"entry",), completions.next())
        completions.wait()
        assert completions.outcomes == [(number, None) for number in range(500)]

    def test_an_entry_is_readable_when_its_completion_is_called(self, log: HotLog) -> None:
        """Entries are confirmed before their callbacks run."""
        ledger = log.create()
        seen: list[tuple[int, list[bytes]]] = []
        finished = threading.Event()

        def done(_: HotLogError | None) -> None:
            seen.append((ledger.confirmed, read_all(ledger)))
            finished.set()

        ledger.append((b"entry",), done)
        assert finished.wait(_TIMEOUT_S)
        assert seen == [(0, [b"entry"])]

    def test_framed_entries_are_appended_together(self, log: HotLog, flush: Callable[[], None]) -> None:
        """One completion for all; other appends may come between."""
        ledger, completions = log.create(), Completions()
        ledger.append((_ENTRIES[0],), completions.next())
        ledger.append_framed(together(1, _ENTRIES[1:3]), completions.next())
        ledger.append_framed(FramedEntries.one(3, _ENTRIES[3]), completions.next())
        assert ledger.append((_ENTRIES[4],), completions.next()) == 4
        assert completions.wait() == [None] * 4
        for _ in range(2):
            assert read_all(ledger) == _ENTRIES
            assert bytes(ledger.read_frames(0, 1 << 20)[0]) == frame_entries(_ENTRIES)
            sizes = [FRAME_BYTES + len(entry) for entry in _ENTRIES]
            assert ledger.offsets(0, 4).tolist() == [0, *accumulate(sizes)]
            flush()

    def test_framed_entries_must_have_the_next_ids(self, log: HotLog) -> None:
        """A gap or a repetition is refused before anything is written."""
        ledger, completions = log.create(), Completions()
        ledger.append_framed(together(0, _ENTRIES[:2]), completions.next())
        for first in (0, 1, 3):
            with pytest.raises(ValueError, match="do not follow"):
                ledger.append_framed(together(first, _ENTRIES[:2]), _never)
        ledger.append_framed(together(2, _ENTRIES[2:]), completions.next())
        completions.wait()
        assert read_all(ledger) == _ENTRIES
        ledger.close()
        with pytest.raises(LedgerClosed):
            ledger.append_framed(together(5, _ENTRIES), _never)

    def test_the_pieces_of_an_entry_are_joined(self, log: HotLog) -> None:
        """Any kind of bytes, an empty piece, and no piece at all."""
        ledger, completions = log.create(), Completions()
        words = memoryview(array("i", [1, 2]))
        ledger.append((b"a", bytearray(b"b"), b"", memoryview(b"cd")), completions.next())
        ledger.append((words,), completions.next())
        ledger.append((), completions.next())
        assert completions.wait() == [None, None, None]
        assert read_all(ledger) == [b"abcd", bytes(words), b""]

    @pytest.mark.parametrize("piece", ["text", 7, None, memoryview(b"abcdef")[::2]])
    def test_a_piece_that_is_not_bytes_is_refused_and_changes_nothing(self, log: HotLog, piece: object) -> None:
        """A bad piece must not fail the entries of others."""
        ledger = log.create()
        with pytest.raises(TypeError):
            ledger.append((b"good", piece), Completions().next())  # type: ignore[arg-type]  # that is the test
        append_all(ledger, [b"next"])
        assert read_all(ledger) == [b"next"]

    def test_ledgers_do_not_mix(self, log: HotLog) -> None:
        """Each has ids and entries of its own."""
        ledgers, completions = [log.create() for _ in range(5)], Completions()
        for number in range(50):
            ledgers[number % 5].append((b"%d" % number,), completions.next())
        assert completions.wait() == [None] * 50
        for number, ledger in enumerate(ledgers):
            assert read_all(ledger) == [b"%d" % entry for entry in range(number, 50, 5)]

    def test_appends_from_many_threads_are_all_there_once(self, log: HotLog) -> None:
        """The ids that appends return name their entries."""
        ledger, completions = log.create(), Completions()
        guard = threading.Lock()
        ids: dict[int, bytes] = {}

        def run(name: int) -> None:
            for number in range(100):
                entry = b"%d-%d" % (name, number)
                with guard:
                    done = completions.next()
                entry_id = ledger.append((entry,), done)
                with guard:
                    ids[entry_id] = entry

        threads = [threading.Thread(target=run, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert completions.wait() == [None] * 400
        assert read_all(ledger) == [ids[entry_id] for entry_id in range(400)]

    def test_a_completion_that_raises_keeps_nobody_from_theirs(self, log: HotLog) -> None:
        """The log goes on."""
        ledger, completions = log.create(), Completions()

        def bad(_: HotLogError | None) -> None:
            raise RuntimeError("on purpose")

        ledger.append((b"0",), bad)
        ledger.append((b"1",), completions.next())
        assert completions.wait() == [None]
        append_all(ledger, [b"2"])
        assert read_all(ledger) == [b"0", b"1", b"2"]

    # --- reading ----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("flushed", [0, 3, 5])
    def test_every_range_of_entries_can_be_read(self, log: HotLog, flush: Callable[[], None], flushed: int) -> None:
        """Whatever part of it is in memory only; a range that reaches beyond the end is cut."""
        ledger = log.create()
        append_all(ledger, _ENTRIES[:flushed])
        flush()
        append_all(ledger, _ENTRIES[flushed:])
        for first in range(7):
            for last in range(-1, 8):
                assert [bytes(entry) for entry in ledger.read(first, last)] == _ENTRIES[first : last + 1]
        for first in range(5):
            for last in range(first, 5):
                frames = [len(frame_entries(_ENTRIES[:entry])) for entry in range(first, last + 2)]
                assert ledger.offsets(first, last).tolist() == frames

    @pytest.mark.parametrize("flushed", [0, 3, 5])
    @pytest.mark.parametrize("max_bytes", [0, 1, 17, 29, 30, 5000, 1 << 20])
    def test_frames_are_whole_contiguous_and_at_least_one(
        self, log: HotLog, flush: Callable[[], None], flushed: int, max_bytes: int
    ) -> None:
        """Reading on from the end of a range returns everything."""
        ledger = log.create()
        append_all(ledger, _ENTRIES[:flushed])
        flush()
        append_all(ledger, _ENTRIES[flushed:])
        found, first = b"", 0
        while first <= ledger.confirmed:
            frames, count = ledger.read_frames(first, max_bytes)
            assert count >= 1
            assert count == 1 or frames.nbytes <= max_bytes
            assert bytes(frames) == frame_entries(_ENTRIES[first : first + count], first)
            found += frames
            first += count
        assert found == frame_entries(_ENTRIES)
        assert len(found) == ledger.size_bytes + FRAME_BYTES * len(_ENTRIES)
        assert ledger.read_frames(first, max_bytes)[1] == 0

    @pytest.mark.parametrize(("first", "last"), [(-1, 0), (0, 5), (3, 2), (5, 5)])
    def test_offsets_of_entries_that_are_not_there_are_an_error(self, log: HotLog, first: int, last: int) -> None:
        """Offsets plan uploads: none may be made up."""
        ledger = log.create()
        append_all(ledger, _ENTRIES)
        with pytest.raises(IndexError):
            ledger.offsets(first, last)

    def test_reading_goes_on_while_entries_are_appended(self, log: HotLog) -> None:
        """A reader sees a growing prefix and never anything else."""
        ledger, completions = log.create(), Completions()
        entries = [b"%d" % number * (number % 7) for number in range(2000)]
        wrong: list[object] = []

        def read() -> None:
            seen = 0
            while seen < len(entries):
                last = ledger.confirmed
                found = [bytes(entry) for entry in ledger.read(max(last - 20, 0), last)]
                if last < seen - 1 or found != entries[max(last - 20, 0) : last + 1]:
                    wrong.append((seen, last))
                    return
                seen = last + 1

        reader = threading.Thread(target=read)
        reader.start()
        for entry in entries:
            ledger.append((entry,), completions.next())
        completions.wait()
        reader.join(_TIMEOUT_S)
        assert not reader.is_alive()
        assert not wrong

    # --- the life of ledgers ----------------------------------------------------------------------------------------

    def test_a_closed_ledger_takes_no_more_and_stays_readable(self, log: HotLog) -> None:
        """Each opener closes it, once or more often."""
        ledger = log.create()
        append_all(ledger, _ENTRIES)
        ledger.close()
        ledger.close()
        assert ledger.closed
        with pytest.raises(LedgerClosed, match=str(ledger.ledger_id)):
            ledger.append((b"late",), Completions().next())
        again = log.open(ledger.ledger_id)
        assert again.closed
        again.close()
        assert (read_all(again), again.size_bytes) == (_ENTRIES, sum(map(len, _ENTRIES)))

    def test_closing_waits_for_the_appends_under_way(self, log: HotLog) -> None:
        """The end is known when close returns."""
        ledger, completions = log.create(), Completions()
        for number in range(300):
            ledger.append((b"%d" % number,), completions.next())
        ledger.close()
        assert ledger.confirmed == 299
        assert completions.wait() == [None] * 300

    def test_an_open_ledger_is_the_same_for_all_who_opened_it(self, log: HotLog) -> None:
        """What one appends the other reads."""
        ledger = log.create()
        append_all(ledger, [b"0"])
        other = log.open(ledger.ledger_id)
        append_all(other, [b"1"])
        assert (read_all(ledger), ledger.confirmed) == ([b"0", b"1"], 1)
        other.close()
        assert ledger.closed

    def test_ids_grow_and_come_in_order(self, log: HotLog) -> None:
        """Newer ledgers have greater ids."""
        ids = [log.create().ledger_id for _ in range(12)]
        assert ids == sorted(set(ids))
        assert log.ledgers() == tuple(ids)

    def test_the_id_of_a_deleted_ledger_is_not_given_again(self, log: HotLog) -> None:
        """Not even when all are gone."""
        ids = [log.create().ledger_id for _ in range(3)]
        for ledger_id in ids:
            log.delete(ledger_id)
        assert log.ledgers() == ()
        assert log.create().ledger_id > max(ids)

    @pytest.mark.parametrize("state", ["open", "closed"])
    def test_a_deleted_ledger_is_missing_for_everybody(
        self, log: HotLog, flush: Callable[[], None], state: str
    ) -> None:
        """Those who had it open learn it too; deleting it twice is allowed."""
        ledger, other = log.create(), log.create()
        append_all(ledger, _ENTRIES)
        append_all(other, _ENTRIES)
        flush()
        if state == "closed":
            ledger.close()
        log.delete(ledger.ledger_id)
        log.delete(ledger.ledger_id)
        with pytest.raises(LedgerMissing):
            log.open(ledger.ledger_id)
        with pytest.raises(LedgerMissing):
            ledger.read(0, 1)
        with pytest.raises(LedgerMissing):
            ledger.read_frames(0, 100)
        with pytest.raises(LedgerMissing):
            ledger.offsets(0, 1)
        with pytest.raises(LedgerClosed):
            ledger.append((b"late",), Completions().next())
        assert log.ledgers() == (other.ledger_id,)
        assert read_all(other) == _ENTRIES

    def test_a_ledger_that_never_was_is_missing(self, log: HotLog) -> None:
        """Deleting it is allowed."""
        with pytest.raises(LedgerMissing, match="999"):
            log.open(999)
        log.delete(999)

    def test_nothing_is_pending_when_all_is_done(self, log: HotLog, flush: Callable[[], None]) -> None:
        """Back-pressure ends where the load does."""
        ledger = log.create()
        append_all(ledger, _ENTRIES)
        flush()
        assert log.pending_bytes == 0

    def test_a_closed_log_takes_nothing_and_gives_nothing(self, log: HotLog) -> None:
        """Closing it twice is allowed."""
        ledger = log.create()
        append_all(ledger, _ENTRIES)
        log.close()
        log.close()
        assert ledger.closed
        with pytest.raises(LedgerClosed):
            ledger.append((b"late",), Completions().next())
        with pytest.raises(HotLogError, match="closed"):
            log.create()
        with pytest.raises(HotLogError, match="closed"):
            ledger.read(0, 1)

    # --- keyed state ------------------------------------------------------------------------------------------------

    def test_the_last_value_of_a_key_wins(self, log: HotLog) -> None:
        """Keys and values are any bytes."""
        assert isinstance(log, KeyedState)
        completions = Completions()
        for number in range(10):
            log.put_state(b"a", b"%d" % number, completions.next())
        log.put_state(b"b", b"", completions.next())
        log.put_state(b"\x00\xff", b"\n" * 5000, completions.next())
        assert completions.wait() == [None] * 12
        assert log.state() == {b"a": b"9", b"b": b"", b"\x00\xff": b"\n" * 5000}

    def test_a_key_can_be_removed(self, log: HotLog) -> None:
        """Removing what is not there is no error."""
        assert isinstance(log, KeyedState)
        completions = Completions()
        log.put_state(b"a", b"1", completions.next())
        log.put_state(b"b", b"2", completions.next())
        log.put_state(b"a", None, completions.next())
        log.put_state(b"c", None, completions.next())
        assert completions.wait() == [None] * 4
        assert log.state() == {b"b": b"2"}
