from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from afterglow.errors import MetadataUnavailable
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.ledger.ledger_list import free_ledgers, is_fully_offloaded
from afterglow.ledger.offload_hooks import NoOffloadHooks, recorded_removal
from afterglow.ledger.properties import get_pending_deletes

if TYPE_CHECKING:
    from collections.abc import Sequence


class RecordingHooks(NoOffloadHooks):
    """Records its calls; metadata may be unreachable."""

    def __init__(self, *, reachable: bool) -> None:
        self._reachable = reachable
        self.calls: list[str] = []

    def before_removal(self, _name: str, _rows: Sequence[ManagedLedgerInfo.LedgerInfo]) -> None:
        self.calls.append("before_removal")
        if not self._reachable:
            raise MetadataUnavailable("out")

    def after_removal(self, _name: str) -> None:
        self.calls.append("after_removal")


def leave(offloading: RecordingHooks, error: Exception | None = None) -> None:
    with recorded_removal(offloading, "t", []):
        offloading.calls.append("the list is changed")
        if error is not None:
            raise error


def test_ledgers_leave_between_two_calls() -> None:
    offloading = RecordingHooks(reachable=True)
    leave(offloading)
    assert offloading.calls == ["before_removal", "the list is changed", "after_removal"]


def test_hooks_are_called_when_the_list_could_not_be_changed() -> None:
    offloading = RecordingHooks(reachable=True)
    with pytest.raises(MetadataUnavailable):
        leave(offloading, MetadataUnavailable("out"))
    assert offloading.calls == ["before_removal", "the list is changed", "after_removal"]


def test_ledgers_that_stay_because_nothing_is_on_record_do_not_leave_for_ever() -> None:
    offloading = RecordingHooks(reachable=False)
    with pytest.raises(MetadataUnavailable):
        leave(offloading)
    assert offloading.calls == ["before_removal", "after_removal"]


def row_in_segments(entries: int, *ends: int, assigned: int = 0) -> ManagedLedgerInfo.LedgerInfo:
    """A closed ledger with committed segments that end there, and some that are only assigned."""
    ledger_info = ManagedLedgerInfo.LedgerInfo(ledgerId=1, entries=entries, size=entries, timestamp=1)
    for end in ends:
        ledger_info.offloadContext.offloadSegment.add(complete=True, endEntryId=end)
    for _ in range(assigned):
        ledger_info.offloadContext.offloadSegment.add(assignedTimestamp=1)
    return ledger_info


def test_a_ledger_is_offloaded_whole_only_with_its_last_entry_and_all_segments_committed() -> None:
    assert is_fully_offloaded(row_in_segments(4, 1, 3))
    assert not is_fully_offloaded(row_in_segments(4, 1, 2))
    assert not is_fully_offloaded(row_in_segments(4, 1, 3, assigned=1))
    assert not is_fully_offloaded(row_in_segments(0))
    assert not is_fully_offloaded(row_in_segments(4))


def test_only_hot_copies_of_ledgers_that_are_offloaded_whole_are_freed() -> None:
    info = ManagedLedgerInfo(ledgerInfo=[row_in_segments(4, 3), row_in_segments(4, 2)])
    info.ledgerInfo[1].ledgerId = 2
    free_ledgers(info, {1, 2})
    assert [ledger_info.offloadContext.bookkeeperDeleted for ledger_info in info.ledgerInfo] == [True, False]
    assert list(get_pending_deletes(info)) == [1]
