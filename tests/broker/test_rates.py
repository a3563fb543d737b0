from __future__ import annotations

from afterglow.broker.traffic import Rate, RateMeter, Traffic, TrafficMeter


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_rate_is_measured_from_the_start_until_there_are_samples() -> None:
    watch = Clock()
    meter = TrafficMeter(watch)
    watch.now_s += 10
    assert meter.rate(Traffic(50, 5000)) == Rate(5.0, 500.0, 100.0)


def test_a_rate_without_elapsed_time_or_messages_is_zero() -> None:
    watch = Clock()
    meter = TrafficMeter(watch)
    assert meter.rate(Traffic(50, 5000)) == Rate()
    watch.now_s += 1
    assert meter.rate(Traffic()) == Rate()


def test_a_traffic_rate_covers_the_last_one_to_two_periods() -> None:
    watch = Clock()
    meter = TrafficMeter(watch)
    for count in (600, 1200, 1800):  # ten a second, sampled each minute
        watch.now_s += 60
        meter.sample(Traffic(count, 10 * count))
    assert meter.rate(Traffic(1800, 18_000)) == Rate(10.0, 100.0, 10.0)
    watch.now_s += 60
    assert meter.rate(Traffic(1800, 18_000)) == Rate(5.0, 50.0, 10.0)
    meter.sample(Traffic(1800, 18_000))
    watch.now_s += 1
    assert meter.rate(Traffic(1800, 18_000)) == Rate()


def test_the_first_rate_is_an_average_since_the_start() -> None:
    watch = Clock()
    meter = RateMeter(watch, 60)
    watch.now_s += 10
    assert meter.measure({"a": 50}) == {"a": 5.0}


def test_a_rate_without_time_between_samples_is_zero() -> None:
    assert RateMeter(Clock(), 60).measure({"a": 50}) == {"a": 0.0}


def test_rates_cover_the_last_one_to_two_periods() -> None:
    watch = Clock()
    meter = RateMeter(watch, 60)
    seen = []
    for count in range(0, 700, 100):  # 100 every 30 seconds, and then nothing more
        watch.now_s += 30
        seen.append(meter.measure({"a": count})["a"])
    assert seen[-1] == 100 / 30
    for _ in range(4):
        watch.now_s += 30
        seen.append(meter.measure({"a": 600})["a"])
    assert seen[-4:] == sorted(seen[-4:], reverse=True)
    assert seen[-1] == 0.0


def test_the_rate_of_a_restarted_count_is_not_negative() -> None:
    watch = Clock()
    meter = RateMeter(watch, 10)
    watch.now_s += 10
    meter.measure({"a": 1000})
    watch.now_s += 10
    meter.measure({"a": 1000})
    watch.now_s += 10
    assert meter.measure({"a": 20}) == {"a": 2.0}


def test_removed_counts_are_dropped() -> None:
    watch = Clock()
    meter = RateMeter(watch, 10)
    for _ in range(3):
        watch.now_s += 10
        assert meter.measure({}) == {}
    assert not meter._older[1]
    assert not meter._newer[1]
