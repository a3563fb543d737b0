from __future__ import annotations

import pickle

import pytest

from afterglow.errors import ConfigError
from afterglow.storage import MemoryStore, ThrottledStore, TokenBucket


class _Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def bucket(self, rate: float, burst: float | None = None) -> TokenBucket:
        return TokenBucket(rate, burst, clock=self.clock, sleep=self.sleep)


def test_a_burst_passes_at_once_and_the_rest_at_the_rate() -> None:
    time = _Time()
    bucket = time.bucket(10, burst=5)
    for _ in range(5):
        bucket.take(1)
    assert time.slept == []
    for _ in range(20):
        bucket.take(1)
    assert time.now == pytest.approx(2.0)


def test_a_request_larger_than_the_burst_passes_and_the_rate_still_holds() -> None:
    time = _Time()
    bucket = time.bucket(100)
    for _ in range(3):
        bucket.take(1_000)
    assert time.now == pytest.approx((3_000 - 100) / 100)


def test_a_pause_saves_up_no_more_than_the_burst() -> None:
    time = _Time()
    bucket = time.bucket(10, burst=10)
    bucket.take(10)
    time.now += 1_000
    bucket.take(10)
    assert time.slept == []
    bucket.take(5)
    assert time.slept == [pytest.approx(0.5)]


def test_bytes_written_wait_before_they_go() -> None:
    time = _Time()
    store = ThrottledStore(MemoryStore(), transfer=time.bucket(1_000))
    store.put("a", bytes(1_000))
    assert time.now == 0.0
    store.put("b", bytes(3_000))
    assert time.now == pytest.approx(3.0)


def test_bytes_read_delay_the_next_transfer() -> None:
    time = _Time()
    inner = MemoryStore()
    inner.put("a", bytes(5_000))
    store = ThrottledStore(inner, transfer=time.bucket(1_000))
    store.get("a")
    assert time.now == 0.0
    store.get("a", 0, 1)
    assert time.now == pytest.approx(4.0)


def test_requests_are_limited_whatever_their_size() -> None:
    time = _Time()
    store = ThrottledStore(MemoryStore(), requests=time.bucket(2))
    for number in range(10):
        store.put(str(number), b"")
    assert time.now == pytest.approx(4.0)


def test_one_bucket_may_serve_two_stores() -> None:
    time = _Time()
    bucket = time.bucket(1_000)
    for store in (ThrottledStore(MemoryStore(), transfer=bucket), ThrottledStore(MemoryStore(), transfer=bucket)):
        store.put("a", bytes(1_000))
    assert time.now == pytest.approx(1.0)


def test_a_pickled_store_keeps_its_rates() -> None:
    store = pickle.loads(pickle.dumps(ThrottledStore(MemoryStore(), transfer=TokenBucket(50, 7))))
    assert store._transfer.charge(57) == pytest.approx(1.0)


@pytest.mark.parametrize(("rate", "burst"), [(0, None), (-1, None), (1, 0)])
def test_a_rate_that_lets_nothing_through_is_refused(rate: float, burst: float | None) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        TokenBucket(rate, burst)
