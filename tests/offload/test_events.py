"""Events of offload: segments, whole ledgers, freed hot copies and deleted objects."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tests.support.faults import Fault, FaultRule, FaultyStore
from tests.support.ledgers import TOPIC, settings
from tests.support.offloads import OffloadWorld

from afterglow.format.position import LATEST

if TYPE_CHECKING:
    import pytest

NAME = "persistent://public/default/t"


def events(caplog: pytest.LogCaptureFixture, *texts: str) -> list[tuple[str, dict[str, Any]]]:
    """Events with one of the texts."""
    found = [
        (record.__dict__["msg"].text, record.__dict__["fields"])
        for record in caplog.records
        if "fields" in record.__dict__
    ]
    assert {fields["topic"] for _, fields in found} <= {NAME}
    return [(text, fields) for text, fields in found if text in texts]


def test_a_segment_is_logged_when_it_is_assigned_and_when_it_is_committed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = OffloadWorld(settings(streaming_offload_enabled=True))
    ledger = world.open()
    world.append(ledger, b"a", b"b")
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    (_, assigned), (_, committed) = events(caplog, "segment assigned", "segment committed", "segment failed")
    assert assigned["uuid"] == committed["uuid"]
    assert (committed["begin"], committed["end"], committed["entries"]) == ("1:0", "1:1", 2)
    assert committed["bytes"] == sum(world.tier.head(key).size_bytes for key in world.objects() if "index" not in key)


def test_a_segment_that_fails_again_and_again_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rule = FaultRule(Fault.ERROR_BEFORE, frozenset({"create_upload"}), times=None)
    world = OffloadWorld(settings(streaming_offload_enabled=True), wrap=lambda store: FaultyStore(store, [rule]))
    ledger = world.open()
    world.append(ledger, b"a")
    for _ in range(4):
        world.run()
        world.clock.advance(600)
    ((_, failed),) = events(caplog, "segment failed")
    assert failed["error"]
    assert not events(caplog, "segment committed")


def test_a_whole_ledger_is_logged_from_its_offload_to_the_deletion_of_both_copies(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    world = OffloadWorld(settings(managed_ledger_offload_deletion_lag_in_millis=1000))
    world.topic(3)
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    (_, started), (_, finished) = events(caplog, "offload started", "offload finished")
    assert started == finished
    assert (started["ledger"], started["tier"]) == (1, str(world.own))
    world.clock.advance(60)
    world.service.on_ledger_closed(TOPIC)
    world.run()
    ((_, freed),) = events(caplog, "hot copy freed")
    assert freed["policy"] == "managedLedgerOffloadDeletionLagInMillis=1s (default)"
    assert (freed["ledger"], freed["entries"]) == (1, 3)
    assert "deletion lag" in freed["reason"]
    world.store.delete(TOPIC)
    world.run()
    ((_, deleted),) = events(caplog, "object deleted")
    assert deleted["key"] == f"{started['uuid']}-ledger-1"
    assert deleted["reason"] == "the ledger left the topic's list"
    assert not world.objects()
