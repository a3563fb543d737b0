from __future__ import annotations

from typing import NoReturn
from uuid import UUID

from afterglow.errors import TopicMissing
from afterglow.format.objects import ObjectKey
from afterglow.offload.ledger_scan import LedgerScan, scan_ledgers
from afterglow.storage.memory import MemoryStore


def no_topic(name: str) -> NoReturn:
    raise TopicMissing(name)


def scan(objects: int, *, limit: int = 10, checks: int = 100) -> LedgerScan:
    """Scan a tier of ``objects`` ledgers and as many other objects, until the deadline was checked ``checks`` times."""
    store = MemoryStore()
    for number in range(objects):
        store.put(str(ObjectKey(UUID(int=number), number)), b"x")
        store.put(f"other-{number}", b"x")
    left = iter(range(checks))
    return scan_ledgers(store, "us", no_topic, limit=limit, is_expired=lambda: next(left, None) is None)


def test_a_scan_ends_with_the_tier() -> None:
    for objects in (0, 9, 10):
        found = scan(objects)
        assert (len(found.ledgers), found.complete) == (objects, True)


def test_a_scan_ends_with_enough_ledgers_and_says_that_there_are_more() -> None:
    found = scan(11)
    assert (len(found.ledgers), found.complete) == (10, False)


def test_a_scan_ends_when_time_is_up() -> None:
    found = scan(9, checks=5)
    assert len(found.ledgers) <= 5
    assert not found.complete
    assert scan(9, checks=0) == LedgerScan((), complete=False)
