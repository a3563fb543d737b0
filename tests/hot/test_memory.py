from __future__ import annotations

import threading

import pytest

from afterglow.errors import DiskFull, HotLogError, LedgerClosed
from afterglow.hot.memory import MemoryLog
from afterglow.testing.hot import Completions, append_all, read_all


def test_deferred_appends_are_confirmed_when_the_test_says_so() -> None:
    log = MemoryLog(deferred=True)
    ledger, completions = log.create(), Completions()
    assert [ledger.append((entry,), completions.next()) for entry in (b"0", b"1", b"2")] == [0, 1, 2]
    assert (ledger.confirmed, read_all(ledger), completions.outcomes) == (-1, [], [])
    assert log.pending_bytes == 3
    assert log.complete(2) == 2
    assert (read_all(ledger), completions.outcomes) == ([b"0", b"1"], [(0, None), (1, None)])
    assert log.complete() == 1
    assert read_all(ledger) == [b"0", b"1", b"2"]
    assert log.pending_bytes == 0


def test_a_failure_fails_all_that_waits_and_fences_the_ledgers_it_touches() -> None:
    log = MemoryLog(deferred=True)
    touched, untouched, completions = log.create(), log.create(), Completions()
    touched.append((b"0",), completions.next())
    log.complete()
    touched.append((b"1",), completions.next())
    touched.append((b"2",), completions.next())
    error = HotLogError("on purpose")
    assert log.fail(error) == 2
    assert completions.wait() == [None, error, error]
    assert (touched.closed, touched.confirmed, untouched.closed) == (True, 0, False)
    touched.close()
    with pytest.raises(LedgerClosed):
        touched.append((b"3",), completions.next())


def test_a_log_that_refuses_fails_appends_and_creations_until_it_takes_them_again() -> None:
    log = MemoryLog()
    ledger, completions = log.create(), Completions()
    append_all(ledger, [b"0"])
    log.refuse(DiskFull("on purpose"))
    ledger.append((b"1",), completions.next())
    assert isinstance(completions.wait()[0], DiskFull)
    with pytest.raises(DiskFull):
        log.create()
    assert read_all(ledger) == [b"0"]
    log.refuse(None)
    append_all(log.create(), [b"0"])


def test_closing_waits_for_what_is_deferred() -> None:
    log = MemoryLog(deferred=True)
    ledger = log.create()
    ledger.append((b"0",), Completions().next())
    closing = threading.Thread(target=ledger.close)
    closing.start()
    log.complete()
    closing.join(20)
    assert not closing.is_alive()
    assert read_all(ledger) == [b"0"]
