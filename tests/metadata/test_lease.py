"""Leases: one process at a time becomes the owner, and a standby takes over after the end of its session."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from afterglow.errors import ConfigError, Fenced, MetadataInUse, MetadataUnavailable
from afterglow.metadata.lease import become_owner, open_lease
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.ownership import take_ownership
from afterglow.metadata.paths import AfterglowPaths
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.metadata.zookeeper import ZooKeeperMetadataStore
from afterglow.metadata.zookeeper_lease import ZooKeeperLease

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.zookeeper import ZooKeeperServer

    from afterglow.metadata.lease import Lease
    from afterglow.metadata.ownership import OwnedMetadataStore

PATHS: Final = AfterglowPaths("east")
SESSION_S: Final = 2.0
LIMIT_S: Final = 60.0
"""For what takes milliseconds, or the session timeout; the machine may be busy."""
HOLD: Final = """
import sys, threading
from afterglow.metadata.address import open_metadata
from afterglow.metadata.lease import become_owner, open_lease
from afterglow.metadata.paths import AfterglowPaths
address, paths = sys.argv[1], AfterglowPaths("east")
store = open_metadata(address, **({"session_timeout_s": 2.0} if address.startswith("zk") else {}))
lease = open_lease(address, store, paths.lease)
become_owner(store, lease, paths.owners, threading.Event(), print)
print("owner", flush=True)
sys.stdin.read()
"""


def no_standby(holder: str) -> None:
    raise AssertionError(f"{holder} holds the lease")


def wait_until(condition: object, what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


# --- a file ---------------------------------------------------------------------------------------------------------


def file_lease(address: str, cluster: str = "east") -> Lease:
    return open_lease(address, MemoryMetadataStore(), AfterglowPaths(cluster).lease)


def acquire(lease: Lease) -> bool:
    return lease.acquire(threading.Event(), no_standby)


@contextmanager
def owner_process(address: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that is the owner until it is killed."""
    command = [sys.executable, "-c", HOLD, address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "owner\n"
            yield process
        finally:
            process.kill()


def test_a_second_process_is_refused_with_the_file_and_the_process(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 'meta.db'}"
    with owner_process(address) as process:
        second = file_lease(address)
        with pytest.raises(MetadataInUse) as refused:
            acquire(second)
        assert f"process {process.pid} on " in str(refused.value)
        assert str(tmp_path / "meta.db.afterglow.east.lease") in str(refused.value)
        holder = second.holder()
        assert holder is not None
        assert holder.startswith(f"process {process.pid} on ")


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 'meta.db'}"
    with owner_process(address) as process:
        process.kill()
        process.wait()
        lease = file_lease(address)
        assert lease.holder() is None
        assert acquire(lease)


def test_a_released_lock_can_be_taken(tmp_path: Path) -> None:
    first, second = file_lease(f"sqlite:{tmp_path / 'a.db'}"), file_lease(f"sqlite:{tmp_path / 'a.db'}")
    assert first.holder() is None
    assert acquire(first)
    assert acquire(first)
    first.release()
    first.release()
    assert acquire(second)
    second.release()


def test_leases_of_two_clusters_in_one_file_are_independent(tmp_path: Path) -> None:
    first, second = (file_lease(f"sqlite:{tmp_path / 'a.db'}", cluster) for cluster in ("east", "west"))
    assert acquire(first)
    assert acquire(second)
    first.release()
    second.release()


def test_two_names_of_a_file_have_one_lease(tmp_path: Path) -> None:
    (tmp_path / "a.db").touch()
    (tmp_path / "b.db").symlink_to(tmp_path / "a.db")
    first = file_lease(f"sqlite:{tmp_path / 'a.db'}")
    assert acquire(first)
    with pytest.raises(MetadataInUse):
        acquire(file_lease(f"sqlite:{tmp_path / 'b.db'}"))
    first.release()


def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(MetadataUnavailable, match="cannot be locked"):
        acquire(file_lease(f"sqlite:{tmp_path / 'none' / 'a.db'}"))


def test_metadata_in_memory_has_no_lease() -> None:
    with pytest.raises(ConfigError, match="ends with its process"):
        open_lease("memory://", MemoryMetadataStore(), PATHS.lease)


# --- ZooKeeper ------------------------------------------------------------------------------------------------------


class Candidate:
    """A process that wants to be the owner, as a thread."""

    def __init__(self, server: ZooKeeperServer, chroot: str) -> None:
        self.hosts = server.hosts
        self.store = ZooKeeperMetadataStore(server.hosts, chroot=chroot, session_timeout_s=SESSION_S)
        self.lease = ZooKeeperLease(self.store, PATHS.lease, f"process of {id(self)}")
        self.stop = threading.Event()
        self.standby = threading.Event()
        self.holders: list[str] = []
        self.owned: OwnedMetadataStore | None = None
        self.fenced: Fenced | None = None
        self.lost = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.owned = become_owner(self.store, self.lease, PATHS.owners, self.stop, self._on_standby)
        if self.owned is not None:
            self.lease.keep(self.owned.guard, self._on_lost)

    def _on_standby(self, holder: str) -> None:
        self.holders.append(holder)
        self.standby.set()

    def _on_lost(self, error: Fenced) -> None:
        self.fenced = error
        self.lost.set()

    def begin(self) -> None:
        self._thread.start()

    def end_wait(self) -> OwnedMetadataStore | None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "it still waits"
        return self.owned

    def become_standby(self) -> None:
        self.begin()
        assert self.standby.wait(LIMIT_S)

    def become_owner(self) -> OwnedMetadataStore:
        self.begin()
        owned = self.end_wait()
        assert owned is not None
        return owned

    def expire_session(self) -> None:
        """End the session as ZooKeeper does: another connection takes it and closes it."""
        client = self.store._client
        second = KazooClient(self.hosts, client_id=client.client_id)
        second.start(LIMIT_S)
        second.stop()
        second.close()

    def close(self) -> None:
        self.stop.set()
        if self._thread.ident is not None:
            self._thread.join(LIMIT_S)
        self.lease.release()
        self.store.close()


@pytest.fixture
def candidates(zookeeper: ZooKeeperServer, chroot: str) -> Iterator[tuple[Candidate, Candidate]]:
    first, second = Candidate(zookeeper, chroot), Candidate(zookeeper, chroot)
    with closing(first), closing(second):
        yield first, second


def test_a_second_process_waits_as_a_standby_that_knows_the_owner(candidates: tuple[Candidate, Candidate]) -> None:
    first, second = candidates
    owned = first.become_owner()
    second.become_standby()
    assert second.holders == [first.lease.holder()] == [f"process of {id(first)}"]
    owned.put("/node", b"owner", MUST_NOT_EXIST)
    assert second.owned is None
    assert len(first.store.children(PATHS.owners)) == 1


def test_a_standby_takes_over_when_the_owner_releases_its_lease(candidates: tuple[Candidate, Candidate]) -> None:
    first, second = candidates
    owned = first.become_owner()
    second.become_standby()
    first.lease.release()
    taken = second.end_wait()
    assert taken is not None
    with pytest.raises(Fenced):
        owned.put("/node", b"zombie", MUST_NOT_EXIST)
    taken.put("/node", b"owner", MUST_NOT_EXIST)


def test_a_standby_takes_over_after_a_kill_once_the_session_has_ended(zookeeper: ZooKeeperServer, chroot: str) -> None:
    address = f"zk://{zookeeper.hosts}{chroot}"
    with owner_process(address) as process, closing(Candidate(zookeeper, chroot)) as second:
        second.become_standby()
        process.kill()
        begin = time.monotonic()
        assert second.end_wait() is not None
        assert time.monotonic() - begin < SESSION_S + 20


def test_the_end_of_the_wait_leaves_no_node(candidates: tuple[Candidate, Candidate]) -> None:
    first, second = candidates
    first.become_owner()
    second.become_standby()
    second.stop.set()
    assert second.end_wait() is None
    second.lease.release()
    assert len(first.store.children(PATHS.lease)) == 1


def test_an_owner_whose_session_ends_is_fenced_by_the_standby(candidates: tuple[Candidate, Candidate]) -> None:
    first, second = candidates
    owned = first.become_owner()
    second.become_standby()
    first.expire_session()
    assert second.end_wait() is not None
    assert first.lost.wait(LIMIT_S)
    assert "another process has taken over" in str(first.fenced)
    with pytest.raises(Fenced):
        owned.put("/node", b"zombie", MUST_NOT_EXIST)


def test_an_owner_whose_session_ends_stays_the_owner_if_there_is_no_standby(
    candidates: tuple[Candidate, Candidate],
) -> None:
    first, second = candidates
    owned = first.become_owner()
    before = first.lease.node
    first.expire_session()
    wait_until(lambda: first.lease.node != before, "the lease was not created anew")
    owned.put("/node", b"owner", MUST_NOT_EXIST)
    second.become_standby()
    assert not first.lost.is_set()


def test_a_standby_whose_session_ends_waits_on(candidates: tuple[Candidate, Candidate]) -> None:
    first, second = candidates
    first.become_owner()
    second.become_standby()
    second.expire_session()
    first.lease.release()
    assert second.end_wait() is not None


def test_a_process_that_lost_its_lease_takes_no_ownership(candidates: tuple[Candidate, Candidate]) -> None:
    """It would fence the process that holds the lease now."""
    first, second = candidates
    assert first.lease.acquire(first.stop, no_standby)
    lost = first.lease.node
    first.lease.release()
    owned = second.become_owner()
    with pytest.raises(Fenced):
        take_ownership(first.store, PATHS.owners, uuid4(), lease=lost)
    owned.put("/node", b"owner", MUST_NOT_EXIST)
    assert first.store.children(PATHS.owners) == (owned.guard.rpartition("/")[2],)
