from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.faults import Fault, FaultRule, FaultyStore

from afterglow.errors import (
    AccessDenied,
    ChecksumMismatch,
    ObjectExists,
    ObjectMissing,
    StorageError,
    StoreThrottled,
    StoreTimeout,
    StoreUnavailable,
    UploadMissing,
)
from afterglow.storage import CountingStore, MemoryStore, RetryingStore, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.storage import (
        ObjectStore,
    )


class _Time:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def _retrying(inner: ObjectStore, *rules: FaultRule, policy: RetryPolicy | None = None) -> tuple[RetryingStore, _Time]:
    time = _Time()
    faulty = FaultyStore(inner, rules, seed=1)
    return RetryingStore(faulty, policy, clock=time.clock, sleep=time.sleep, rng=random.Random(7)), time


def _of(*operations: str) -> frozenset[str]:
    return frozenset(operations)


@pytest.mark.parametrize("error", [StoreUnavailable, StoreThrottled, StoreTimeout, ChecksumMismatch])
def test_passing_errors_are_tried_again(error: type[StorageError]) -> None:
    inner = MemoryStore()
    store, time = _retrying(inner, FaultRule(Fault.ERROR_BEFORE, times=3, error=error))
    store.put("a", b"data")
    assert bytes(inner.get("a")) == b"data"
    assert len(time.slept) == 3


@pytest.mark.parametrize("error", [AccessDenied, StorageError, ObjectMissing])
def test_lasting_errors_are_not(error: type[StorageError]) -> None:
    store, time = _retrying(MemoryStore(), FaultRule(Fault.ERROR_BEFORE, error=error))
    with pytest.raises(error):
        store.put("a", b"data")
    assert time.slept == []


def test_pauses_are_drawn_evenly_below_a_doubling_bound() -> None:
    policy = RetryPolicy(deadline_s=1e9, first_delay_s=1.0, max_delay_s=60.0)
    longest = [0.0] * 12
    for seed in range(60):
        time = _Time()
        faulty = FaultyStore(MemoryStore(), [FaultRule(Fault.ERROR_BEFORE, times=12)])
        RetryingStore(faulty, policy, clock=time.clock, sleep=time.sleep, rng=random.Random(seed)).put("a", b"")
        for number, pause in enumerate(time.slept):
            assert 0 <= pause <= min(60.0, 2.0**number)
            longest[number] = max(longest[number], pause)
    assert all(pause > 0.8 * min(60.0, 2.0**number) for number, pause in enumerate(longest))


def test_after_the_deadline_the_outcome_is_unknown() -> None:
    policy = RetryPolicy(deadline_s=30.0, first_delay_s=1.0)
    store, time = _retrying(MemoryStore(), FaultRule(Fault.ERROR_BEFORE, times=None), policy=policy)
    with pytest.raises(StoreTimeout, match=r"put of 'a' failed \d+ times .* may have taken effect"):
        store.put("a", b"")
    assert 15 < time.now < 30


def test_after_the_deadline_a_throttled_request_certainly_did_nothing() -> None:
    rule = FaultRule(Fault.ERROR_BEFORE, times=None, error=StoreThrottled)
    store, _ = _retrying(MemoryStore(), rule, policy=RetryPolicy(deadline_s=5.0))
    with pytest.raises(StoreThrottled):
        store.put("a", b"")


def test_no_deadline_no_second_attempt() -> None:
    store, time = _retrying(MemoryStore(), FaultRule(Fault.ERROR_BEFORE), policy=RetryPolicy(deadline_s=0.0))
    with pytest.raises(StoreTimeout):
        store.put("a", b"")
    assert time.slept == []


def test_a_put_if_absent_that_took_effect_unseen_succeeds() -> None:
    inner = MemoryStore()
    store, _ = _retrying(inner, FaultRule(Fault.ERROR_AFTER, _of("put")))
    store.put("a", b"data", metadata={"Who": "me"}, if_absent=True)
    assert bytes(inner.get("a")) == b"data"


@pytest.mark.parametrize(
    ("data", "metadata"), [(b"other", {"who": "me"}), (b"longer data", {"who": "me"}), (b"mine!", {"who": "you"})]
)
def test_a_put_if_absent_that_met_another_after_an_unknown_outcome_fails(data: bytes, metadata: dict[str, str]) -> None:
    inner = MemoryStore()
    inner.put("a", data, metadata=metadata)
    store, _ = _retrying(inner, FaultRule(Fault.ERROR_BEFORE, _of("put"), error=StoreTimeout))
    with pytest.raises(ObjectExists):
        store.put("a", b"mine!", metadata={"who": "me"}, if_absent=True)
    assert bytes(inner.get("a")) == data


def test_a_put_if_absent_that_met_its_equal_without_doubt_fails() -> None:
    inner = MemoryStore()
    inner.put("a", b"data")
    store, _ = _retrying(inner, FaultRule(Fault.ERROR_BEFORE, _of("put"), error=StoreThrottled))
    with pytest.raises(ObjectExists):
        store.put("a", b"data", if_absent=True)


def test_a_completion_that_took_effect_unseen_succeeds() -> None:
    inner = MemoryStore()
    store, _ = _retrying(inner, FaultRule(Fault.ERROR_AFTER, _of("complete_upload")))
    upload = store.create_upload("a")
    store.complete_upload(upload, [store.upload_part(upload, 1, b"data")])
    assert bytes(inner.get("a")) == b"data"


@pytest.mark.parametrize("there", [None, b"of another length"])
def test_a_completion_whose_upload_was_lost_fails(there: bytes | None) -> None:
    inner = MemoryStore()
    if there is not None:
        inner.put("a", there)
    store, _ = _retrying(inner, FaultRule(Fault.ERROR_BEFORE, _of("complete_upload")))
    upload = store.create_upload("a")
    part = store.upload_part(upload, 1, b"data")
    inner.abort_upload(upload)
    with pytest.raises(UploadMissing):
        store.complete_upload(upload, [part])


def test_a_creation_of_unknown_outcome_is_not_repeated() -> None:
    inner = MemoryStore()
    store, _ = _retrying(inner, FaultRule(Fault.ERROR_AFTER, _of("create_upload")))
    with pytest.raises(StoreTimeout):
        store.create_upload("a")
    assert len(inner.list_uploads()) == 1


def test_a_throttled_creation_is_repeated() -> None:
    inner = MemoryStore()
    store, _ = _retrying(inner, FaultRule(Fault.ERROR_BEFORE, _of("create_upload"), error=StoreThrottled))
    upload = store.create_upload("a")
    assert inner.list_uploads() == (upload,)


def test_a_range_that_arrived_short_is_read_again() -> None:
    inner = MemoryStore()
    inner.put("a", bytes(1_000))
    store, time = _retrying(inner, FaultRule(Fault.SHORT_READ, times=2))
    assert store.get("a", 0, 1_000).nbytes == 1_000
    assert len(time.slept) == 2


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER])
def test_a_listing_goes_on_after_an_error_between_its_pages(fault: Fault) -> None:
    inner = MemoryStore()
    keys = [f"{number:04}" for number in range(2_500)]
    for key in keys:
        inner.put(key, b"")
    store, _ = _retrying(inner, FaultRule(fault, _of("list_page"), skip=1, times=2))
    assert [info.key for info in store.list()] == keys


@pytest.mark.parametrize(
    "call",
    [lambda store, _: store.delete(iter(["a", "b"])), lambda store, upload: store.abort_upload(upload)],
    ids=["delete", "abort"],
)
def test_removing_is_repeated(call: Callable[[ObjectStore, Any], None]) -> None:
    inner = MemoryStore()
    inner.put("a", b"")
    upload = inner.create_upload("a")
    counting = CountingStore(inner)
    store, _ = _retrying(counting, FaultRule(Fault.ERROR_AFTER))
    call(store, upload)
    (count,) = counting.counts().values()
    assert count.requests == 2
