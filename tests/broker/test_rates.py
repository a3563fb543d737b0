from __future__ import annotations

from tests.support.clock import ManualClock

from afterglow.broker.traffic import Rate, RateMeter, Traffic, TrafficMeter


def test_a_rate_is_measured_from_the_start_until_there_are_samples() -> None:
    clock = ManualClock()
    meter = TrafficMeter(clock.monotonic)
    clock.advance(10)
    assert meter.rate(Traffic(50, 5000)) == Rate(5.0, 500.0, 100.0)


def test_a_rate_without_elapsed_time_or_messages_is_zero() -> None:
    clock = ManualClock()
    meter = TrafficMeter(clock.monotonic)
    assert meter.rate(Traffic(50, 5000)) == Rate()
    clock.advance(1)
    assert meter.rate(Traffic()) == Rate()


def test_a_traffic_rate_covers_the_last_one_to_two_periods() -> None:
    clock = ManualClock()
    meter = TrafficMeter(clock.monotonic)
    for count in (600, 1200, 1800):  # ten a second, sampled each minute
        clock.advance(60)
        meter.sample(Traffic(count, 10 * count))
    assert meter.rate(Traffic(1800, 18_000)) == Rate(10.0, 100.0, 10.0)
    clock.advance(60)
    assert meter.rate(Traffic(1800, 18_000)) == Rate(5.0, 50.0, 10.0)
    meter.sample(Traffic(1800, 18_000))
    clock.advance(1)
    assert meter.rate(Traffic(1800, 18_000)) == Rate()


def test_the_first_rate_is_an_average_since_the_start() -> None:
    clock = ManualClock()
    meter = RateMeter(clock.monotonic, 60)
    clock.advance(10)
    assert meter.measure({"a": 50}) == {"a": 5.0}


def test_a_rate_without_time_between_samples_is_zero() -> None:
    assert RateMeter(ManualClock().monotonic, 60).measure({"a": 50}) == {"a": 0.0}


def test_rates_cover_the_last_one_to_two_periods() -> None:
    clock = ManualClock()
    meter = RateMeter(clock.monotonic, 60)
    seen = []
    for count in range(0, 700, 100):  # 100 every 30 seconds, and then nothing more
        clock.advance(30)
        seen.append(meter.measure({"a": count})["a"])
    assert seen[-1] == 100 / 30
    for _ in range(4):
        clock.advance(30)
        seen.append(meter.measure({"a": 600})["a"])
    assert seen[-4:] == sorted(seen[-4:], reverse=True)
    assert seen[-1] == 0.0


def test_the_rate_of_a_restarted_count_is_not_negative() -> None:
    clock = ManualClock()
    meter = RateMeter(clock.monotonic, 10)
    clock.advance(10)
    meter.measure({"a": 1000})
    clock.advance(10)
    meter.measure({"a": 1000})
    clock.advance(10)
    assert meter.measure({"a": 20}) == {"a": 2.0}


def test_removed_counts_are_dropped() -> None:
    clock = ManualClock()
    meter = RateMeter(clock.monotonic, 10)
    for _ in range(3):
        clock.advance(10)
        assert meter.measure({}) == {}
    assert not meter._older[1]
    assert not meter._newer[1]
