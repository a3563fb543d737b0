from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from afterglow.errors import MetadataUnavailable
from afterglow.ledger.offloading import NoOffloading, told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo


class Offloading(NoOffloading):
    """Notes what it is told; metadata may fail it."""

    def __init__(self, *, reachable: bool) -> None:
        self._reachable = reachable
        self.told: list[str] = []

    def leaving(self, _name: str, _rows: Sequence[ManagedLedgerInfo.LedgerInfo]) -> None:
        self.told.append("leaving")
        if not self._reachable:
            raise MetadataUnavailable("out")

    def left(self, _name: str) -> None:
        self.told.append("left")


def leave(offloading: Offloading, error: Exception | None = None) -> None:
    with told(offloading, "t", []):
        offloading.told.append("the list is changed")
        if error is not None:
            raise error


def test_ledgers_leave_between_two_calls() -> None:
    offloading = Offloading(reachable=True)
    leave(offloading)
    assert offloading.told == ["leaving", "the list is changed", "left"]


def test_it_is_told_when_the_list_could_not_be_changed() -> None:
    offloading = Offloading(reachable=True)
    with pytest.raises(MetadataUnavailable):
        leave(offloading, MetadataUnavailable("out"))
    assert offloading.told == ["leaving", "the list is changed", "left"]


def test_ledgers_that_stay_because_nothing_is_on_record_do_not_leave_for_ever() -> None:
    offloading = Offloading(reachable=False)
    with pytest.raises(MetadataUnavailable):
        leave(offloading)
    assert offloading.told == ["leaving", "left"]
