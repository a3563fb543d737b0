from __future__ import annotations

import pytest

from afterglow.errors import ObjectExists, ObjectMissing
from afterglow.storage import CountingStore, MemoryStore, OperationCount
from afterglow.storage.wrapper import RequestCounters


def test_requests_bytes_and_time_are_counted_by_operation() -> None:
    ticks = iter(range(100))
    store = CountingStore(MemoryStore(), clock=lambda: float(next(ticks)))
    store.put("a", b"12345")
    store.put("b", bytearray(3))
    store.get("a", 1, 3)
    store.get("b")
    store.delete(["a", "b"])
    assert store.counts() == {
        "put": OperationCount(requests=2, sent_bytes=8, seconds=2.0),
        "get": OperationCount(requests=2, received_bytes=5, seconds=2.0),
        "delete": OperationCount(requests=1, seconds=1.0),
    }


def test_errors_are_counted_by_operation_and_kind() -> None:
    store = CountingStore(MemoryStore())
    store.put("a", b"1")
    for _ in range(2):
        with pytest.raises(ObjectMissing):
            store.get("missing")
    with pytest.raises(ObjectExists):
        store.put("a", b"2", if_absent=True)
    counts = store.counts()
    assert counts["get"].errors == {"ObjectMissing": 2}
    assert counts["put"].errors == {"ObjectExists": 1}
    assert counts["put"].requests == 2


def test_each_page_of_a_listing_is_a_request() -> None:
    inner = MemoryStore()
    for number in range(1_001):
        inner.put(f"{number:04}", b"")
    store = CountingStore(inner)
    assert len(list(store.list())) == 1_001
    assert store.counts()["list_page"].requests == 2


def test_uploaded_parts_count_as_sent() -> None:
    store = CountingStore(MemoryStore())
    upload = store.create_upload("a")
    store.complete_upload(upload, [store.upload_part(upload, 1, b"123")])
    assert store.counts()["upload_part"].sent_bytes == 3
    assert set(store.counts()) == {"create_upload", "upload_part", "complete_upload"}


def test_several_stores_can_be_counted_together() -> None:
    counters = RequestCounters()
    for _ in range(3):
        CountingStore(MemoryStore(), counters=counters).put("a", b"12")
    put = counters.counts()["put"]
    assert (put.requests, put.sent_bytes) == (3, 6)
