from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from afterglow.config import parse_conf
from afterglow.errors import ConfigError, InvalidName, MetadataUnavailable
from afterglow.metadata.address import _with_port, open_metadata
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.sqlite import SqliteMetadataStore
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.metadata.zookeeper import ZooKeeperMetadataStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.zookeeper import ZooKeeperServer


def test_memory_is_shared_by_name() -> None:
    name = "test_memory_is_shared_by_name"
    with closing(open_metadata(f"memory://{name}")) as first, closing(open_metadata(f"memory://{name}")) as second:
        assert isinstance(first, MemoryMetadataStore)
        first.put("/node", b"", MUST_NOT_EXIST)
        assert second.get("/node") is not None


def test_memory_without_a_name_is_private() -> None:
    with closing(open_metadata("memory://")) as first, closing(open_metadata("memory://")) as second:
        first.put("/node", b"", MUST_NOT_EXIST)
        assert second.get("/node") is None


@pytest.mark.parametrize("form", ["sqlite:{path}", "sqlite://{path}"])
def test_sqlite_takes_a_path(tmp_path: Path, form: str) -> None:
    path = tmp_path / "metadata.db"
    with closing(open_metadata(form.format(path=path), busy_timeout_s=1.0)) as store:
        assert isinstance(store, SqliteMetadataStore)
        assert path.exists()


def test_sqlite_takes_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(open_metadata("sqlite:metadata.db")):
        assert (tmp_path / "metadata.db").exists()


@pytest.mark.parametrize("prefix", ["zk://", "zk:"])
def test_zookeeper_takes_hosts_and_a_chroot(zookeeper: ZooKeeperServer, chroot: str, prefix: str) -> None:
    address = f"{prefix}{zookeeper.hosts},{zookeeper.hosts}"
    with closing(open_metadata(f"{address}{chroot}/")) as store, closing(open_metadata(address)) as root:
        store.put("/node", b"x", MUST_NOT_EXIST)
        node = root.get(f"{chroot}/node")
        assert node is not None
        assert node.value == b"x"


@pytest.mark.parametrize(
    ("host", "full"), [("h", "h:2181"), ("h:1", "h:1"), ("[::1]", "[::1]:2181"), ("[::1]:1", "[::1]:1")]
)
def test_a_zookeeper_host_without_a_port_means_2181(host: str, full: str) -> None:
    assert _with_port("zk://…", host) == full


@pytest.mark.parametrize(
    ("address", "near"),
    [
        ("sqllite:x.db", "sqlite"),
        ("zookeeper://h", "zk"),
        ("mem://", "memory"),
        ("", ""),
        ("x.db", ""),
        ("Memory://", ""),
    ],
)
def test_an_unknown_scheme_is_refused_with_the_nearest_known(address: str, near: str) -> None:
    with pytest.raises(ConfigError, match=rf"did you mean '{near}.*memory://NAME, sqlite:PATH or zk://"):
        open_metadata(address)


@pytest.mark.parametrize(
    "address",
    [
        "memory:name",
        "sqlite:",
        "sqlite://",
        "sqlite://host",
        "zk://",
        "zk://a b",
        "zk://h:x",
        "zk://h,,g",
        "zk://h:1:2",
    ],
)
def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError):
        open_metadata(address)


def test_a_malformed_chroot_is_refused_before_connecting() -> None:
    with pytest.raises(InvalidName):
        open_metadata("zk://127.0.0.1:1/a/../b")


def test_the_timeouts_of_zookeeper_come_from_the_settings(
    zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse_conf("metadataStoreSessionTimeoutMillis=7000\nmetadataStoreOperationTimeoutSeconds=3")
    with closing(open_metadata(f"zk:{zookeeper.hosts}", config)) as store:
        assert isinstance(store, ZooKeeperMetadataStore)
        assert store._client._session_timeout == 7000  # negotiated with the server
        waits: list[float] = []

        def wait(timeout_s: float) -> bool:
            waits.append(timeout_s)
            return False

        monkeypatch.setattr(store._connected, "wait", wait)
        with pytest.raises(MetadataUnavailable, match=r"within 3 s; .* metadataStoreOperationTimeoutSeconds"):
            store.get("/node")
    assert waits == [pytest.approx(3, abs=0.5)]


def test_a_zookeeper_server_that_does_not_answer_is_given_up_after_the_operation_timeout() -> None:
    config = parse_conf("metadataStoreOperationTimeoutSeconds=1")
    with pytest.raises(MetadataUnavailable, match=r"127\.0\.0\.1:1 within 1 s; .*metadataStoreOperationTimeoutSeconds"):
        open_metadata("zk://127.0.0.1:1", config)


def test_the_wait_for_a_locked_sqlite_file_comes_from_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    config = parse_conf("metadataStoreOperationTimeoutSeconds=1")
    with closing(open_metadata(f"sqlite:{path}", config)) as store, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(MetadataUnavailable, match="metadataStoreOperationTimeoutSeconds"):
            store.put("/node", b"", MUST_NOT_EXIST)


@pytest.mark.parametrize("address", ["memory://", "sqlite:unused.db", "zk://127.0.0.1:1"])
def test_an_unknown_option_is_refused_with_the_nearest_known(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no option 'max_value_byte'; did you mean 'max_value_bytes'"):
        open_metadata(address, max_value_byte=1)
    assert not list(tmp_path.iterdir())
