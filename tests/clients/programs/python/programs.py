"""Delayed delivery, table views, Failover subscriptions and exclusive producers with the Python client.

Usage: ``programs.py SERVICE_URL COMMAND TOPIC ARGUMENT...``; prints JSON lines without times and ids.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pulsar

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_MS: Final = 90_000
"""Longer than any delay; a message that is not there by then is lost."""
TICK_MS: Final = 1000
"""A broker may deliver up to one tick before the time asked for."""
FIRST: Final = (("a", "1"), ("b", "2"), ("a", "3"), ("c", "4"), ("c", ""))
SECOND: Final = (("b", "5"), ("d", "6"), ("a", ""), ("e", "7"))
"""A table view holds what was written last for each key; an empty value removes the key."""
LISTENED: Final = {"b", "d", "e"}
"""Keys that the second writes leave with a new value."""


def show(**line: Any) -> None:
    print(json.dumps(line), flush=True)  # noqa: T201 - its output is its result


def now_ms() -> int:
    return int(time.time() * 1000)


def partition(topic: str) -> int:
    _, found, number = topic.rpartition("-partition-")
    return int(number) if found else -1


def subscribe(client: Any, topic: str, subscription: str, kind: Any, name: str = "c") -> Any:
    return client.subscribe(
        topic, subscription, consumer_type=kind, consumer_name=name, initial_position=pulsar.InitialPosition.Earliest
    )


def delayed_send(client: Any, topic: str, *delays: str) -> None:
    subscribe(client, topic, "exclusive", pulsar.ConsumerType.Exclusive).close()
    subscribe(client, topic, "shared", pulsar.ConsumerType.Shared).close()
    producer = client.create_producer(topic)
    for index, delay in enumerate(delays):
        due = now_ms() + int(delay) * 1000
        options: dict[str, Any]
        if delay == "0":
            options = {}
        elif index % 2 == 0:
            options = {"deliver_after": timedelta(seconds=int(delay))}
        else:
            options = {"deliver_at": due}
        producer.send(delay.encode(), properties={"due": str(due)}, **options)
        show(sent=delay)


def receive(client: Any, topic: str, name: str, kind: Any, count: int) -> None:
    consumer = subscribe(client, topic, name, kind)
    for _ in range(count):
        message = consumer.receive(WAIT_MS)
        early = now_ms() + TICK_MS < int(message.properties()["due"])
        line = {"subscription": name, "value": message.data().decode(), "early": early}
        show(**line, redeliveries=message.redelivery_count())
        consumer.acknowledge(message)
    consumer.close()


def delayed_receive(client: Any, topic: str, count: str) -> None:
    receive(client, topic, "shared", pulsar.ConsumerType.Shared, int(count))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    show(reader=[reader.read_next(WAIT_MS).data().decode() for _ in range(int(count))])


def delayed(client: Any, topic: str, *delays: str) -> None:
    delayed_send(client, topic, *delays)
    receive(client, topic, "exclusive", pulsar.ConsumerType.Exclusive, len(delays))
    delayed_receive(client, topic, str(len(delays)))


def table_view(client: Any, topic: str) -> None:
    producer = client.create_producer(topic)

    def put(pairs: tuple[tuple[str, str], ...]) -> None:
        for key, value in pairs:
            producer.send(value.encode(), partition_key=key)

    def entries(view: Any) -> dict[str, str]:
        found = {}
        view.for_each(lambda key, value: found.update({key: value.decode()}))
        return dict(sorted(found.items()))

    put(FIRST)
    view = client.create_table_view(topic)
    show(entries=entries(view), get=view.get("a").decode(), missing=view.get("c"))
    received: list[list[str]] = []
    view.for_each_and_listen(lambda key, value: received.append([key, value.decode()]))
    before = len(received)
    put(SECOND)
    deadline = time.monotonic() + WAIT_MS / 1000
    while not ({key for key, _ in received[before:]} >= LISTENED and "a" not in entries(view)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the view stays at {entries(view)}")
        time.sleep(0.05)
    show(updates=sorted([key, value] for key, value in received[before:] if value))
    show(entries=entries(view))
    view.close()


def failover(client: Any, topic: str, name: str, _priority: str) -> None:
    """Receive until killed; messages whose value begins with "hold" stay unacknowledged."""
    consumer = subscribe(client, topic, "s", pulsar.ConsumerType.Failover, name)
    show(state="subscribed")
    while True:
        message = consumer.receive()
        value = message.data().decode()
        if not value.startswith("hold"):
            consumer.acknowledge(message)
        show(partition=partition(message.topic_name()), value=value)


def exclusive_producer(client: Any, topic: str, name: str, mode: str) -> None:
    modes = pulsar.ProducerAccessMode
    access = modes.WaitForExclusive if mode == "wait" else modes.Exclusive
    show(state="opening")
    try:
        producer = client.create_producer(topic, producer_name=name, access_mode=access)
    except pulsar.PulsarException as error:
        show(state="refused", error=type(error).__name__)
        return
    show(state="open")
    producer.send(name.encode())
    show(state="sent")
    signal.sigwait({signal.SIGINT})
    producer.close()
    show(state="closed")


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "delayed": delayed,
    "delayed-send": delayed_send,
    "delayed-receive": delayed_receive,
    "table-view": table_view,
    "failover": failover,
    "exclusive-producer": exclusive_producer,
}


def main(url: str, command: str, topic: str, *arguments: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # before the client's threads start: they inherit it
    client = pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/stderr"))
    COMMANDS[command](client, topic, *arguments)
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
