from __future__ import annotations

import pytest
from tests.support.hot import Completions, append_all, read_all

from afterglow.errors import DiskFull, HotLogError, LedgerClosed
from afterglow.testing.memory_hot import MemoryLog


def test_held_appends_are_confirmed_when_the_test_says_so() -> None:
    log = MemoryLog()
    log.held = True
    ledger, completions = log.create(), Completions()
    assert [ledger.append((entry,), completions.next()) for entry in (b"0", b"1", b"2")] == [0, 1, 2]
    assert (ledger.confirmed, read_all(ledger), completions.outcomes) == (-1, [], [])
    assert log.pending_bytes == 3
    assert log.complete(2) == 2
    assert (read_all(ledger), completions.outcomes) == ([b"0", b"1"], [(0, None), (1, None)])
    assert log.complete() == 1
    assert read_all(ledger) == [b"0", b"1", b"2"]
    assert log.pending_bytes == 0


def test_a_failure_fails_all_appends_under_way_and_fences_the_ledger() -> None:
    log = MemoryLog()
    failed, other, completions = log.create(), log.create(), Completions()
    append_all(failed, [b"0"])
    log.held = True
    failed.append((b"1",), completions.next())
    failed.append((b"2",), completions.next())
    error = HotLogError("on purpose")
    failed.fail(error)
    assert completions.wait() == [error, error]
    assert (failed.closed, failed.confirmed, other.closed) == (True, 0, False)
    failed.close()
    with pytest.raises(LedgerClosed):
        failed.append((b"3",), completions.next())


def test_a_full_log_fails_appends_and_creations_until_it_has_room_again() -> None:
    log = MemoryLog()
    ledger, completions = log.create(), Completions()
    append_all(ledger, [b"0"])
    log.full = True
    ledger.append((b"1",), completions.next())
    assert isinstance(completions.wait()[0], DiskFull)
    with pytest.raises(DiskFull):
        log.create()
    assert read_all(ledger) == [b"0"]
    log.full = False
    append_all(log.create(), [b"0"])


def test_closing_a_ledger_confirms_what_is_held() -> None:
    log = MemoryLog()
    log.held = True
    ledger = log.create()
    ledger.append((b"0",), Completions().next())
    ledger.close()
    assert read_all(ledger) == [b"0"]
