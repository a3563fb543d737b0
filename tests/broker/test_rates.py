from __future__ import annotations

from afterglow.broker.rates import Meter, Rate
from afterglow.broker.traffic import Traffic


class Watch:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_rate_counts_from_the_beginning_until_there_are_samples() -> None:
    watch = Watch()
    meter = Meter(watch)
    watch.now_s += 10
    assert meter.rate(Traffic(50, 5000)) == Rate(5.0, 500.0, 100.0)


def test_no_time_and_no_message_give_no_rate() -> None:
    watch = Watch()
    meter = Meter(watch)
    assert meter.rate(Traffic(50, 5000)) == Rate()
    watch.now_s += 1
    assert meter.rate(Traffic()) == Rate()


def test_a_rate_is_that_of_the_last_one_to_two_periods() -> None:
    watch = Watch()
    meter = Meter(watch)
    for count in (600, 1200, 1800):  # ten a second, sampled each minute
        watch.now_s += 60
        meter.sample(Traffic(count, 10 * count))
    assert meter.rate(Traffic(1800, 18_000)) == Rate(10.0, 100.0, 10.0)
    watch.now_s += 60
    assert meter.rate(Traffic(1800, 18_000)) == Rate(5.0, 50.0, 10.0)
    meter.sample(Traffic(1800, 18_000))
    watch.now_s += 1
    assert meter.rate(Traffic(1800, 18_000)) == Rate()
