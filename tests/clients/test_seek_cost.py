"""Requests that a broker sends to the tier for a seek by time, of a client or over REST.

The ledgers of the topic: one in segments alone, one in an object of its own alone, one with both copies, and one that
is partly in a segment.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pulsar
import pytest
from tests.support.homes import APART_MS, ServerHome
from tests.support.ledgers import message
from tests.support.serving import TierRequests, serving

from afterglow.format.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.serving import Served

TOPIC: Final = "persistent://public/default/t"
REST: Final = "persistent/public/default/t"
CONF: Final = """\
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
managedLedgerOffloadDeletionLagInMillis=
managedLedgerOffloadedReadPriority=tiered-storage-first
"""
EACH: Final = 100
SEGMENT: Final = 20
SEGMENTS_ONLY, OBJECT_ONLY, BOTH, PARTLY = (range(EACH * number, EACH * (number + 1)) for number in range(4))
NONE: Final = TierRequests(0, 0, 0)
ONE_EACH: Final = TierRequests(1, 1, 1)


class SeekableTopic:
    """A topic that a broker has just begun to serve."""

    def __init__(self, served: Served, ledgers: list[int], begin_ms: int) -> None:
        self.served = served
        self._ledgers = ledgers
        self._begin_ms = begin_ms
        self._asked = served.tier_requests()

    def time_of(self, number: int) -> int:
        """Broker time of an entry, by its number in the topic."""
        return self._begin_ms + number * APART_MS

    def location(self, number: int) -> Position:
        """Where it stands."""
        return Position(self._ledgers[number // EACH], number % EACH)

    def cost(self) -> TierRequests:
        """What was asked of the tier since this was called last."""
        before, self._asked = self._asked, self.served.tier_requests()
        return self._asked.since(before)


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[SeekableTopic]:
    with ServerHome(tmp_path) as home:
        begin_ms = home.clock.now_ms()
        entries = [message(b"x" * 500) for _ in range(EACH)]
        ledgers = home.write(TOPIC, *[entries] * 4)
        for at in (0, 2):
            for first in range(0, EACH, SEGMENT):
                home.offload_segment(TOPIC, (ledgers[at], first, first + SEGMENT - 1), block_bytes=2_000)
        home.offload(TOPIC, ledgers[1])
        home.offload_segment(TOPIC, (ledgers[3], 0, SEGMENT - 1))
        home.free(TOPIC, ledgers[0])
        home.free(TOPIC, ledgers[1])
    conf = tmp_path / "broker.conf"
    conf.write_text(CONF)
    with serving(tmp_path, "--conf", str(conf)) as served:
        yield SeekableTopic(served, ledgers, begin_ms)


def test_a_stock_clients_seek_costs_one_index_and_one_ranged_get_or_nothing(topic: SeekableTopic) -> None:
    client = pulsar.Client(topic.served.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    # Without a queue the client asks for no message before the test receives one.
    consumer = client.subscribe(TOPIC, "s", receiver_queue_size=0)
    try:
        topic.cost()
        for number, cold, warm in (
            (SEGMENTS_ONLY[33], ONE_EACH, NONE),
            (OBJECT_ONLY[55], ONE_EACH, NONE),
            (BOTH[77], NONE, NONE),
            (PARTLY[11], NONE, NONE),
            (PARTLY[99], NONE, NONE),
        ):
            for expected in (cold, warm):
                consumer.seek(topic.time_of(number))
                assert topic.cost() == expected, number
                found = consumer.receive().message_id()
                assert Position(found.ledger_id(), found.entry_id()) == topic.location(number)
                topic.cost()  # of what was delivered, by the read priority
    finally:
        client.close()


def test_the_admin_api_searches_at_the_same_cost(topic: SeekableTopic) -> None:
    served = topic.served
    for number, cold in ((SEGMENTS_ONLY[33], ONE_EACH), (OBJECT_ONLY[55], ONE_EACH), (BOTH[77], NONE)):
        for expected in (cold, NONE):
            found = served.admin("GET", f"{REST}/messageid/{topic.time_of(number)}")
            assert Position(found["ledgerId"], found["entryId"]) == topic.location(number)
            assert topic.cost() == expected, number


def test_resetting_a_cursor_and_expiring_messages_cost_no_more(topic: SeekableTopic) -> None:
    served = topic.served
    served.admin("PUT", f"{REST}/subscription/s", {"ledgerId": -1, "entryId": -1, "partitionIndex": -1})

    def backlog() -> int:
        return int(served.admin("GET", f"{REST}/stats")["subscriptions"]["s"]["msgBacklog"])

    assert backlog() == 4 * EACH
    topic.cost()
    served.admin("POST", f"{REST}/subscription/s/resetcursor/{topic.time_of(SEGMENTS_ONLY[50])}")
    assert (topic.cost(), backlog()) == (ONE_EACH, 4 * EACH - 50)
    seconds = (int(time.time() * 1000) - topic.time_of(OBJECT_ONLY[30])) // 1000
    served.admin("POST", f"{REST}/subscription/s/expireMessages/{seconds}")
    assert topic.cost() == ONE_EACH
    # Time goes on between the two: with each second an entry more has expired.
    assert 4 * EACH - OBJECT_ONLY[90] <= backlog() <= 4 * EACH - OBJECT_ONLY[30]
