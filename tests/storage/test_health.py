"""Detection of outages of tiers, and of their end."""

from __future__ import annotations

import logging
import pickle
import random
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from tests.support.clock import ManualClock, ManualExecutor
from tests.support.faults import Fault, FaultRule, FaultyStore
from tests.support.served_topics import eventually

from afterglow.errors import (
    AccessDenied,
    BucketMissing,
    ObjectMissing,
    PartMismatch,
    StorageError,
    StoreThrottled,
    StoreTimeout,
    StoreUnavailable,
)
from afterglow.storage import LocalStore, MemoryStore, RetryingStore, RetryPolicy
from afterglow.storage.health import MonitoredStore, Outage, TierHealth, spawn_thread
from afterglow.storage.wrapper import StoreWrapper

if TYPE_CHECKING:
    from pathlib import Path

TIER = "s3://bucket at http://127.0.0.1:9"
START_MS = 1_700_000_000_000
DOWN = (FaultRule(Fault.ERROR_BEFORE, times=None),)


class Watch:
    """A tier that can be broken and repaired, its health, and a clock that a test moves."""

    def __init__(self, *, probes: bool = True) -> None:
        self.clock = ManualClock()
        self.clock.set_now_ms(START_MS)
        self.probes = ManualExecutor()
        self.health = TierHealth(
            now_ms=self.clock.now_ms,
            monotonic=self.clock.monotonic,
            spawn=self.probes.submit if probes else None,
        )
        self.front = StoreWrapper(MemoryStore())
        self.store = self.health.monitored(TIER, self.front)

    def break_down(self, *rules: FaultRule) -> None:
        self.front.inner = FaultyStore(MemoryStore(), rules or DOWN, seed=1)

    def repair(self) -> None:
        self.front.inner = MemoryStore()

    def ask(self) -> None:
        """One request, which may fail."""
        with suppress(StorageError):
            self.store.put("k", b"")

    def tick(self, seconds: float = 1.0) -> tuple[str, ...]:
        """Let time pass, and all that follows happen."""
        self.clock.advance(seconds)
        recovered = self.health.tick()
        self.probes.run_all()
        return recovered

    def is_out(self) -> bool:
        return self.health.outage(TIER) is not None

    def outage(self) -> Outage:
        found = self.health.outage(TIER)
        assert found is not None
        return found


def test_a_failed_request_is_confirmed_by_a_probe_at_the_next_tick(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    watch.break_down()
    watch.ask()
    assert not watch.is_out()
    with caplog.at_level(logging.INFO):
        watch.tick()
        assert watch.is_out()
        assert (watch.outage().location, watch.outage().since_ms) == (TIER, START_MS)
        for _ in range(20):
            watch.ask()
            watch.tick()
    (line,) = caplog.messages
    assert TIER in line
    assert "since 2023-11-14T22:13:20Z: injected fault: error before effect in put of 'k'" in line
    assert watch.outage().error.startswith("injected fault")
    assert watch.outage().sentence(START_MS + 21_600) == (
        f"The tier {TIER} has been unavailable since 2023-11-14T22:13:20Z, for 22 s"
    )


def test_any_answer_ends_an_outage_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    watch.break_down()
    watch.ask()
    watch.tick(3)
    assert watch.health.all() == {TIER: watch.outage()}
    watch.repair()
    caplog.clear()
    with caplog.at_level(logging.INFO):
        watch.clock.advance(0.5)
        watch.ask()
    assert not watch.is_out()
    assert caplog.messages == [f"the tier {TIER} is available again after 3.5 s"]
    assert watch.tick() == (TIER,)
    assert watch.tick() == ()
    assert watch.health.all() == {TIER: None}


def test_a_probe_detects_recovery_without_requests() -> None:
    watch = Watch()
    watch.break_down()
    watch.ask()
    watch.tick()
    watch.tick(30)
    assert watch.is_out()
    watch.repair()
    watch.tick()
    assert not watch.is_out()
    assert watch.tick() == (TIER,)


def test_a_transient_failure_is_not_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    with caplog.at_level(logging.INFO):
        for _ in range(10):
            watch.break_down(FaultRule(Fault.ERROR_BEFORE, times=1))
            watch.ask()
            watch.ask()
            watch.tick()
            watch.break_down(FaultRule(Fault.ERROR_BEFORE, times=1))
            watch.ask()
            watch.tick()  # nobody asks again, but a probe is answered
    assert not watch.is_out()
    assert caplog.messages == []


def test_without_probes_a_second_of_failures_alone_is_an_outage() -> None:
    watch = Watch(probes=False)
    watch.break_down()
    watch.ask()
    watch.clock.advance(0.9)
    watch.ask()
    assert not watch.is_out()
    watch.clock.advance(0.1)
    watch.ask()
    assert watch.is_out()
    assert watch.outage().since_ms == START_MS


def test_every_try_counts_and_not_their_end(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(probes=False)
    watch.break_down(FaultRule(Fault.ERROR_BEFORE, times=8))
    outages: list[bool] = []

    def sleep(seconds: float) -> None:
        watch.clock.advance(seconds)
        outages.append(watch.is_out())

    policy = RetryPolicy(deadline_s=60.0, first_delay_s=1.0)
    retrying = RetryingStore(watch.store, policy, clock=watch.clock.monotonic, sleep=sleep, rng=random.Random(3))
    with caplog.at_level(logging.INFO):
        retrying.put("k", b"")
    assert outages[0] is False
    assert outages[-1] is True
    assert not watch.is_out()
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("error", [StoreUnavailable, StoreTimeout, StoreThrottled, BucketMissing, AccessDenied])
def test_errors_of_the_store_as_a_whole_are_failures(error: type[StorageError]) -> None:
    watch = Watch()
    watch.break_down(FaultRule(Fault.ERROR_BEFORE, times=None, error=error))
    watch.ask()
    watch.tick()
    assert watch.is_out()


@pytest.mark.parametrize("error", [ObjectMissing, PartMismatch, StorageError])
def test_errors_about_an_object_are_answers(error: type[StorageError]) -> None:
    watch = Watch()
    watch.break_down()
    watch.ask()
    watch.tick()
    watch.break_down(FaultRule(Fault.ERROR_BEFORE, times=None, error=error))
    watch.ask()
    assert not watch.is_out()


def test_a_healthy_tier_is_not_probed() -> None:
    watch = Watch()
    for _ in range(100):
        watch.ask()
        watch.clock.advance(1)
        watch.health.tick()
    watch.clock.advance(1000)
    watch.health.tick()
    assert len(watch.probes) == 0


def test_a_task_that_takes_long_has_its_tier_probed_while_nothing_else_is_answered() -> None:
    watch = Watch()
    watch.health.began(TIER, "task")
    watch.break_down()
    watch.tick(0.9)
    assert not watch.is_out()
    watch.tick(0.1)
    assert watch.is_out()  # though no request of this process has failed
    watch.repair()
    watch.tick()
    assert not watch.is_out()
    for _ in range(10):
        watch.ask()
        watch.clock.advance(0.9)
        watch.health.tick()
    assert len(watch.probes) == 0
    watch.health.ended(TIER, "task")
    watch.clock.advance(100)
    watch.health.tick()
    assert len(watch.probes) == 0


def test_a_probe_without_an_answer_has_failed_and_another_is_made() -> None:
    watch = Watch()
    watch.ask()
    watch.health.began(TIER, "task")
    for second in range(1, 5):
        watch.clock.advance(1)
        watch.health.tick()
        assert len(watch.probes) == 1
        assert watch.is_out() is (second >= 4)
    assert watch.outage() == Outage(
        TIER,
        START_MS + 1500,
        "a probe got no response within 2.5 s",
        "check endpoint and network; if the store is slow, raise read_timeout_s",
    )
    watch.clock.advance(2)
    watch.health.tick()
    assert len(watch.probes) == 2
    watch.break_down()
    watch.probes.run_one()
    assert watch.outage().error == "a probe got no response within 2.5 s"  # the one that is lost does not count
    watch.repair()
    watch.probes.run_one()
    assert not watch.is_out()


def test_a_tier_that_was_never_reached_may_take_its_time_to_be_opened() -> None:
    watch = Watch()
    watch.health.began(TIER, "task")
    for _ in range(30):
        watch.clock.advance(1)
        watch.health.tick()
    assert len(watch.probes) == 1
    assert not watch.is_out()
    watch.break_down()
    watch.probes.run_one()
    assert watch.is_out()


def test_results_of_tasks_count_as_requests_do() -> None:
    watch = Watch()
    watch.health.began(TIER, "task")
    watch.break_down()
    watch.health.ended(TIER, "task")
    watch.health.failed(TIER, StoreTimeout("no answer\nwithin a minute"))
    watch.tick()
    assert watch.is_out()
    watch.health.answered(TIER)
    assert not watch.is_out()


def test_the_outage_of_an_idle_tier_is_dropped() -> None:
    watch = Watch()
    watch.break_down()
    watch.ask()
    watch.tick()
    watch.tick(298)
    assert watch.health.all() == {TIER: watch.outage()}
    watch.tick()
    assert not watch.is_out()
    assert watch.health.all() == {}
    watch.clock.advance(10)
    watch.health.tick()
    assert len(watch.probes) == 0
    watch.ask()
    watch.tick()
    assert watch.is_out()
    assert watch.outage().since_ms == START_MS + 1000 * (1 + 298 + 1 + 10)


def test_tiers_are_tracked_separately() -> None:
    watch = Watch()
    other = watch.health.monitored("file:///tier", MemoryStore())
    watch.break_down()
    watch.ask()
    other.put("k", b"")
    watch.tick()
    assert watch.health.all() == {"file:///tier": None, TIER: watch.outage()}
    assert watch.is_out()


def test_a_directory_that_goes_and_comes_back_is_an_outage(tmp_path: Path) -> None:
    health = TierHealth(spawn=spawn_thread)
    root = tmp_path / "tier"
    store = health.monitored("tier", LocalStore(root))

    def is_out(*, out: bool) -> bool:
        health.tick()
        return (health.outage("tier") is not None) is out

    with pytest.raises(BucketMissing):
        store.put("k", b"")
    eventually(lambda: is_out(out=True), health.all, 10)
    root.mkdir()
    eventually(lambda: is_out(out=False), health.all, 10)


def test_a_pickled_copy_is_the_store_alone(tmp_path: Path) -> None:
    store = TierHealth().monitored("tier", LocalStore(tmp_path))
    copy = pickle.loads(pickle.dumps(store))
    assert isinstance(copy, LocalStore)
    assert isinstance(store, MonitoredStore)
    assert copy.url == store.url


def test_a_required_tier_is_probed_before_anything_is_asked_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch()
    watch.front.inner = LocalStore(tmp_path / "absent")
    watch.health.require(TIER)
    assert not watch.is_out()  # nobody waits for the probe
    watch.probes.run_all()
    assert "create the bucket or directory" in watch.outage().cure
    for _ in range(30):
        watch.tick()
    [line] = [record.getMessage() for record in caplog.records]
    assert line.endswith("; create the bucket or directory, or correct the tier's address, endpoint and region")
    watch.repair()
    watch.tick()
    assert not watch.is_out()
    assert [record.getMessage() for record in caplog.records[1:]] == [
        f"the tier {TIER} is available again after 31.0 s"
    ]


def test_a_required_tier_that_fails_is_never_forgotten_and_probed_less_often_once_idle() -> None:
    watch = Watch()
    watch.break_down()
    watch.health.require(TIER)
    watch.probes.run_all()
    for _ in range(400):
        watch.tick()
    assert watch.is_out()
    assert TIER in watch.health.all()
    before = watch.health._tiers[TIER].probe
    for _ in range(60):
        watch.tick()
    assert watch.health._tiers[TIER].probe - before == 2
    watch.repair()
    for _ in range(30):
        watch.tick()
    assert not watch.is_out()


def test_a_required_tier_that_never_answers_is_unavailable_after_fifteen_seconds() -> None:
    watch = Watch()
    watch.health.require(TIER)  # and the probe does not come to its end
    for _ in range(14):
        watch.clock.advance(1)
        watch.health.tick()
    assert not watch.is_out()
    watch.clock.advance(1)
    watch.health.tick()
    assert watch.outage().error == "a probe got no response within 15 s"
    watch.probes.run_all()
    assert not watch.is_out()
