"""Retention and time to live of namespaces and topics, on a real server."""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.support.broker_topics import append
from tests.support.certificates import write_certificate

from afterglow.broker import policy_refresh
from afterglow.broker.service import BrokerService
from afterglow.config import BrokerConfig
from afterglow.format.position import EARLIEST
from afterglow.ledger.retention import Retention
from afterglow.metadata.names import TopicName
from afterglow.server.process import Server

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


TOPIC = TopicName.parse("public/default/t")
CONFIG = BrokerConfig(broker_service_port=0, default_retention_time_in_minutes=-1, default_retention_size_in_mb=-1)


def set_policy(name: str, value: Any) -> Any:
    return lambda old: {**old, name: value}


def test_a_change_of_retention_applies_to_open_topics(tmp_path: Path) -> None:
    async def test() -> None:
        server = await Server.start(tmp_path, CONFIG)
        topic = await server.service.topic(TOPIC, create=True)
        assert topic.ledger.retention == Retention.of(-1, -1)
        policy = {"retentionTimeInMinutes": 3, "retentionSizeInMB": 4}
        await server.service.update_policies(TOPIC.namespace, set_policy("retention_policies", policy))
        assert topic.ledger.retention == Retention.of(3, 4)
        await server.service.unload(TOPIC)
        topic = await server.service.topic(TOPIC, create=False)
        assert topic.ledger.retention == Retention.of(3, 4)
        await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


class DelayedRead:
    """Reads of policies, of which the first returns late."""

    def __init__(self, service: BrokerService, monkeypatch: pytest.MonkeyPatch) -> None:
        self._of = service.policies.of
        self._read, self._arrive = threading.Event(), threading.Event()
        monkeypatch.setattr(service.policies, "of", self._late)

    def _late(self, name: str) -> Any:
        found = self._of(name)
        if not self._read.is_set():
            self._read.set()
            assert self._arrive.wait(30)
        return found

    async def read(self) -> None:
        """Wait until the delayed read has started."""
        assert await asyncio.to_thread(self._read.wait, 30)

    def arrive(self) -> None:
        self._arrive.set()


def keep(minutes: int) -> Any:
    return set_policy("retention_policies", {"retentionTimeInMinutes": minutes, "retentionSizeInMB": -1})


def test_a_change_during_the_opening_of_a_topic_is_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        server = await Server.start(tmp_path, CONFIG)
        late = DelayedRead(server.service, monkeypatch)
        opening = asyncio.create_task(server.service.topic(TOPIC, create=True))
        await late.read()
        await server.service.update_policies(TOPIC.namespace, keep(3))
        late.arrive()
        assert (await opening).ledger.retention == Retention.of(3, -1)
        await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_the_later_of_two_concurrent_changes_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        server = await Server.start(tmp_path, CONFIG)
        topic = await server.service.topic(TOPIC, create=True)
        late = DelayedRead(server.service, monkeypatch)
        first = asyncio.create_task(server.service.update_policies(TOPIC.namespace, keep(3)))
        await late.read()
        await server.service.update_policies(TOPIC.namespace, keep(4))
        late.arrive()
        await first
        assert topic.ledger.retention == Retention.of(4, -1)
        await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_change_reads_all_policies_at_once_and_yields_to_other_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        server = await Server.start(tmp_path, CONFIG)
        service = server.service
        opened = [await service.topic(TOPIC.namespace.topic(f"t{number}"), create=True) for number in range(4)]
        read_topics, reads = type(service).open_topics.__get__, list[Any]()

        def counted(service: BrokerService) -> Any:
            reads.append(read_topics(service))
            return reads[-1]

        monkeypatch.setattr(BrokerService, "open_topics", property(counted))
        monkeypatch.setattr(policy_refresh, "TOPICS_AT_ONCE", 2)
        seen: set[int] = set()

        async def watch() -> None:
            while True:
                seen.add(sum(topic.ledger.retention == Retention.of(3, -1) for topic in opened))
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        await service.update_policies(TOPIC.namespace, keep(3))
        watching.cancel()
        assert len(reads) == 1
        assert seen == {0, 2, 4}
        assert {topic.ledger.retention for topic in opened} == {Retention.of(3, -1)}
        await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_messages_older_than_the_time_to_live_are_acknowledged(tmp_path: Path) -> None:
    async def test() -> None:
        server = await Server.start(tmp_path, CONFIG)
        service = server.service
        topic = await service.topic(TOPIC, create=True)
        cursor = await service.blocking(topic.ledger.cursors.create, "s", EARLIEST)
        positions = await append(topic, 5)
        await service.expire_messages()
        assert cursor.backlog == 5
        await service.update_policies(TOPIC.namespace, set_policy("message_ttl_in_seconds", 1))
        # Broker time is the wall clock's: these entries are younger than a second until it has passed.
        await asyncio.sleep(1.1)
        young = await append(topic, 2)
        await service.expire_messages()
        assert cursor.mark_delete == positions[-1]
        assert cursor.backlog == len(young)
        await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_topic_without_backlog_is_not_searched_for_expired_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        server = await Server.start(tmp_path, CONFIG)
        service = server.service
        topic = await service.topic(TOPIC, create=True)
        cursor = await service.blocking(topic.ledger.cursors.create, "s", EARLIEST)
        (position,) = await append(topic, 1)
        await service.update_policies(TOPIC.namespace, set_policy("message_ttl_in_seconds", 1))
        searched: list[int] = []
        monkeypatch.setattr(topic.ledger.reader, "last_before", searched.append)
        await service.expire_messages()
        assert len(searched) == 1
        cursor.ack_through(position)
        await service.expire_messages()
        assert len(searched) == 1
        await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_topic_with_its_own_retention_trims_ledgers_that_its_namespace_would_keep(tmp_path: Path) -> None:
    async def test() -> None:
        server = await Server.start(tmp_path, CONFIG)
        service, own, other = server.service, TOPIC, TopicName.parse("public/default/other")
        nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        await service.topic(own, create=True)
        await service.update_topic_policies(own, set_policy("retentionPolicies", nothing))
        left = {}
        for name in (own, other):
            topic = await service.topic(name, create=True)
            for _ in range(2):
                await append(topic, 1)
                await service.blocking(topic.ledger.roll)
            await service.blocking(topic.ledger.trim)
            left[name] = len(topic.ledger.ledgers)
        assert left == {own: 1, other: 3}
        await service.update_topic_policies(own, lambda _old: {})
        assert (await service.topic(own, create=False)).ledger.retention == Retention.of(-1, -1)
        await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_policies_of_a_topic_apply_to_its_partitions_and_survive_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        partition = TOPIC.partition(1)
        server = await Server.start(tmp_path, CONFIG)
        service = server.service
        await service.blocking(service.catalog.create_partitioned, TOPIC, 2)
        topic = await service.topic(partition, create=False)
        cursor = await service.blocking(topic.ledger.cursors.create, "s", EARLIEST)
        await append(topic, 3)
        await service.update_topic_policies(TOPIC, set_policy("messageTTLInSeconds", 1))
        assert topic.policy.ttl_duration_default_in_seconds == 1
        await server.stop()
        server = await Server.start(tmp_path, CONFIG)
        topic = await server.service.topic(partition, create=False)
        # Broker time is the wall clock's: these entries are younger than a second until it has passed.
        await asyncio.sleep(1.1)
        await server.service.expire_messages()
        (cursor,) = topic.ledger.cursors.durable.values()
        assert cursor.backlog == 0
        await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_the_oldest_unacknowledged_message_is_dated_by_broker_time(tmp_path: Path) -> None:
    async def test() -> None:
        server = await Server.start(tmp_path, CONFIG)
        service = server.service
        topic = await service.topic(TOPIC, create=True)
        assert await topic.oldest_backlog() is None
        cursor = await service.blocking(topic.ledger.cursors.create, "s", EARLIEST)
        before = service.store.clock.now_ms()
        positions = await append(topic, 3)
        after = service.store.clock.now_ms()
        found = await topic.oldest_backlog()
        assert found is not None
        name, time_ms = found
        assert name == "s"
        assert before <= time_ms <= after  # the publish time of these entries is 1
        cursor.ack_through(positions[-1])
        assert await topic.oldest_backlog() is None
        await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_the_connections_of_one_address_are_limited(tmp_path: Path) -> None:
    async def test() -> None:
        config = BrokerConfig(broker_service_port=0, broker_max_connections_per_ip=2)
        server = await Server.start(tmp_path, config)
        port = int(server.service.service_url.rpartition(":")[2])
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(1), 10) == b""
        assert len(server.service.connections) == 2
        for _, other in [*opened, (reader, writer)]:
            other.close()
        await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_tls_handshakes_count_as_connections_and_end_in_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Handshakes of both ports hold the slots of clients until they time out."""
    certificate, key = write_certificate(tmp_path)

    async def test() -> None:
        config = BrokerConfig(
            broker_service_port=0,
            broker_service_port_tls=0,
            broker_max_connections=3,
            tls_handshake_timeout_seconds=2,
            tls_certificate_file_path=str(certificate),
            tls_key_file_path=str(key),
        )
        server = await Server.start(tmp_path / "home", config)
        plain, secure = (listening.sockets[0].getsockname()[1] for listening in server.service._servers)
        opened = [await asyncio.open_connection("127.0.0.1", port) for port in (plain, secure, secure)]
        for port in (plain, secure):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(1), 1.5) == b""  # before any handshake has ended
            writer.close()
        for reader, _ in opened[1:]:
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(1), 10) == b""
        trusting = ssl.create_default_context(cafile=str(certificate))
        opened.append(await asyncio.open_connection("127.0.0.1", secure, ssl=trusting, server_hostname="localhost"))
        while len(server.service.connections) < 2:  # noqa: ASYNC110 - a client's side of a handshake ends first
            await asyncio.sleep(0.01)
        for _, writer in opened:
            writer.close()
        await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))
    assert 'client refused client=127.0.0.1 reason="brokerMaxConnections is 3"' in caplog.messages
    assert any("failed on brokerServicePortTls: the handshake timed out" in line for line in caplog.messages)
