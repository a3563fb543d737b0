from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pulsar

from afterglow.format.entry import encode_entry
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.admin.conftest import Admin

NAMESPACE = "persistent/public/default"
TOPIC = f"{NAMESPACE}/t"
SUBSCRIPTION = f"{TOPIC}/subscription/s"
BY_PUBLISH_TIME: dict[str, Any] = {"broker_entry_metadata_interceptors": ()}
"""Messages are then as old as their producer says."""


def backlog(admin: Admin, subscription: str = "s", topic: str = TOPIC) -> int:
    return int(admin.get(f"{topic}/stats")["subscriptions"][subscription]["msgBacklog"])


def write(admin: Admin, count: int, time_ms: int, topic: str = "t") -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=time_ms)
    for _ in range(count):
        admin.write(encode_entry(metadata, b"x"), f"public/default/persistent/{topic}")


def test_old_messages_expire_for_one_subscription_or_for_all(start: Callable[..., Admin]) -> None:
    admin = start(**BY_PUBLISH_TIME)
    for name in "sab":
        admin.do("PUT", f"{TOPIC}/subscription/{name}")
    assert "backlog" in admin.refused(409, "POST", f"{SUBSCRIPTION}/expireMessages/1")
    now_ms = int(time.time() * 1000)
    write(admin, 3, now_ms - 7_200_000)
    write(admin, 1, now_ms + 7_200_000)
    admin.do("POST", f"{SUBSCRIPTION}/expireMessages/10800")
    assert backlog(admin) == 4
    admin.do("POST", f"{SUBSCRIPTION}/expireMessages/3600")
    assert (backlog(admin), backlog(admin, "a")) == (1, 4)
    admin.do("POST", f"{TOPIC}/all_subscription/expireMessages/3600")
    assert (backlog(admin, "a"), backlog(admin, "b")) == (1, 1)
    for wrong, status in (("0", 412), ("-1", 412), ("soon", 400)):
        admin.refused(status, "POST", f"{SUBSCRIPTION}/expireMessages/{wrong}")
        admin.refused(status, "POST", f"{TOPIC}/all_subscription/expireMessages/{wrong}")
    admin.refused(404, "POST", f"{TOPIC}/subscription/absent/expireMessages/1")
    admin.do("POST", f"{SUBSCRIPTION}/skip_all")
    admin.refused(409, "POST", f"{SUBSCRIPTION}/expireMessages/1")


def test_messages_expire_on_all_partitions(start: Callable[..., Admin]) -> None:
    admin = start(**BY_PUBLISH_TIME)
    admin.do("PUT", f"{NAMESPACE}/p/partitions", 2)
    admin.do("PUT", f"{NAMESPACE}/p/subscription/s")
    for index in range(2):
        write(admin, 2, 1, f"p-partition-{index}")
    admin.do("POST", f"{NAMESPACE}/p/subscription/s/expireMessages/1")
    assert [backlog(admin, topic=f"{NAMESPACE}/p-partition-{index}") for index in range(2)] == [0, 0]


def analyzed(admin: Admin, body: object = None) -> dict[str, Any]:
    answer = admin.call("POST", f"{SUBSCRIPTION}/analyzeBacklog", body)
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json
    return found


def test_a_backlog_is_analyzed_and_stays(start: Callable[..., Admin]) -> None:
    admin = start(subscription_backlog_scan_max_entries=3)
    admin.do("PUT", SUBSCRIPTION)
    empty = analyzed(admin)
    assert (empty["entries"], empty["messages"], empty["aborted"]) == (0, 0, False)
    assert "firstMessageId" not in empty
    client = pulsar.Client(admin.service.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=10_000)
    for number in range(4):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    single = client.create_producer("t", batching_enabled=False)
    sent = [single.send(b"x") for _ in range(2)]
    client.close()
    whole = analyzed(admin)
    ledger = sent[0].ledger_id()
    assert (whole["entries"], whole["messages"], whole["aborted"]) == (3, 6, False)
    assert (whole["firstMessageId"], whole["lastMessageId"]) == (f"{ledger}:0", f"{ledger}:2")
    assert whole["filterAcceptedMessages"] == 6
    assert analyzed(admin, {"ledgerId": ledger, "entryId": 1})["messages"] == 2
    admin.write_entries(1)
    cut_short = analyzed(admin)
    assert (cut_short["entries"], cut_short["aborted"]) == (3, True)
    assert backlog(admin) == 4
    admin.do("PUT", f"{NAMESPACE}/p/partitions", 1)
    admin.do("PUT", f"{NAMESPACE}/p/subscription/s")
    admin.refused(405, "POST", f"{NAMESPACE}/p/subscription/s/analyzeBacklog")
