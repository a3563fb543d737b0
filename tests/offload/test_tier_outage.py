"""Messages while a tier is unavailable, and recovery once it is available again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from tests.support.faults import Fault, FaultRule, FaultyStore
from tests.support.ledgers import TOPIC, settings
from tests.support.offloads import OffloadWorld

from afterglow.errors import StoreUnavailable
from afterglow.format.position import LATEST
from afterglow.metadata.names import TopicName
from afterglow.offload.explain import LedgerState
from afterglow.offload.segments.listing import SegmentStatus
from afterglow.offload.status import OffloadState
from afterglow.storage.wrapper import CountingStore, StoreWrapper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.config import BrokerConfig
    from afterglow.storage.store import ObjectStore

OTHER = "public/default/persistent/other"
DOWN = (FaultRule(Fault.ERROR_BEFORE, times=None),)


class OutageWorld(OffloadWorld):
    """A world whose tier can be taken away; every request to it is monitored."""

    def __init__(self, config: BrokerConfig) -> None:
        super().__init__(config, wrap=self._front)

    def _front(self, store: ObjectStore) -> ObjectStore:
        if store.url != self.own.url:
            return store
        self.counting = CountingStore(store)
        self.front = StoreWrapper(self.counting)
        return self.tiers.health.monitored(str(self.own), self.front)

    def break_down(self) -> None:
        self.front.inner = FaultyStore(self.counting, DOWN, seed=1)

    def repair(self) -> None:
        self.front.inner = self.counting

    def pass_seconds(self, seconds: int) -> None:
        """As a server does: a tick every second, and all that follows from it."""
        for _ in range(seconds):
            self.clock.advance(1)
            self.service.tick()
            self.settle()
            while self.runner.run_all():
                self.settle()


@pytest.fixture
def broken() -> Iterator[OutageWorld]:
    """A topic that streams, its tier away for five minutes when an offload was requested."""
    world = OutageWorld(settings(streaming_offload_enabled=True, max_offload_segment_size_in_bytes=1 << 20))
    ledger = world.open()
    world.append(ledger, *[b"x" * 60] * 5)
    world.pass_seconds(1)
    world.service.offload_prefix(TOPIC, LATEST)
    world.pass_seconds(2)
    world.append(ledger, *[b"x" * 60] * 5)
    world.break_down()
    world.service.offload_prefix(TOPIC, LATEST)
    yield world
    world.check()


def test_within_five_seconds_everything_names_the_tier_and_since_when(broken: OutageWorld) -> None:
    world = broken
    asked_ms = world.clock.now_ms()
    world.pass_seconds(5)
    tier = str(world.own)
    outage = world.service.tiers()[tier]
    assert outage is not None
    assert asked_ms <= outage.since_ms <= asked_ms + 1000
    assert world.service.outage(TOPIC) == outage
    reason = outage.sentence(world.clock.now_ms())
    assert f"The tier {tier} has been unavailable since " in reason
    (found,) = world.service.explain(TOPIC)
    assert (found.state, found.error) == (LedgerState.FAILED, f"{reason}: {outage.error}")
    assert reason in found.sentence
    _, failing = world.service.segments(TOPIC)
    assert failing.status is SegmentStatus.FAILED
    assert (failing.error or "").startswith(reason)
    assert world.service.statistics(TOPIC).failing


def test_a_stream_resumes_as_soon_as_its_tier_is_available(broken: OutageWorld) -> None:
    world = broken
    world.pass_seconds(300)
    (found,) = world.service.explain(TOPIC)
    assert found.next_ms is not None
    assert found.next_ms - world.clock.now_ms() > 3000
    world.repair()
    world.pass_seconds(2)
    assert world.service.status(TOPIC).state is OffloadState.SUCCESS
    assert world.service.tiers() == {str(world.own): None}
    assert [view.error for view in world.service.segments(TOPIC)] == [None, None]
    assert len(world.intents()) == 1  # of the upload that the first request may have created, not one per attempt
    assert not world.service.statistics(TOPIC).failing


def test_an_outage_is_logged_once_at_its_beginning_and_once_at_its_end(
    broken: OutageWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = broken
    with caplog.at_level(logging.INFO):
        world.pass_seconds(300)
        world.repair()
        world.pass_seconds(2)
    events = {"segment assigned", "segment failed", "segment committed"}
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    logged = [text for text in said if not any(text.startswith(event) for event in events)]
    first, begin, stalled, end = logged
    assert "is retried later" in first  # what fails at once fails before a probe has confirmed the outage
    assert "has been unavailable since" in begin
    assert "has made no progress for 300 s" in stalled
    assert "is available again after 30" in end


def test_whole_ledgers_resume_as_soon_as_their_tier_is_available() -> None:
    world = OutageWorld(settings(managed_ledger_offload_threshold_in_bytes=0))
    world.topic(2)
    world.pass_seconds(1)
    assert world.offloaded() == [1]
    world.break_down()
    world.topic(2)
    world.pass_seconds(5)
    *_, found, _ = world.service.explain(TOPIC)
    assert found.state is LedgerState.FAILED
    assert f"The tier {world.own} has been unavailable since" in (found.error or "")
    assert "unavailable" not in world.service.explain(TOPIC)[0].sentence
    world.pass_seconds(300)
    world.repair()
    world.pass_seconds(2)
    assert len(world.offloaded()) == 2
    world.check()


def test_objects_are_deleted_as_soon_as_their_tier_answers_and_an_outage_is_met_once() -> None:
    world = OutageWorld(settings(managed_ledger_offload_threshold_in_bytes=0))
    ledger = world.topic(2, 2, 2)
    world.pass_seconds(1)
    assert len(world.objects()) == 6
    world.break_down()
    ledger.trimmer.truncate()
    world.pass_seconds(4)
    assert len(world.intents()) == 3
    before = world.service.statistics(TOPIC).deletions_failed
    world.pass_seconds(120)
    failed = world.service.statistics(TOPIC).deletions_failed - before
    assert failed == 2  # one of the three at each try
    world.repair()
    world.pass_seconds(2)
    assert world.intents() == ()
    assert world.objects() == []
    world.check()


def test_topics_that_wait_for_another_tier_are_left_alone() -> None:
    world = OutageWorld(settings(managed_ledger_offload_threshold_in_bytes=0))
    world.topic(2)
    world.pass_seconds(1)
    elsewhere = {"managedLedgerOffloadDriver": "filesystem", "fileSystemURI": "file:///nowhere/at/all"}
    world.catalog.update_topic_policies(
        TopicName.from_managed_ledger_name(OTHER), lambda _old: {"offloadPolicies": elsewhere}
    )
    world.policies.changed(None)
    world.break_down()
    world.topic(2)
    world.topic(2, name=OTHER)
    world.pass_seconds(100)
    assert None not in world.service.tiers().values()
    world.repair()
    backoff = world.service._topic(OTHER).activity.failures
    assert backoff
    world.pass_seconds(2)
    assert len(world.offloaded()) == 2
    assert world.service._topic(OTHER).activity.failures == backoff


@pytest.mark.parametrize("streaming", [True, False])
def test_a_manual_offload_ends_the_backoff_of_its_topic(*, streaming: bool) -> None:
    world = OffloadWorld(
        settings(
            streaming_offload_enabled=streaming,
            managed_ledger_offload_threshold_in_bytes=0,
            managed_ledger_offload_deletion_lag_in_millis=None,
            offload_retry_min_backoff_millis=30_000,
        )
    )
    world.topic(3)
    if streaming:
        world.service.tick()
        world.settle()
        world.service.offload_prefix(TOPIC, LATEST)
    world.service.tick()
    world.settle()
    world.runner.fail_one(StoreUnavailable("no route"))
    world.run()
    assert world.service.explain(TOPIC)[0].state is LedgerState.FAILED
    if streaming:
        assert world.service.status(TOPIC).state is OffloadState.RUNNING
        world.service._topic(TOPIC).manual_segments.fail(StoreUnavailable("given up"))
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    assert world.service.status(TOPIC).state is OffloadState.SUCCESS
    assert world.service.explain(TOPIC)[0].state is LedgerState.OFFLOADED
    world.check()
