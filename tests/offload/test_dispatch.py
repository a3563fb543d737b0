from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.clock import ManualClock

from afterglow.config import BrokerConfig
from afterglow.offload.dispatch import Admission


def limits(**changes: int) -> BrokerConfig:
    return BrokerConfig(**changes)  # type: ignore[arg-type]  # settings by name


def test_without_limits_everything_is_admitted() -> None:
    admission = Admission(ManualClock())
    for _ in range(100):
        assert admission.open("a", limits())
        admission.charge("a", limits(), 1 << 40, 1000)


@given(
    rate=st.integers(1, 1000),
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=30),
    pauses=st.lists(st.floats(0, 5), min_size=30, max_size=30),
)
def test_over_time_no_more_goes_out_than_the_rate_allows(rate: int, sizes: list[int], pauses: list[float]) -> None:
    clock = ManualClock()
    admission = Admission(clock)
    policy = limits(offload_throttling_rate_in_bytes=rate)
    gone = last = 0
    for size, pause in zip(sizes, pauses, strict=False):
        if admission.open("a", policy):
            admission.charge("a", policy, size, 1)
            gone, last = gone + size, size
        assert gone - last <= rate * (clock.monotonic() + 1) + 1e-6
        clock.advance(pause)
    assert gone > 0


def test_a_topic_in_debt_holds_up_no_other_but_the_process_does() -> None:
    clock = ManualClock()
    admission = Admission(clock)
    each = limits(offload_throttling_rate_per_topic_in_requests=1)
    admission.charge("a", each, 0, 5)
    assert not admission.open("a", each)
    assert admission.open("b", each)
    everyone = limits(offload_throttling_rate_in_requests=1)
    admission.charge("a", everyone, 0, 5)
    assert not admission.open("b", everyone)
    clock.advance(4)
    assert admission.open("b", everyone)


def test_a_changed_rate_holds_at_once() -> None:
    admission = Admission(ManualClock())
    admission.charge("a", limits(offload_throttling_rate_in_bytes=1), 1000, 1)
    assert not admission.open("a", limits(offload_throttling_rate_in_bytes=1))
    assert admission.open("a", limits(offload_throttling_rate_in_bytes=2))
    assert admission.open("a", limits())


def test_what_is_forgotten_begins_anew() -> None:
    admission = Admission(ManualClock())
    policy = limits(offload_throttling_rate_per_topic_in_bytes=1)
    admission.charge("a", policy, 1000, 1)
    admission.forget("a")
    assert admission.open("a", policy)
