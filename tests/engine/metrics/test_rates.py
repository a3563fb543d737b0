from __future__ import annotations

from afterglow.engine.metrics.rates import Rates


class Watch:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_first_look_is_an_average_since_the_start() -> None:
    watch = Watch()
    rates = Rates(60, watch)
    watch.now_s += 10
    assert rates.look({"a": 50}) == {"a": 5.0}


def test_no_time_gives_no_rate() -> None:
    assert Rates(60, Watch()).look({"a": 50}) == {"a": 0.0}


def test_looks_reach_back_one_period_to_two() -> None:
    watch = Watch()
    rates = Rates(60, watch)
    seen = []
    for count in range(0, 700, 100):  # 100 every 30 seconds, and then nothing more
        watch.now_s += 30
        seen.append(rates.look({"a": count})["a"])
    assert seen[-1] == 100 / 30
    for _ in range(4):
        watch.now_s += 30
        seen.append(rates.look({"a": 600})["a"])
    assert seen[-4:] == sorted(seen[-4:], reverse=True)
    assert seen[-1] == 0.0


def test_a_count_that_began_anew_is_not_negative() -> None:
    watch = Watch()
    rates = Rates(10, watch)
    watch.now_s += 10
    rates.look({"a": 1000})
    watch.now_s += 10
    rates.look({"a": 1000})
    watch.now_s += 10
    assert rates.look({"a": 20}) == {"a": 2.0}


def test_what_is_gone_is_forgotten() -> None:
    watch = Watch()
    rates = Rates(10, watch)
    for _ in range(3):
        watch.now_s += 10
        assert rates.look({}) == {}
    assert not rates._older[1]
    assert not rates._newer[1]
