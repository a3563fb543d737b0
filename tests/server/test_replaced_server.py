"""Two servers on one metadata tree, each with a home of its own: the second one replaces the first."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest
from tests.support.ledgers import message
from tests.support.raw_client import ErrorAnswer, RawClient, encode_send

from afterglow.admin.app import start_admin
from afterglow.config import BrokerConfig
from afterglow.errors import Fenced
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.metadata.paths import AfterglowPaths
from afterglow.metadata.sqlite import SqliteMetadataStore
from afterglow.server.process import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

CONFIG: Final = BrokerConfig(bind_address="127.0.0.1", broker_service_port=0, web_service_port=0)
TOPIC: Final = "persistent://public/default/t"


def call(server: Server, method: str, path: str, body: object = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(server.admin_url).netloc, timeout=30)
    try:
        connection.request(method, f"/admin/v2/{path}", None if body is None else json.dumps(body))
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    finally:
        connection.close()


@asynccontextmanager
async def two_servers(directory: Path) -> AsyncIterator[tuple[Server, Server]]:
    """The replaced server, with a topic that is open, and its successor."""
    config = replace(CONFIG, metadata_store_url=f"sqlite:{directory / 'metadata.db'}")
    async with AsyncExitStack() as stack:
        first = await Server.start(directory / "first", config, start_admin)
        stack.push_async_callback(first.stop)
        await asyncio.to_thread(produce, first, TOPIC)
        # A successor has the same hot log, on a shared disk or as a copy; here its identity is enough.
        identity = directory / "second" / "hot" / "instance"
        identity.parent.mkdir(parents=True)
        shutil.copy(directory / "first" / "hot" / "instance", identity)
        second = await Server.start(directory / "second", config, start_admin)
        stack.push_async_callback(second.stop)
        yield first, second


def produce(server: Server, topic: str) -> None:
    with RawClient(server.service.service_url) as client:
        client.publish([encode_send(client.open_producer(topic), 0, message(b"x"))])


def test_a_replaced_server_answers_503_to_what_would_change_metadata(tmp_path: Path) -> None:
    changes: tuple[tuple[str, str, object], ...] = (
        ("PUT", "tenants/new", {"allowedClusters": ["standalone"]}),
        ("PUT", "namespaces/public/new", {}),
        ("POST", "namespaces/public/default/retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 5}),
        ("PUT", "namespaces/public/default/offloadThreshold", 77),
        ("PUT", "persistent/public/default/new", None),
        ("PUT", "persistent/public/default/parts/partitions", 2),
        ("POST", "persistent/public/default/t/retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 5}),
        ("DELETE", "persistent/public/default/t", None),
        ("POST", "persistent/public/default/t/terminate", None),
    )

    async def run() -> list[tuple[str, int, Any]]:
        async with two_servers(tmp_path) as (first, _):
            before = tree(tmp_path)
            answers = []
            for method, path, body in changes:
                status, answer = await asyncio.to_thread(call, first, method, path, body)
                answers.append((f"{method} {path}", status, answer))
            assert tree(tmp_path) == before
            status, found = await asyncio.to_thread(call, first, "GET", "tenants")
            assert (status, found) == (200, ["public"])
            return answers

    for what, status, answer in asyncio.run(run()):
        assert status == 503, (what, status, answer)
        assert "another process has taken over" in answer["reason"], (what, answer)


def tree(directory: Path) -> dict[str, tuple[bytes, int]]:
    store = SqliteMetadataStore(directory / "metadata.db", read_only=True)
    found: dict[str, tuple[bytes, int]] = {}

    def walk(path: str) -> None:
        for name in store.children(path or "/"):
            node = store.get(f"{path}/{name}")
            assert node is not None
            found[f"{path}/{name}"] = (node.value, node.version)
            walk(f"{path}/{name}")

    try:
        walk("")
    finally:
        store.close()
    return found


def test_the_successor_changes_what_the_replaced_server_may_not(tmp_path: Path) -> None:
    async def run() -> tuple[int, Any]:
        async with two_servers(tmp_path) as (_, second):
            assert await asyncio.to_thread(call, second, "PUT", "namespaces/public/new", {}) == (204, None)
            return await asyncio.to_thread(call, second, "GET", "namespaces/public")

    assert asyncio.run(run()) == (200, ["public/default", "public/new"])
    (guard,) = (path for path in tree(tmp_path) if path.startswith(f"{AfterglowPaths('standalone').owners}/"))
    assert guard


def test_topics_of_a_replaced_server_refuse_what_needs_metadata(tmp_path: Path) -> None:
    async def run() -> None:
        async with two_servers(tmp_path) as (first, _):
            before = tree(tmp_path)
            with pytest.raises(ErrorAnswer, match="another process has taken over") as caught:
                await asyncio.to_thread(produce, first, "persistent://public/default/other")
            assert caught.value.code == wire.ServiceNotReady
            ledger = first.service.store.opened("public/default/persistent/t")
            assert ledger is not None
            await asyncio.to_thread(produce, first, TOPIC)  # an append does not wait for metadata
            with pytest.raises(Fenced, match="another process has taken over"):
                await first.service.blocking(ledger.roll)
            with pytest.raises(ErrorAnswer, match="another process has taken over") as caught:
                await asyncio.to_thread(produce, first, TOPIC)
            assert caught.value.code == wire.ServiceNotReady
            assert tree(tmp_path) == before

    asyncio.run(run())
