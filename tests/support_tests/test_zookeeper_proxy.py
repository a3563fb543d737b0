"""The proxy that records writes in ZooKeeper sees every kind of change, and no read."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient
from tests.support.zookeeper import ZooKeeperServer, spark_jars
from tests.support.zookeeper_proxy import Write, ZooKeeperProxy, parse_writes

from afterglow.errors import MissingDependency
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.metadata.zookeeper import ZooKeeperMetadataStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    try:
        with ZooKeeperServer(spark_jars(), tmp_path) as server:
            yield server
    except MissingDependency as reason:
        pytest.skip(str(reason))


def test_every_change_is_recorded_and_no_read(server: ZooKeeperServer) -> None:
    with ZooKeeperProxy(server.hosts) as proxy:
        with closing(ZooKeeperMetadataStore(proxy.hosts)) as store:
            store.get("/x")
            store.children("/")
            store.watch("/x", lambda _path: None)
            assert not proxy.writes
            store.put("/x", b"1", MUST_NOT_EXIST)
            store.put("/x", b"2", 0, guard="/x")
            store.delete("/x", 1)
            store.create_ephemeral("/lease/n-", b"")
        assert [write for write in proxy.writes if write.path != "/lease/n-"] == [
            Write(1, "/x"),
            Write(5, "/x"),
            Write(2, "/x"),
            Write(1, "/lease"),
        ]
        client = KazooClient(proxy.hosts)
        client.start()
        before = len(proxy.writes)
        client.create("/plain", b"1")
        client.set("/plain", b"2")
        client.delete("/plain")
        client.stop()
        client.close()
        assert [write.path for write in proxy.writes[before:]] == ["/plain"] * 3
        assert proxy.connections == 2


def test_an_unknown_request_counts_as_a_write() -> None:
    assert list(parse_writes(77, b"")) == [Write(77, "")]
