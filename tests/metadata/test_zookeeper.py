from __future__ import annotations

import queue
import struct
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.metadata import MetadataStoreContract

from afterglow.errors import (
    CommitFailed,
    CommitUnknown,
    Fenced,
    MetadataError,
    MetadataUnavailable,
    MissingDependency,
    VersionConflict,
)
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.metadata.zookeeper import ZooKeeperMetadataStore, _is_refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.zookeeper import ZooKeeperServer

    from afterglow.metadata.store import MetadataStore

TIMEOUT_S = 20.0


class TestZooKeeperContract(MetadataStoreContract):
    @pytest.fixture
    def reopen(self, zookeeper: ZooKeeperServer, chroot: str) -> Callable[[], MetadataStore]:
        return lambda: ZooKeeperMetadataStore(zookeeper.hosts, chroot=chroot)


def open_store(server: ZooKeeperServer, **options: Any) -> ZooKeeperMetadataStore:
    # A short session, because kazoo waits that long for a server that took its connection and then forgot it while
    # starting.
    return ZooKeeperMetadataStore(server.hosts, **{"session_timeout_s": 2.0, **options})


def eventually_get(store: MetadataStore, path: str) -> bytes | None:
    """Read until the connection is back; what is read then is decisive."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            node = store.get(path)
        except MetadataUnavailable:
            assert time.monotonic() < deadline, "the connection did not come back"
        else:
            return None if node is None else node.value


def test_a_chroot_is_made_by_the_first_put_and_not_by_reading(zookeeper: ZooKeeperServer, chroot: str) -> None:
    with closing(open_store(zookeeper)) as root, closing(open_store(zookeeper, chroot=f"{chroot}/deep")) as store:
        assert store.get("/node") is None
        assert store.children("/") == ()
        assert root.get(chroot) is None
        store.put("/node", b"x", MUST_NOT_EXIST)
        node = root.get(f"{chroot}/deep/node")
        assert node is not None
        assert node.value == b"x"


def test_zookeepers_own_node_is_not_listed(own_zookeeper: ZooKeeperServer) -> None:
    with closing(open_store(own_zookeeper)) as store:
        store.put("/node", b"", MUST_NOT_EXIST)
        assert store.children("/") == ("node",)


def test_a_server_that_is_not_there_is_named_with_the_setting(zookeeper: ZooKeeperServer) -> None:
    with pytest.raises(MetadataUnavailable, match=r"127\.0\.0\.1:1 .*metadataStoreOperationTimeoutSeconds"):
        ZooKeeperMetadataStore("127.0.0.1:1", operation_timeout_s=0.2)


@pytest.mark.parametrize("guard", [None, "/guard"])
@pytest.mark.parametrize("change", ["create", "set", "delete"])
def test_a_change_that_is_sent_and_not_answered_is_unknown_and_a_read_settles_it(
    own_zookeeper: ZooKeeperServer, change: str, guard: str | None
) -> None:
    changes: dict[str, Callable[[MetadataStore], object]] = {
        "create": lambda store: store.put("/new", b"1", MUST_NOT_EXIST, guard=guard),
        "set": lambda store: store.put("/old", b"1", 0, guard=guard),
        "delete": lambda store: store.delete("/old", 0, guard=guard),
    }
    with closing(open_store(own_zookeeper, operation_timeout_s=0.5)) as store:
        store.put("/old", b"0", MUST_NOT_EXIST)
        store.put("/guard", b"", MUST_NOT_EXIST)
        own_zookeeper.pause()
        try:
            started = time.monotonic()
            with pytest.raises(CommitUnknown, match=r"/(old|new)"):
                changes[change](store)
            assert time.monotonic() - started < TIMEOUT_S
        finally:
            own_zookeeper.resume()
        # The paused server holds the request in its socket and applies it when it goes on, before any later read.
        expected = {"create": (b"0", b"1"), "set": (b"1", None), "delete": (None, None)}[change]
        assert (eventually_get(store, "/old"), eventually_get(store, "/new")) == expected


def test_a_read_that_is_not_answered_is_unavailable(own_zookeeper: ZooKeeperServer) -> None:
    with closing(open_store(own_zookeeper, operation_timeout_s=0.3)) as store:
        own_zookeeper.pause()
        try:
            with pytest.raises(MetadataUnavailable):
                store.get("/node")
            with pytest.raises(MetadataUnavailable):
                store.children("/node")
        finally:
            own_zookeeper.resume()


def test_a_change_without_a_connection_is_not_sent(own_zookeeper: ZooKeeperServer) -> None:
    with closing(open_store(own_zookeeper, operation_timeout_s=0.3)) as store:
        events: queue.Queue[str] = queue.Queue()
        store._client.add_listener(events.put)
        own_zookeeper.kill()
        assert events.get(timeout=TIMEOUT_S) == "SUSPENDED"
        with pytest.raises(MetadataUnavailable, match="metadataStoreOperationTimeoutSeconds"):
            store.put("/node", b"", MUST_NOT_EXIST)
        own_zookeeper.start()
        assert eventually_get(store, "/node") is None


def test_values_and_watches_survive_the_death_of_the_server(own_zookeeper: ZooKeeperServer) -> None:
    with closing(open_store(own_zookeeper, operation_timeout_s=2.0)) as store:
        store.put("/node", b"before", MUST_NOT_EXIST)
        events: queue.Queue[str] = queue.Queue()
        store.watch("/node", events.put)
        own_zookeeper.kill()
        own_zookeeper.start()
        assert eventually_get(store, "/node") == b"before"
        with closing(open_store(own_zookeeper)) as other:
            other.put("/node", b"after", 0)
        seen = b"before"
        while seen != b"after":  # calls that tell of the lost connection may come first
            events.get(timeout=TIMEOUT_S)
            seen = eventually_get(store, "/node") or b""


def test_watches_survive_the_end_of_the_session(own_zookeeper: ZooKeeperServer) -> None:
    with closing(open_store(own_zookeeper, session_timeout_s=1.0)) as store:
        events: queue.Queue[str] = queue.Queue()
        states: queue.Queue[str] = queue.Queue()
        store.watch("/node", events.put)
        store._client.add_listener(states.put)
        # Another connection takes the session over and ends it, as ZooKeeper's own tests do.
        from kazoo.client import KazooClient

        thief = KazooClient(hosts=own_zookeeper.hosts, client_id=store._client.client_id)
        thief.start()
        thief.stop()
        thief.close()
        while states.get(timeout=TIMEOUT_S) != "LOST":
            pass
        events.get(timeout=TIMEOUT_S)  # the watch was armed in the new session, and says so
        with closing(open_store(own_zookeeper)) as other:
            other.put("/node", b"", MUST_NOT_EXIST)
        events.get(timeout=TIMEOUT_S)


def test_a_denied_access_is_distinguished_from_a_failure(zookeeper: ZooKeeperServer, chroot: str) -> None:
    from kazoo.security import make_digest_acl

    secret = {"default_acl": [make_digest_acl("owner", "secret", all=True)]}
    auth = [("digest", "owner:secret")]
    with (
        closing(open_store(zookeeper, chroot=chroot, auth=auth, client_options=secret)) as owner,
        closing(open_store(zookeeper, chroot=chroot)) as stranger,
    ):
        owner.put("/node", b"x", MUST_NOT_EXIST)
        assert owner.get("/node") is not None
        with pytest.raises(MetadataError, match="auth"):
            stranger.get("/node")
        with pytest.raises(CommitFailed, match="auth"):
            stranger.put("/node", b"y", 0)
        with pytest.raises(CommitFailed, match="auth"):
            stranger.put("/node/deeper/child", b"y", MUST_NOT_EXIST)


def test_parents_are_created_below_nodes_that_deny_it(zookeeper: ZooKeeperServer, chroot: str) -> None:
    from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

    secret = {"default_acl": [make_digest_acl("owner", "secret", all=True)]}
    auth = [("digest", "owner:secret")]
    with (
        closing(open_store(zookeeper, chroot=chroot, auth=auth, client_options=secret)) as owner,
        closing(open_store(zookeeper, chroot=f"{chroot}/closed/open")) as stranger,
    ):
        owner.put("/closed", b"", MUST_NOT_EXIST)
        owner._client.create(f"{chroot}/closed/open", b"", acl=OPEN_ACL_UNSAFE)
        assert stranger.put("/a/b/c", b"x", MUST_NOT_EXIST) == 0
        assert stranger.children("/a") == ("b",)


def test_a_guard_that_may_not_be_read_is_not_taken_for_missing(zookeeper: ZooKeeperServer, chroot: str) -> None:
    from kazoo.security import make_digest_acl

    secret = [make_digest_acl("owner", "secret", all=True)]
    with (
        closing(open_store(zookeeper, chroot=chroot)) as store,
        closing(open_store(zookeeper, chroot=chroot, auth=[("digest", "owner:secret")])) as owner,
    ):
        store.put("/node", b"", MUST_NOT_EXIST)
        owner._client.create(f"{chroot}/guard", b"", acl=secret)
        with pytest.raises(CommitFailed, match="auth") as caught:
            store.put("/node", b"x", 0, guard="/guard")
        assert not isinstance(caught.value, Fenced)
        assert owner.put("/node", b"x", 0, guard="/guard") == 1


def test_a_guard_deleted_during_a_creation_leaves_no_parent(
    zookeeper: ZooKeeperServer, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_store(zookeeper, chroot=chroot)) as store, closing(open_store(zookeeper, chroot=chroot)) as other:
        store.put("/guard", b"", MUST_NOT_EXIST)
        create_parents = store._create_parents

        def lose_guard_first(*arguments: Any) -> None:
            other.delete("/guard", 0)
            create_parents(*arguments)

        monkeypatch.setattr(store, "_create_parents", lose_guard_first)
        with pytest.raises(Fenced, match="/up/node was not changed"):
            store.put("/up/node", b"", MUST_NOT_EXIST, guard="/guard")
        assert store.children("/") == ()


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        (["NoNodeError", "RuntimeInconsistency"], Fenced),
        (["RolledBackError", "NoNodeError"], VersionConflict),
        (["RolledBackError", "BadVersionError"], VersionConflict),
        (["NoAuthError", "RuntimeInconsistency"], CommitFailed),
        (["RolledBackError", "NoAuthError"], CommitFailed),
        (["RolledBackError", "NotReadOnlyCallError"], CommitFailed),
        (["RolledBackError", "QuotaExceededError"], CommitFailed),
        # The session ended while the server took the transaction apart, or its results say nothing at all.
        (["SessionExpiredError", "RuntimeInconsistency"], CommitUnknown),
        (["RolledBackError", "SessionExpiredError"], CommitUnknown),
        (["RolledBackError", "SessionMovedError"], CommitUnknown),
        (["RuntimeInconsistency", "RuntimeInconsistency"], CommitUnknown),
        (["RolledBackError", "RolledBackError"], CommitUnknown),
        (["RolledBackError", "SystemZookeeperError"], CommitUnknown),
        ([], CommitUnknown),
    ],
)
def test_the_first_operation_that_fails_determines_the_error_of_a_transaction(
    zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch, results: list[str], expected: type[MetadataError]
) -> None:
    from kazoo import exceptions

    with closing(open_store(zookeeper)) as store:
        answer = [getattr(exceptions, name)() for name in results]
        monkeypatch.setattr(store, "_call", lambda *_: answer)
        with pytest.raises(MetadataError) as caught:
            store.put("/node", b"", 0, guard="/guard")
        assert type(caught.value) is expected


@pytest.mark.parametrize("error", [struct.error("unpack"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")])
def test_a_response_that_cannot_be_parsed_leaves_the_outcome_unknown(
    zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    with closing(open_store(zookeeper)) as store:
        monkeypatch.setattr(store, "_call", fail)
        with pytest.raises(CommitUnknown, match="/node"):
            store.put("/node", b"", 0)


@pytest.mark.parametrize("change", ["create", "set", "delete"])
def test_a_server_that_dies_under_a_guarded_change_leaves_its_outcome_unknown(
    own_zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    changes: dict[str, Callable[[MetadataStore], object]] = {
        "create": lambda store: store.put("/new", b"1", MUST_NOT_EXIST, guard="/guard"),
        "set": lambda store: store.put("/old", b"1", 0, guard="/guard"),
        "delete": lambda store: store.delete("/old", 0, guard="/guard"),
    }
    with closing(open_store(own_zookeeper)) as store:
        store.put("/old", b"0", MUST_NOT_EXIST)
        store.put("/guard", b"", MUST_NOT_EXIST)
        own_zookeeper.pause()
        call = store._call

        def call_and_kill(what: str, request: Callable[[], Any], deadline: float) -> Any:
            def request_and_kill() -> Any:
                result = request()
                own_zookeeper.kill()
                return result

            return call(what, request_and_kill, deadline)

        with monkeypatch.context() as patch:
            patch.setattr(store, "_call", call_and_kill)
            with pytest.raises(CommitUnknown):
                changes[change](store)
        own_zookeeper.start()
        # The paused server was killed before it read the request.
        assert (eventually_get(store, "/old"), eventually_get(store, "/new")) == (b"0", None)


def test_without_kazoo_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    monkeypatch.delitem(sys.modules, "afterglow.metadata.zookeeper")
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    with pytest.raises(MissingDependency, match=r"pulsar-afterglow\[zookeeper\]: pip install 'kazoo"):
        importlib.import_module("afterglow.metadata.zookeeper")


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        (-4, False),  # connection loss
        (-7, False),  # operation time-out
        (-5, False),  # marshalling
        (-112, False),  # session expired
        (-118, False),  # session moved
        (-102, True),  # no permission
        (-114, True),  # invalid access list
        (-125, True),  # quota exceeded
        (-127, True),  # throttled
    ],
)
def test_only_certain_rejections_count_as_failed(code: int, *, refused: bool) -> None:
    from kazoo.exceptions import EXCEPTIONS

    assert _is_refusal(EXCEPTIONS[code]()) is refused


@pytest.mark.parametrize("error", [RuntimeError("xids do not match"), TimeoutError()])
def test_an_error_without_a_response_is_not_a_rejection(error: Exception) -> None:
    assert not _is_refusal(error)
