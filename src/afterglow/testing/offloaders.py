"""Contract of offload drivers as a test class: derive from it, create your offloader in ``make``, and run pytest.

    class TestMyOffloader(OffloaderContract):
        @pytest.fixture
        def make(self, tmp_path):
            policy = BrokerConfig(managed_ledger_extra_configurations=(("directory", str(tmp_path)),))
            return lambda: MyOffloader(policy)

Every call of ``make`` stands for another process: the next offloader must find stored data by the driver metadata
alone. The tier location must be empty at the start of every test. :mod:`afterglow.offload.offloader` describes the
contract.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pytest

from afterglow.errors import AfterglowError, HandleClosed, InvalidPosition, ObjectMissing
from afterglow.format.frames import FRAME_BYTES, frame_entries, scan_frames
from afterglow.format.position import Position
from afterglow.offload.offloader import LedgerOffloader, OffloadedLedger, OffloadResult, extra_metadata
from afterglow.testing.memory_hot import MemoryLog
from afterglow.tier.drivers import can_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias
    from uuid import UUID

    from afterglow.offload.offloader import LedgerCopy, OffloadHandle
    from afterglow.testing.memory_hot import MemoryLedger

    Make: TypeAlias = Callable[[], LedgerOffloader]

__all__ = ["OffloaderContract"]

_SEED: Final = 17
_EXTRA: Final = extra_metadata("public/default/persistent/contract", cluster="standalone", instance="contract")
_SIZES: Final = (0, 1, 100, 4_000, 70_000)


class OffloaderContract:
    """Contract of every offload driver. Tests of segments are skipped for a driver that supports whole ledgers only."""

    @pytest.fixture
    def make(self) -> Make:
        """Creates an offloader, of the same tier location each time; to be overridden."""
        raise NotImplementedError

    @pytest.fixture
    def streaming(self, make: Make) -> Make:
        """The same, if the driver supports segments."""
        if not can_stream(make()):
            pytest.skip("the driver supports whole ledgers only")
        return make

    # --- the driver itself --------------------------------------------------------------------------------------------

    def test_it_is_an_offloader_with_a_tier_location(self, make: Make) -> None:
        """Location and metadata are plain text, and the same for every offloader of one policy."""
        one, other = make(), make()
        assert isinstance(one, LedgerOffloader)
        assert one.location.driver
        assert one.location == other.location
        assert one.driver_metadata() == other.driver_metadata()
        assert all(isinstance(text, str) for pair in one.driver_metadata().items() for text in pair)

    # --- whole ledgers ------------------------------------------------------------------------------------------------

    def test_a_ledger_is_read_back_as_it_was(self, make: Make) -> None:
        """All entries by a scan, and any range by reads."""
        entries = _entries(60)
        ledger, uuid = _closed(entries), uuid4()
        make().offload(ledger, uuid, _EXTRA)
        copy = make().read_offloaded(ledger.ledger_id, _context(make(), uuid))
        assert _scanned(copy, 0, 59) == list(enumerate(entries))
        assert _scanned(copy, 7, 9) == list(enumerate(entries))[7:10]
        for first in range(60):
            assert _read(copy, first, 59, 1)[:1] == [(first, entries[first])]

    def test_a_read_keeps_to_its_bounds(self, make: Make) -> None:
        """At least one entry, none after the last requested one, and further ones only within ``max_bytes``."""
        entries = _entries(60)
        ledger, uuid = _closed(entries), uuid4()
        make().offload(ledger, uuid, _EXTRA)
        copy = make().read_offloaded(ledger.ledger_id, _context(make(), uuid))
        for first, last, max_bytes in ((0, 59, 1), (5, 5, 1 << 20), (5, 6, 1 << 20), (10, 59, 20_000)):
            found = _read(copy, first, last, max_bytes)
            assert found == list(enumerate(entries))[first : first + len(found)]
            assert found[-1][0] <= last
            assert sum(len(data) + FRAME_BYTES for _, data in found[1:]) <= max_bytes

    def test_a_ledger_offloaded_twice_under_one_uuid_is_the_same_ledger(self, make: Make) -> None:
        """A worker that died may have done all of its work, or none."""
        entries = _entries(10)
        ledger, uuid = _closed(entries), uuid4()
        for _ in range(2):
            make().offload(ledger, uuid, _EXTRA)
        copy = make().read_offloaded(ledger.ledger_id, _context(make(), uuid))
        assert _scanned(copy, 0, 9) == list(enumerate(entries))

    def test_data_that_was_never_stored_is_missing(self, make: Make) -> None:
        """For ledgers and segments alike."""
        for segment in (False, True):
            with pytest.raises(ObjectMissing):
                _scanned(make().read_offloaded(1, _context(make(), uuid4(), segment=segment)), 0, 0)

    def test_an_entry_that_is_not_in_the_copy_is_an_error(self, make: Make) -> None:
        """A read never returns nothing, or another entry."""
        ledger, uuid = _closed(_entries(5)), uuid4()
        make().offload(ledger, uuid, _EXTRA)
        copy = make().read_offloaded(ledger.ledger_id, _context(make(), uuid))
        with pytest.raises(AfterglowError):
            copy.read(5, 9, 1 << 20)

    def test_a_delete_removes_one_copy_and_no_other(self, make: Make) -> None:
        """A second delete, and the delete of a copy that never existed, are not errors."""
        entries = _entries(5)
        ledger, kept, deleted = _closed(entries), uuid4(), uuid4()
        for uuid in (kept, deleted):
            make().offload(ledger, uuid, _EXTRA)
        for uuid in (deleted, deleted, uuid4()):
            make().delete_offloaded(ledger.ledger_id, uuid, make().driver_metadata())
        with pytest.raises(ObjectMissing):
            _scanned(make().read_offloaded(ledger.ledger_id, _context(make(), deleted)), 0, 0)
        copy = make().read_offloaded(ledger.ledger_id, _context(make(), kept))
        assert _scanned(copy, 0, 4) == list(enumerate(entries))

    def test_one_copy_serves_many_threads(self, make: Make) -> None:
        """Consumers of a topic share one copy."""
        entries = _entries(60)
        ledger, uuid = _closed(entries), uuid4()
        make().offload(ledger, uuid, _EXTRA)
        copy = make().read_offloaded(ledger.ledger_id, _context(make(), uuid))
        with ThreadPoolExecutor(4) as threads:
            for found in threads.map(lambda first: (first, _scanned(copy, first, 59)), range(0, 60, 3)):
                assert found[1] == list(enumerate(entries))[found[0] :]

    # --- segments -----------------------------------------------------------------------------------------------------

    def test_a_segment_holds_parts_of_several_ledgers(self, streaming: Make) -> None:
        """From the middle of one ledger to the middle of another; each is read separately."""
        uuid, held = uuid4(), {3: _entries(20), 4: _entries(30), 9: _entries(5)}
        handle = _begin(streaming, uuid)
        assert handle.last_offered() is None
        _offer(handle, 3, 40, held[3])
        _offer(handle, 4, 0, held[4])
        _offer(handle, 9, 0, held[9])
        assert handle.last_offered() == Position(9, 4)
        result = handle.result()
        assert result == OffloadResult(uuid, Position(3, 40), Position(9, 4))
        assert handle.result() == result
        for ledger_id, first in ((3, 40), (4, 0), (9, 0)):
            copy = streaming().read_offloaded(ledger_id, _context(streaming(), uuid, segment=True))
            last = first + len(held[ledger_id]) - 1
            assert _scanned(copy, first, last) == list(enumerate(held[ledger_id], first))
            assert _read(copy, last, last, 1) == [(last, held[ledger_id][-1])]

    def test_entries_offered_one_by_one_and_as_ranges_make_the_same_segment(self, streaming: Make) -> None:
        """Callers have entries in either form."""
        entries, one, other = _entries(50), uuid4(), uuid4()
        singly, ranged = _begin(streaming, one), _begin(streaming, other)
        for number, data in enumerate(entries):
            while not singly.offer_entry(1, number, data):
                assert singly.wait()
        _offer(ranged, 1, 0, entries)
        for uuid, handle in ((one, singly), (other, ranged)):
            handle.result()
            copy = streaming().read_offloaded(1, _context(streaming(), uuid, segment=True))
            assert _scanned(copy, 0, 49) == list(enumerate(entries))

    def test_the_caller_may_reuse_a_buffer_after_an_offer(self, streaming: Make) -> None:
        """It is filled with the next entries at once."""
        uuid = uuid4()
        handle = _begin(streaming, uuid)
        buffer = bytearray(frame_entries([b"first" * 50]))
        assert handle.offer_range(buffer, Position(1, 0), 1) == 1
        buffer[:] = bytes(len(buffer))
        handle.result()
        copy = streaming().read_offloaded(1, _context(streaming(), uuid, segment=True))
        assert _scanned(copy, 0, 0) == [(0, b"first" * 50)]

    @pytest.mark.parametrize("offered", [Position(2, 0), Position(3, 5), Position(3, 7), Position(4, 1)])
    def test_an_entry_that_does_not_follow_is_refused_and_changes_nothing(
        self, streaming: Make, offered: Position
    ) -> None:
        """Neither a gap nor a repetition becomes a segment."""
        handle = _begin(streaming, uuid4())
        _offer(handle, 3, 5, [b"a"])
        with pytest.raises(InvalidPosition):
            handle.offer_entry(offered.ledger_id, offered.entry_id, b"b")
        with pytest.raises(InvalidPosition):
            handle.offer_range(frame_entries([b"b"], offered.entry_id), offered, 1)
        assert handle.last_offered() == Position(3, 5)
        assert handle.result().end == Position(3, 5)

    def test_an_empty_segment_is_refused(self, streaming: Make) -> None:
        """A handle without entries has no result."""
        handle = _begin(streaming, uuid4())
        with pytest.raises(InvalidPosition):
            handle.result()
        handle.abort()

    def test_a_segment_that_has_ended_accepts_no_more_entries(self, streaming: Make) -> None:
        """After its result, and after an abort."""
        for end in ("result", "abort"):
            handle = _begin(streaming, uuid4())
            _offer(handle, 1, 0, [b"a"])
            getattr(handle, end)()
            assert not handle.can_offer(1)
            with pytest.raises(HandleClosed):
                handle.offer_entry(1, 1, b"b")

    def test_an_aborted_or_abandoned_attempt_stores_no_segment(self, streaming: Make) -> None:
        """No reader sees a part of one."""
        for end in ("abort", "last_offered"):
            uuid = uuid4()
            handle = _begin(streaming, uuid)
            _offer(handle, 1, 0, _entries(10))
            getattr(handle, end)()
            with pytest.raises(ObjectMissing):
                _scanned(streaming().read_offloaded(1, _context(streaming(), uuid, segment=True)), 0, 9)

    def test_attempts_of_one_segment_do_not_disturb_each_other(self, streaming: Make) -> None:
        """One died half-way, one finished, one is late and finishes too, one is late and aborts."""
        entries, uuid = _entries(30), uuid4()
        dead, late, lost, done = (_begin(streaming, uuid) for _ in range(4))
        _offer(dead, 1, 0, entries[:7])
        for handle in (late, lost, done):
            _offer(handle, 1, 0, entries)
        result = done.result()
        lost.abort()
        assert late.result() == result
        copy = streaming().read_offloaded(1, _context(streaming(), uuid, segment=True))
        assert _scanned(copy, 0, 29) == list(enumerate(entries))

    def test_deleting_a_segment_deletes_the_data_of_all_its_attempts(self, streaming: Make) -> None:
        """Finished or not; a second delete is not an error, and other segments are kept."""
        entries, kept, finished, unfinished = _entries(30), uuid4(), uuid4(), uuid4()
        for uuid in (kept, finished):
            handle = _begin(streaming, uuid)
            _offer(handle, 1, 0, entries)
            handle.result()
        abandoned = _begin(streaming, unfinished)
        _offer(abandoned, 1, 0, entries)
        for uuid in (finished, unfinished, finished):
            streaming().delete_offloaded(None, uuid, streaming().driver_metadata())
        for uuid in (finished, unfinished):
            with pytest.raises(ObjectMissing):
                _scanned(streaming().read_offloaded(1, _context(streaming(), uuid, segment=True)), 0, 0)
        copy = streaming().read_offloaded(1, _context(streaming(), kept, segment=True))
        assert _scanned(copy, 0, 29) == list(enumerate(entries))


def _entries(count: int) -> list[bytes]:
    """Entries of all sizes, the same in every run."""
    choose = random.Random(_SEED + count)  # noqa: S311 - data for a test
    return [choose.randbytes(choose.choice(_SIZES)) for _ in range(count)]


def _closed(entries: Iterable[bytes]) -> MemoryLedger:
    ledger = MemoryLog().create()
    for entry in entries:
        ledger.append((entry,), lambda _error: None)
    ledger.close()
    return ledger


def _context(offloader: LedgerOffloader, uuid: UUID, *, segment: bool = False) -> OffloadedLedger:
    return OffloadedLedger(uuid, dict(offloader.driver_metadata()), segment=segment)


def _begin(make: Make, uuid: UUID) -> OffloadHandle:
    offloader = make()
    return offloader.streaming_offload(uuid, {**offloader.driver_metadata(), **_EXTRA})


def _offer(handle: OffloadHandle, ledger_id: int, first: int, entries: Sequence[bytes]) -> None:
    """Offer entries as a task does: as a range, waiting while the driver's buffer is full."""
    framed = frame_entries(entries, first)
    offsets = scan_frames(framed, first).offsets
    taken = 0
    while taken < len(entries):
        rest = memoryview(framed)[int(offsets[taken]) :]
        more = handle.offer_range(rest, Position(ledger_id, first + taken), len(entries) - taken)
        assert more or handle.wait() or handle.can_offer(0), "the handle refuses an entry, and no upload is in progress"
        taken += more


def _read(copy: LedgerCopy, first: int, last: int, max_bytes: int) -> list[tuple[int, bytes]]:
    run = copy.read(first, last, max_bytes)
    return [(entry_id, bytes(data)) for entry_id, data in enumerate(run.entries(), run.frames.first_entry_id)]


def _scanned(copy: LedgerCopy, first: int, last: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for run in copy.scan(first, last):
        found += [(entry_id, bytes(data)) for entry_id, data in enumerate(run.entries(), run.frames.first_entry_id)]
    return found
