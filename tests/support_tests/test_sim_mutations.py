"""The simulator can fail: each step of the production code that is done wrong is found by some seed."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.support.sim import PromiseBroken, Simulation

from afterglow.errors import Fenced, MetadataError
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.ledger import trimming
from afterglow.ledger.offload_buffer import OffloadBuffer
from afterglow.ledger.properties import get_pending_deletes, set_pending_deletes
from afterglow.ledger.topic_metadata import Snapshot, TopicMetadata
from afterglow.offload import ledger_commit, planner
from afterglow.offload.block_offloader import BlockOffloader, delete_objects
from afterglow.offload.freeing import CopyVerifier
from afterglow.offload.pending_deletes import PendingDeletes
from afterglow.offload.segments.topic_stream import TopicStream
from afterglow.offload.segments.upload import SegmentUpload
from afterglow.offload.service import OffloadService
from afterglow.read import objects
from afterglow.read.counters import ReadCounters

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

SEEDS = 400


def nothing(*_: object, **__: object) -> None:
    """Skip the step."""


def delete_on_an_unknown_outcome(patch: pytest.MonkeyPatch) -> None:
    commit = ledger_commit.commit

    def commit_or_delete(
        context: ledger_commit.LedgerContext, ledger: Any, attempts: Sequence[Any], now_ms: int
    ) -> list[Any]:
        try:
            return commit(context, ledger, attempts, now_ms)
        except Fenced:
            raise
        except MetadataError:
            for attempt in attempts:
                delete_objects(attempt.offloader._store(), attempt.request.key)
            raise

    patch.setattr(ledger_commit, "commit", commit_or_delete)


def free_before_complete(patch: pytest.MonkeyPatch) -> None:
    def free(info: ManagedLedgerInfo, ledger_ids: Collection[int]) -> None:
        for row in info.ledgerInfo:
            if row.ledgerId in ledger_ids:
                row.offloadContext.bookkeeperDeleted = True
        set_pending_deletes(info, set(ledger_ids).union(get_pending_deletes(info)))

    def freeable(info: ManagedLedgerInfo, **_: object) -> tuple[int, ...]:
        rows = [row for row in info.ledgerInfo if row.entries and not row.offloadContext.bookkeeperDeleted]
        return tuple(row.ledgerId for row in rows)

    patch.setattr(trimming, "free_ledgers", free)
    patch.setattr(planner, "freeable", freeable)
    patch.setattr(CopyVerifier, "verify", nothing)


def commit_without_looking_at_the_uuid(patch: pytest.MonkeyPatch) -> None:
    def complete(info: ManagedLedgerInfo, *, uuids: Mapping[int, UUID], now_ms: int) -> None:
        for row in info.ledgerInfo:
            if row.ledgerId in uuids:
                row.offloadContext.complete = True
                row.offloadContext.timestamp = now_ms

    patch.setattr(ledger_commit, "_complete", complete)


def put_nothing_on_record_before_it_goes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingDeletes, "record", nothing)


def delete_objects_before_the_list_lets_go(patch: pytest.MonkeyPatch) -> None:
    before_removal = OffloadService.before_removal

    def leave_and_delete(self: OffloadService, name: str, rows: Sequence[ManagedLedgerInfo.LedgerInfo]) -> None:
        before_removal(self, name, rows)
        with pytest.MonkeyPatch.context() as blind:
            blind.setattr(PendingDeletes, "_named", lambda *_: set())
            self._pending_deletes.carry_out(name)

    patch.setattr(OffloadService, "before_removal", leave_and_delete)


def delete_what_a_task_still_writes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OffloadService, "_is_writing", lambda *_: False)
    # Else the second pass over what was never committed deletes what the task has written after the first.
    patch.setattr("afterglow.offload.pending_deletes._LATE_S", 0.0)


def write_no_index(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockOffloader, "_put_index", nothing)


def trim_what_is_being_streamed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OffloadService, "is_in_use", lambda *_: False)


def take_a_list_of_another_owner(patch: pytest.MonkeyPatch) -> None:
    def refresh(self: TopicMetadata) -> Snapshot:
        found = self._store.get(self._path)
        if found is None:
            raise Fenced("it was deleted")
        self._snapshot = Snapshot(parse_managed_ledger(found.value), found.version)
        self._stale = False
        return self._snapshot

    patch.setattr(TopicMetadata, "_refresh", refresh)


def complete_no_upload(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SegmentUpload, "_complete", nothing)
    patch.setattr(SegmentUpload, "_check", nothing)


def begin_segments_behind_entries_that_are_in_none(patch: pytest.MonkeyPatch) -> None:
    assign = SegmentUpload.assign.__func__  # type: ignore[attr-defined]  # of a class method

    def assign_later(cls: Any, /, room: Any, location: Any, begin: Any, end: Any, **options: Any) -> Any:
        later = begin.next()
        skip = room.ledger.layout.contains(later) and (end is None or begin < end)
        return assign(cls, room, location, later if skip else begin, end, **options)

    patch.setattr(SegmentUpload, "assign", classmethod(assign_later))


def drop_tasks_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    advance = TopicStream.advance

    def advance_or_nothing(self: TopicStream) -> Any:
        tasks = advance(self)
        return () if self.error is not None else tasks

    patch.setattr(TopicStream, "advance", advance_or_nothing)


def check_no_checksum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(objects.LedgerObject, "_problem", lambda *_: None)


def count_no_fall_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReadCounters, "fell_back", nothing)


def offload_whole_ledgers_behind_a_segment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planner, "assigned_from", nothing)
    patch.setattr(ledger_commit, "assigned_from", nothing)


def serve_offload_the_entry_behind(patch: pytest.MonkeyPatch) -> None:
    get_range = OffloadBuffer.get_range

    def get_later(self: OffloadBuffer, ledger_id: int, first: int, last: int, max_bytes: int) -> list[memoryview]:
        return get_range(self, ledger_id, first + 1, last + 1, max_bytes)

    patch.setattr(OffloadBuffer, "get_range", get_later)


def keep_in_the_buffer_what_is_offloaded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OffloadBuffer, "_release", lambda *_: 0)


# With each, a seed that found it when this was written: it is tried first, which saves time and proves nothing.
MUTATIONS: Final[Mapping[Callable[[pytest.MonkeyPatch], None], int]] = {
    delete_on_an_unknown_outcome: 12,
    free_before_complete: 0,
    commit_without_looking_at_the_uuid: 80,
    put_nothing_on_record_before_it_goes: 0,
    delete_objects_before_the_list_lets_go: 0,
    delete_what_a_task_still_writes: 6,
    write_no_index: 0,
    trim_what_is_being_streamed: 342,
    take_a_list_of_another_owner: 6,
    complete_no_upload: 1,
    begin_segments_behind_entries_that_are_in_none: 1,
    drop_tasks_after_a_failure: 3,
    check_no_checksum: 37,
    count_no_fall_back: 0,
    offload_whole_ledgers_behind_a_segment: 6,
    serve_offload_the_entry_behind: 2,
    keep_in_the_buffer_what_is_offloaded: 36,
}


def breaks(seed: int) -> bool:
    try:
        Simulation(seed).run()
    except PromiseBroken:
        return True
    return False


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_some_seed_finds_what_is_done_wrong(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not breaks(MUTATIONS[mutate]), "without the mutation nothing is wrong"
    mutate(monkeypatch)
    assert any(breaks(seed) for seed in chain([MUTATIONS[mutate]], range(SEEDS)))
