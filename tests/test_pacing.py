from __future__ import annotations

import random

import pytest

from afterglow.errors import ConfigError
from afterglow.pacing import Backoff, TokenBucket


def test_a_backoff_doubles_up_to_its_longest_wait() -> None:
    backoff = Backoff(100, 1_000)
    assert [backoff.delay(failures) for failures in range(7)] == [0, 100, 200, 400, 800, 1_000, 1_000]
    assert backoff.delay(10_000) == 1_000


def test_a_jittered_wait_lies_anywhere_up_to_the_backoff() -> None:
    backoff, rng = Backoff(0.1, 5.0), random.Random(1)
    waits = [backoff.jittered(3, rng) for _ in range(200)]
    assert min(waits) < 0.05
    assert 0.35 < max(waits) <= 0.4
    assert backoff.jittered(0, rng) == 0


class Time:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_bucket_gives_a_second_s_worth_at_once_and_the_rest_at_its_rate() -> None:
    time = Time()
    bucket = TokenBucket(10, clock=time)
    assert [bucket.charge(5) for _ in range(4)] == [0, 0, 0.5, 1.0]
    time.now_s += 1.0
    assert bucket.charge(0) == 0


def test_a_charge_larger_than_a_second_s_worth_passes_and_the_rate_still_holds() -> None:
    time = Time()
    bucket = TokenBucket(100, clock=time)
    assert bucket.charge(1_000) == pytest.approx(9.0)
    time.now_s += 8.0
    assert bucket.charge(0) == pytest.approx(1.0)


def test_a_pause_saves_up_no_more_than_a_second_s_worth() -> None:
    time = Time()
    bucket = TokenBucket(10, clock=time)
    time.now_s += 1_000
    assert bucket.charge(15) == pytest.approx(0.5)


@pytest.mark.parametrize("rate", [0, -1])
def test_a_rate_that_lets_nothing_through_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        TokenBucket(rate)
