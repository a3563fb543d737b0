from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from afterglow.config import BrokerConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.admin.conftest import Admin

NAMESPACE = "persistent/public/default"
TOPIC = f"{NAMESPACE}/t"

# Fields and types that Pulsar 4.0's client reads; a float field also takes a whole number, never the reverse.
TOPIC_FIELDS = {
    float: "msgRateIn msgThroughputIn msgRateOut msgThroughputOut averageMsgSize",
    int: "bytesInCounter msgInCounter systemTopicBytesInCounter bytesOutCounter msgOutCounter bytesOutInternalCounter "
    "storageSize backlogSize backlogQuotaLimitSize backlogQuotaLimitTime oldestBacklogMessageAgeSeconds "
    "publishRateLimitedTimes earliestMsgPublishTimeInBacklogs offloadedStorageSize lastOffloadLedgerId "
    "lastOffloadSuccessTimeStamp lastOffloadFailureTimeStamp ongoingTxnCount abortedTxnCount committedTxnCount "
    "waitingPublishers nonContiguousDeletedMessagesRanges nonContiguousDeletedMessagesRangesSerializedSize "
    "delayedMessageIndexSizeInBytes topicCreationTimeStamp lastPublishTimeStamp",
    bool: "msgChunkPublished",
    str: "deduplicationStatus ownerBroker",
    list: "publishers",
    dict: "subscriptions replication compaction",
}
PUBLISHER_FIELDS = {
    float: "msgRateIn msgThroughputIn averageMsgSize chunkedMessageRate",
    int: "producerId",
    bool: "supportsPartialProducer",
    str: "accessMode producerName address clientVersion",
    dict: "metadata",
}
SUBSCRIPTION_FIELDS = {
    float: "msgRateOut msgThroughputOut msgRateRedeliver messageAckRate msgRateExpired",
    int: "bytesOutCounter msgOutCounter chunkedMessageRate msgBacklog backlogSize earliestMsgPublishTimeInBacklog "
    "msgBacklogNoDelayed msgDelayed msgInReplay unackedMessages totalMsgExpired lastExpireTimestamp "
    "lastConsumedFlowTimestamp lastConsumedTimestamp lastAckedTimestamp lastMarkDeleteAdvancedTimestamp "
    "nonContiguousDeletedMessagesRanges nonContiguousDeletedMessagesRangesSerializedSize "
    "delayedMessageIndexSizeInBytes filterProcessedMsgCount filterAcceptedMsgCount filterRejectedMsgCount "
    "filterRescheduledMsgCount",
    bool: "blockedSubscriptionOnUnackedMsgs isDurable isReplicated allowOutOfOrderDelivery",
    str: "type",
    list: "consumers",
    dict: "consumersAfterMarkDeletePosition subscriptionProperties",
}
CONSUMER_FIELDS = {
    float: "msgRateOut msgThroughputOut msgRateRedeliver messageAckRate chunkedMessageRate",
    int: "bytesOutCounter msgOutCounter availablePermits unackedMessages avgMessagesPerEntry lastAckedTimestamp "
    "lastConsumedTimestamp lastConsumedFlowTimestamp",
    bool: "blockedConsumerOnUnackedMsgs",
    str: "consumerName address clientVersion",
    dict: "metadata",
}
INTERNAL_FIELDS = {
    int: "entriesAddedCounter numberOfEntries totalSize currentLedgerEntries currentLedgerSize waitingCursorsCount "
    "pendingAddEntriesCount",
    str: "lastLedgerCreatedTimestamp lastConfirmedEntry state",
    list: "ledgers schemaLedgers",
    dict: "cursors compactedLedger properties",
}
CURSOR_FIELDS = {
    int: "pendingReadOps messagesConsumedCounter cursorLedger cursorLedgerLastEntry "
    "numberOfEntriesSinceFirstNotAckedMessage totalNonContiguousDeletedMessagesRange",
    str: "markDeletePosition readPosition individuallyDeletedMessages lastLedgerSwitchTimestamp state",
    bool: "waitingReadOp active subscriptionHavePendingRead subscriptionHavePendingReplayRead",
    dict: "properties",
}


def check_types(found: dict[str, Any], fields: dict[type, str]) -> None:
    for kind, names in fields.items():
        for name in names.split():
            assert type(found[name]) is kind, (name, found[name])


@pytest.fixture
def client(admin: Admin) -> Iterator[pulsar.Client]:
    client = pulsar.Client(admin.service.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def test_every_field_that_clients_read_is_present(admin: Admin, client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
    client.create_producer("t").send(b"x")
    consumer.receive(10_000)
    stats = admin.get(f"{TOPIC}/stats?getPreciseBacklog=false&subscriptionBacklogSize=true&authoritative=false")
    check_types(stats, TOPIC_FIELDS)
    check_types(stats["publishers"][0], PUBLISHER_FIELDS)
    check_types(stats["subscriptions"]["s"], SUBSCRIPTION_FIELDS)
    check_types(stats["subscriptions"]["s"]["consumers"][0], CONSUMER_FIELDS)
    assert set(stats["compaction"].values()) == {0}
    internal = admin.get(f"{TOPIC}/internalStats?metadata=false")
    check_types(internal, INTERNAL_FIELDS)
    check_types(internal["cursors"]["s"], CURSOR_FIELDS)


def test_counters_have_the_right_values(admin: Admin, client: pulsar.Client) -> None:
    producer = client.create_producer("t", producer_name="p")
    consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared, consumer_name="c")
    for _ in range(3):
        producer.send(b"x" * 100)
    received = [consumer.receive(10_000) for _ in range(3)]
    consumer.acknowledge(received[1])
    consumer.acknowledge(received[2])
    while (stats := admin.get(f"{TOPIC}/stats"))["subscriptions"]["s"]["msgBacklog"] != 1:
        pass
    subscription = stats["subscriptions"]["s"]
    (publisher,) = stats["publishers"]
    (connected,) = subscription["consumers"]
    assert stats["msgInCounter"] == stats["msgOutCounter"] == connected["msgOutCounter"] == 3
    assert stats["storageSize"] > 300
    assert 0 < stats["backlogSize"] == subscription["backlogSize"] <= stats["storageSize"] // 3 + 1
    assert stats["nonContiguousDeletedMessagesRanges"] == 1
    assert publisher["producerName"] == "p"
    assert publisher["averageMsgSize"] == stats["averageMsgSize"] > 100
    assert subscription["type"] == "Shared"
    assert "activeConsumerName" not in subscription
    assert connected["consumerName"] == "c"
    assert connected["unackedMessages"] == subscription["unackedMessages"] == 1
    assert stats["ownerBroker"] == f"127.0.0.1:{admin.port}"


def test_connected_clients_are_listed(admin: Admin, client: pulsar.Client) -> None:
    begun = datetime.now(UTC).replace(microsecond=0)
    producer = client.create_producer("t", properties={"of": "p"})
    consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared, properties={"of": "c"})
    producer.send(b"x")
    consumer.acknowledge(consumer.receive(10_000))
    stats = admin.get(f"{TOPIC}/stats?subscriptionBacklogSize=false")
    subscription = stats["subscriptions"]["s"]
    (publisher,), (connected,) = stats["publishers"], subscription["consumers"]
    for client_stats, name in ((publisher, "p"), (connected, "c")):
        assert client_stats["metadata"] == {"of": name}
        assert re.fullmatch(r"/127\.0\.0\.1:\d+", client_stats["address"])
        assert begun <= datetime.fromisoformat(client_stats["connectedSince"]) <= datetime.now(UTC)
    assert connected["avgMessagesPerEntry"] == 1
    assert subscription["backlogSize"] == -1
    assert admin.get(f"{TOPIC}/internalStats")["cursors"]["s"]["active"] is True
    consumer.close()
    assert admin.get(f"{TOPIC}/stats")["subscriptions"]["s"]["type"] == "Shared"
    assert admin.get(f"{TOPIC}/internalStats")["cursors"]["s"]["active"] is False


def test_the_type_of_an_unused_subscription_is_none(admin: Admin) -> None:
    admin.do("PUT", TOPIC)
    admin.do("PUT", f"{TOPIC}/subscription/s", {"ledgerId": -1, "entryId": -1, "partitionIndex": -1})
    assert admin.get(f"{TOPIC}/stats")["subscriptions"]["s"]["type"] == "None"


def test_rates_and_times_are_reported(admin: Admin, client: pulsar.Client) -> None:
    begun = int(time.time() * 1000)
    consumer = client.subscribe("t", "s")
    producer = client.create_producer("t", batching_enabled=False)
    for _ in range(3):
        producer.send(bytes(100))
    for _ in range(3):
        consumer.acknowledge(consumer.receive(10_000))
    while (stats := admin.get(f"{TOPIC}/stats"))["subscriptions"]["s"]["msgBacklog"]:
        pass
    ended = int(time.time() * 1000)
    subscription = stats["subscriptions"]["s"]
    (publisher,), (connected,) = stats["publishers"], subscription["consumers"]
    for rated in (stats, publisher):
        assert rated["msgRateIn"] > 0
        assert rated["msgThroughputIn"] == pytest.approx(rated["averageMsgSize"] * rated["msgRateIn"])
    for rated in (stats, subscription, connected):
        assert rated["msgThroughputOut"] > 100 * rated["msgRateOut"] > 0
    for name in ("lastConsumedFlowTimestamp", "lastConsumedTimestamp", "lastAckedTimestamp"):
        assert begun <= connected[name] == subscription[name] <= ended
    assert begun <= connected["firstMessagesSentTimestamp"] <= connected["lastConsumedTimestamp"]
    assert subscription["lastMarkDeleteAdvancedTimestamp"] == subscription["lastAckedTimestamp"]
    assert begun <= stats["lastPublishTimeStamp"] <= ended
    assert connected["lastAckedTime"].endswith("Z")
    assert admin.get(f"{TOPIC}/internalStats")["entriesAddedCounter"] == 3
    for _ in range(2):  # two periods in which nothing passes
        admin.run(admin.service.sample_rates())
    idle = admin.get(f"{TOPIC}/stats")
    assert idle["msgRateIn"] == idle["averageMsgSize"] == idle["msgRateOut"] == 0
    assert idle["publishers"][0]["msgRateIn"] == idle["subscriptions"]["s"]["msgRateOut"] == 0
    assert idle["msgInCounter"] == 3
    consumer.close()
    gone = admin.get(f"{TOPIC}/stats")["subscriptions"]["s"]
    assert gone["lastConsumedTimestamp"] == subscription["lastConsumedTimestamp"]


def test_statistics_obey_their_parameters(admin: Admin, client: pulsar.Client) -> None:
    begun = int(time.time() * 1000)
    client.subscribe("t", "s")
    client.create_producer("t").send(b"x")
    admin.do("PUT", f"{TOPIC}/subscription/done")
    less = admin.get(f"{TOPIC}/stats?excludePublishers=true&excludeConsumers=true")
    assert less["publishers"] == less["subscriptions"]["s"]["consumers"] == []
    more = admin.get(f"{TOPIC}/stats?getEarliestTimeInBacklog=true")
    assert begun <= more["earliestMsgPublishTimeInBacklogs"] <= int(time.time() * 1000)
    first_unacked_ms = {name: row["earliestMsgPublishTimeInBacklog"] for name, row in more["subscriptions"].items()}
    assert first_unacked_ms == {"s": more["earliestMsgPublishTimeInBacklogs"], "done": 0}
    admin.refused(400, "GET", f"{TOPIC}/stats?excludePublishers=perhaps")


def test_statistics_of_a_topic_create_none(admin: Admin) -> None:
    admin.do("PUT", f"{NAMESPACE}/p/partitions", 2)
    admin.do("DELETE", f"{NAMESPACE}/p-partition-0")
    before = admin.state()
    for operation in ("stats", "internalStats", "internal-info", "lastMessageId", "subscriptions"):
        admin.refused(404, "GET", f"{TOPIC}/{operation}")
        admin.refused(404, "GET", f"{NAMESPACE}/p-partition-0/{operation}")
    admin.refused(404, "GET", f"{TOPIC}/partitioned-stats")
    admin.get(f"{NAMESPACE}/p/subscriptions")
    assert set(admin.state()) == set(before)


def test_partitions_are_summed(admin: Admin, client: pulsar.Client) -> None:
    admin.do("PUT", f"{NAMESPACE}/p/partitions", 3)
    admin.do("PUT", f"{NAMESPACE}/p/subscription/s")
    admin.do("PUT", f"{NAMESPACE}/p-partition-2/subscription/only-here")
    for index in (0, 0, 1):
        client.create_producer(f"p-partition-{index}").send(b"x")
    stats = admin.get(f"{NAMESPACE}/p/partitioned-stats")
    check_types({**stats}, {kind: names for kind, names in TOPIC_FIELDS.items() if kind is not str})
    assert stats["metadata"]["partitions"] == 3
    assert stats["subscriptions"]["s"]["msgBacklog"] == stats["msgInCounter"] == 3
    assert set(stats["subscriptions"]) == {"s", "only-here"}
    assert len(stats["publishers"]) == 3
    assert stats["partitions"]["persistent://public/default/p-partition-0"]["msgInCounter"] == 2
    assert stats["storageSize"] == sum(part["storageSize"] for part in stats["partitions"].values())
    assert admin.get(f"{NAMESPACE}/p/partitioned-stats?perPartition=false")["partitions"] == {}
    internal = admin.get(f"{NAMESPACE}/p/partitioned-internalStats")["partitions"]
    assert [internal[name]["numberOfEntries"] for name in sorted(internal)] == [2, 1, 0]
    admin.do("PUT", TOPIC)
    admin.refused(404, "GET", f"{TOPIC}/partitioned-stats")


def test_the_open_ledger_has_its_own_fields(start: Callable[..., Admin]) -> None:
    admin = start(
        managed_ledger_max_entries_per_ledger=2,
        managed_ledger_min_ledger_rollover_time_minutes=0,
        default_retention_time_in_minutes=-1,
        default_retention_size_in_mb=-1,
    )
    client = pulsar.Client(admin.service.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer("t", batching_enabled=False)
    sent = 0
    while (
        len((stats := admin.get(f"{TOPIC}/internalStats"))["ledgers"]) < 3
    ):  # a full one takes more until it is closed
        producer.send(b"x")
        sent += 1
    client.close()
    while not all(row["entries"] for row in stats["ledgers"][:-1]):
        stats = admin.get(f"{TOPIC}/internalStats")  # the end of a ledger is recorded soon after the next has begun
    listed = stats["ledgers"]
    assert stats["numberOfEntries"] == sent == sum(row["entries"] for row in listed) + stats["currentLedgerEntries"]
    assert stats["totalSize"] == sum(row["size"] for row in listed) + stats["currentLedgerSize"]
    assert (listed[-1]["entries"], listed[-1]["size"]) == (0, 0)
    assert stats["state"] == "LedgerOpened"
    admin.do("PUT", f"{TOPIC}/unload")
    stats = admin.get(f"{TOPIC}/internalStats")
    assert stats["currentLedgerSize"] == stats["ledgers"][-1]["size"]
    assert sum(row["size"] for row in stats["ledgers"]) == stats["totalSize"]
    admin.call("POST", f"{TOPIC}/terminate")
    assert admin.get(f"{TOPIC}/internalStats")["state"] == "Terminated"


def test_metadata_is_shown(admin: Admin, client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer("t", batching_enabled=False)
    sent = [producer.send(b"x") for _ in range(3)]
    received = [consumer.receive(10_000) for _ in range(3)]
    consumer.acknowledge(received[1])
    while admin.get(f"{TOPIC}/stats")["subscriptions"]["s"]["msgBacklog"] != 2:
        pass
    info = admin.get(f"{TOPIC}/internal-info")
    ledger_id = sent[0].ledger_id()
    assert info["ledgers"] == [{"ledgerId": ledger_id, "isOffloaded": False}]
    assert info["version"] > 0
    (acked,) = info["cursors"]["s"]["individualDeletedMessages"]
    assert acked == {"from": {"ledgerId": ledger_id, "entryId": 0}, "to": {"ledgerId": ledger_id, "entryId": 1}}
    internal = admin.get(f"{TOPIC}/internalStats")["cursors"]["s"]
    assert internal["markDeletePosition"] == "{ledgerId}:{entryId}".format(**info["cursors"]["s"]["markDelete"])
    assert internal["numberOfEntriesSinceFirstNotAckedMessage"] == 3
    assert internal["individuallyDeletedMessages"] == f"[({ledger_id}:0..{ledger_id}:1]]"
    admin.call("POST", f"{TOPIC}/terminate")
    info = admin.get(f"{TOPIC}/internal-info")
    assert info["terminatedPosition"] == {"ledgerId": ledger_id, "entryId": 2}
    assert (info["ledgers"][0]["entries"], info["ledgers"][0]["isOffloaded"]) == (3, False)
    admin.do("PUT", f"{NAMESPACE}/p/partitions", 2)
    assert len(admin.get(f"{NAMESPACE}/p/internal-info")["partitions"]) == 2


def test_counters_stay_after_clients_disconnect(admin: Admin, client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s")
    for _ in range(2):
        producer = client.create_producer("t")
        producer.send(b"x" * 100)
        producer.close()
    message = [consumer.receive(10_000) for _ in range(2)][-1]
    consumer.acknowledge_cumulative(message)
    consumer.close()
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    for _ in range(2):
        reader.read_next(10_000)
    reader.close()
    while len((stats := admin.get(f"{TOPIC}/stats"))["subscriptions"]) > 1:
        pass
    assert stats["msgInCounter"] == stats["subscriptions"]["s"]["msgOutCounter"] == 2
    assert stats["msgOutCounter"] == 4
    assert stats["bytesOutCounter"] == 2 * stats["bytesInCounter"] == 2 * stats["subscriptions"]["s"]["bytesOutCounter"]
    assert stats["averageMsgSize"] > 100
    consumer = client.subscribe("t", "s")
    consumer.unsubscribe()
    assert admin.get(f"{TOPIC}/stats")["msgOutCounter"] == 4


def test_settings_are_shown_without_secrets(start: Callable[..., Admin]) -> None:
    admin = start(token_secret_key="c2VjcmV0LXNlY3JldA==")
    shown = admin.get("brokers/configuration/runtime")
    assert shown["clusterName"] == "standalone"
    assert shown["brokerServicePort"] == "6650"
    assert "c2VjcmV0" not in str(shown)
    assert len(shown) == len(list(BrokerConfig().rows()))
    assert admin.get("brokers/configuration") == []
    assert admin.get("brokers/configuration/values") == {}


def test_a_healthy_broker_answers_ok(admin: Admin) -> None:
    for path in ("brokers/health", "brokers/ready"):
        answer = admin.call("GET", path)
        assert (answer.status, answer.body) == (200, b"ok")
    assert admin.call("GET", "/status.html").body == b"OK"
    assert admin.get("brokers") == admin.get("brokers/standalone") == [f"127.0.0.1:{admin.port}"]
    assert admin.get("brokers/leaderBroker")["serviceUrl"] == f"http://127.0.0.1:{admin.port}"
    assert admin.call("GET", "brokers/version").body == b"4.0.8"
    admin.refused(404, "GET", "brokers/mars")
