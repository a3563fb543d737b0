from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.clock import ManualClock

from afterglow.config import BrokerConfig
from afterglow.offload.task_dispatch import TaskThrottle


def limits(**changes: int) -> BrokerConfig:
    return BrokerConfig(**changes)  # type: ignore[arg-type]  # settings by name


def test_without_limits_everything_is_admitted() -> None:
    throttle = TaskThrottle(ManualClock())
    for _ in range(100):
        assert throttle.admits("a", limits())
        throttle.charge("a", limits(), 1 << 40, 1000)


@given(
    rate=st.integers(1, 1000),
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=30),
    pauses=st.lists(st.floats(0, 5), min_size=30, max_size=30),
)
def test_over_time_no_more_goes_out_than_the_rate_allows(rate: int, sizes: list[int], pauses: list[float]) -> None:
    clock = ManualClock()
    throttle = TaskThrottle(clock)
    policy = limits(offload_throttling_rate_in_bytes=rate)
    gone = last = 0
    for size, pause in zip(sizes, pauses, strict=False):
        if throttle.admits("a", policy):
            throttle.charge("a", policy, size, 1)
            gone, last = gone + size, size
        assert gone - last <= rate * (clock.monotonic() + 1) + 1e-6
        clock.advance(pause)
    assert gone > 0


def test_a_topic_in_debt_holds_up_no_other_but_the_process_does() -> None:
    clock = ManualClock()
    throttle = TaskThrottle(clock)
    each = limits(offload_throttling_rate_per_topic_in_requests=1)
    throttle.charge("a", each, 0, 5)
    assert not throttle.admits("a", each)
    assert throttle.admits("b", each)
    everyone = limits(offload_throttling_rate_in_requests=1)
    throttle.charge("a", everyone, 0, 5)
    assert not throttle.admits("b", everyone)
    clock.advance(4)
    assert throttle.admits("b", everyone)


def test_a_changed_rate_holds_at_once() -> None:
    throttle = TaskThrottle(ManualClock())
    throttle.charge("a", limits(offload_throttling_rate_in_bytes=1), 1000, 1)
    assert not throttle.admits("a", limits(offload_throttling_rate_in_bytes=1))
    assert throttle.admits("a", limits(offload_throttling_rate_in_bytes=2))
    assert throttle.admits("a", limits())


def test_dropped_buckets_start_full_again() -> None:
    throttle = TaskThrottle(ManualClock())
    policy = limits(offload_throttling_rate_per_topic_in_bytes=1)
    throttle.charge("a", policy, 1000, 1)
    throttle.drop("a")
    assert throttle.admits("a", policy)
