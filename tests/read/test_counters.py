from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from afterglow.read.counters import QUANTILES, Latencies, LatencySummary

if TYPE_CHECKING:
    from collections.abc import Sequence


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def recorded(times_us: Sequence[int]) -> LatencySummary:
    latencies = Latencies(Clock())
    for took_us in times_us:
        latencies.record(took_us / 1e6)
    return latencies.summary()


@given(st.lists(st.integers(0, 10**9), min_size=1))
def test_a_quantile_is_never_too_low_and_at_most_a_quarter_too_high(times_us: list[int]) -> None:
    found = recorded(times_us)
    assert (found.count, found.sum_us) == (len(times_us), sum(times_us))
    ordered = sorted(times_us)
    for quantile in QUANTILES:
        true_us = next(took for rank, took in enumerate(ordered, 1) if rank >= quantile * len(ordered))
        assert true_us <= found.quantiles[quantile] <= 1.25 * true_us
    assert found.quantiles[1.0] == ordered[-1]


def test_without_requests_there_are_no_quantiles() -> None:
    assert recorded([]) == LatencySummary()


def test_quantiles_are_of_the_last_minutes_and_counts_of_all() -> None:
    clock = Clock()
    latencies = Latencies(clock)
    latencies.record(1.0)
    clock.now_s = 400.0
    latencies.record(0.001)
    assert latencies.summary().quantiles[1.0] == 1_000_000
    clock.now_s = 800.0
    assert latencies.summary().quantiles[1.0] == 1_000
    clock.now_s = 8_000.0
    assert latencies.summary() == LatencySummary(2, 1_001_000)
