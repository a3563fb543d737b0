"""The contract of metadata stores as a test class: subclass it, say how to open your store, and run pytest.

    class TestMyStore(MetadataStoreContract):
        @pytest.fixture
        def reopen(self, tmp_path):
            return lambda: MyStore(tmp_path / "tree")

What it demands is written in :mod:`afterglow.metadata.store`.
"""

from __future__ import annotations

import logging
import queue
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest

from afterglow.errors import (
    CommitFailed,
    Fenced,
    InvalidName,
    MetadataUnavailable,
    NotSupported,
    ValueTooLarge,
    VersionConflict,
)
from afterglow.metadata.store import FIRST_VERSION, MAX_PATH_BYTES, MUST_NOT_EXIST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from afterglow.metadata.store import MetadataStore

# How long a watch may take before the test fails; nothing waits this long when all is well.
_TIMEOUT_S: Final = 20.0

_BAD_PATHS: Final = (
    "",
    "a",
    "a/b",
    "//a",
    "/a//b",
    "/a/",
    "/a/./b",
    "/a/..",
    "/a\x00b",
    "/a\nb",
    "/a\ud800",
    "/a\U0001f600",
    "/" + "a" * MAX_PATH_BYTES,
)


class MetadataStoreContract:
    """What every metadata store must do."""

    @pytest.fixture
    def reopen(self) -> Callable[[], MetadataStore]:
        """Return a function that opens a store on the test's own tree, empty at first, the same at every call."""
        raise NotImplementedError("override the fixture `reopen`")

    @pytest.fixture
    def store(self, reopen: Callable[[], MetadataStore]) -> Iterator[MetadataStore]:
        """Return the store under test."""
        with closing(reopen()) as store:
            yield store

    # --- one node ---------------------------------------------------------------------------------------------------

    def test_a_path_where_nothing_was_put_has_no_node(self, store: MetadataStore) -> None:
        """Reading what is not there is no error."""
        assert store.get("/nothing") is None
        assert store.get("/nothing/below") is None

    def test_a_created_node_has_version_0_and_its_value(self, store: MetadataStore) -> None:
        """The first version is fixed, so that a creator need not read back."""
        assert store.put("/node", b"one", MUST_NOT_EXIST) == FIRST_VERSION == 0
        node = store.get("/node")
        assert node is not None
        assert (node.value, node.version) == (b"one", 0)

    def test_each_put_raises_the_version_by_one(self, store: MetadataStore) -> None:
        """Versions count the puts since creation."""
        version = store.put("/node", b"0", MUST_NOT_EXIST)
        for count in range(1, 5):
            version = store.put("/node", b"%d" % count, version)
            assert version == count
        node = store.get("/node")
        assert node is not None
        assert (node.value, node.version) == (b"4", 4)

    def test_a_put_of_the_same_value_is_a_change_too(self, store: MetadataStore) -> None:
        """Nothing is optimised away: another writer must notice."""
        store.put("/node", b"same", MUST_NOT_EXIST)
        assert store.put("/node", b"same", 0) == 1

    def test_times_are_those_of_creation_and_last_change(self, store: MetadataStore) -> None:
        """The creation time stays, the time of the last put moves on."""
        store.put("/node", b"", MUST_NOT_EXIST)
        created = store.get("/node")
        store.put("/node", b"x", 0)
        changed = store.get("/node")
        assert created is not None
        assert changed is not None
        assert created.created_ms == created.modified_ms == changed.created_ms <= changed.modified_ms

    @pytest.mark.parametrize("stale", [0, 2, 7])
    def test_a_put_that_expects_another_version_changes_nothing(self, store: MetadataStore, stale: int) -> None:
        """Older and newer expectations both conflict."""
        store.put("/node", b"a", MUST_NOT_EXIST)
        store.put("/node", b"b", 0)
        with pytest.raises(VersionConflict, match="/node"):
            store.put("/node", b"c", stale)
        node = store.get("/node")
        assert node is not None
        assert (node.value, node.version) == (b"b", 1)

    def test_creating_what_exists_is_a_conflict(self, store: MetadataStore) -> None:
        """The node that is there stays as it is."""
        store.put("/node", b"first", MUST_NOT_EXIST)
        with pytest.raises(VersionConflict, match="/node"):
            store.put("/node", b"second", MUST_NOT_EXIST)
        node = store.get("/node")
        assert node is not None
        assert (node.value, node.version) == (b"first", 0)

    def test_changing_what_does_not_exist_is_a_conflict(self, store: MetadataStore) -> None:
        """A node is never created by a put that expects a version, nor are its parents."""
        with pytest.raises(VersionConflict, match="/up/node"):
            store.put("/up/node", b"", 0)
        assert store.get("/up") is None

    def test_a_deleted_node_is_gone_and_starts_at_version_0_again(self, store: MetadataStore) -> None:
        """As in ZooKeeper, whose versions do not survive deletion."""
        store.put("/node", b"a", MUST_NOT_EXIST)
        store.put("/node", b"b", 0)
        store.delete("/node", 1)
        assert store.get("/node") is None
        assert store.put("/node", b"c", MUST_NOT_EXIST) == 0

    def test_a_delete_that_expects_another_version_changes_nothing(self, store: MetadataStore) -> None:
        """Deletion is compare-and-set too."""
        store.put("/node", b"a", MUST_NOT_EXIST)
        store.put("/node", b"b", 0)
        with pytest.raises(VersionConflict, match="/node"):
            store.delete("/node", 0)
        assert store.get("/node") is not None

    def test_deleting_what_does_not_exist_is_a_conflict(self, store: MetadataStore) -> None:
        """A caller that deletes has read a version."""
        with pytest.raises(VersionConflict, match="/node"):
            store.delete("/node", 0)

    def test_blind_changes_are_not_offered(self, store: MetadataStore) -> None:
        """ZooKeeper takes -1 as 'any version'; here it never does."""
        store.put("/node", b"kept", MUST_NOT_EXIST)
        with pytest.raises(NotSupported):
            store.delete("/node", -1)
        with pytest.raises(NotSupported):
            store.put("/node", b"lost", -2)
        node = store.get("/node")
        assert node is not None
        assert node.value == b"kept"

    # --- guards -----------------------------------------------------------------------------------------------------

    def test_changes_under_a_guard_that_exists_are_applied(self, store: MetadataStore) -> None:
        """Creation, with and without missing parents, put and delete; the guard stays as it was."""
        store.put("/owners/me", b"", MUST_NOT_EXIST)
        assert store.put("/up/node", b"a", MUST_NOT_EXIST, guard="/owners/me") == 0
        assert store.put("/up/other", b"a", MUST_NOT_EXIST, guard="/owners/me") == 0
        assert store.put("/up/node", b"b", 0, guard="/owners/me") == 1
        store.delete("/up/other", 0, guard="/owners/me")
        node, guard = store.get("/up/node"), store.get("/owners/me")
        assert node is not None
        assert guard is not None
        assert (node.value, node.version, guard.version) == (b"b", 1, 0)
        assert store.children("/up") == ("node",)

    def test_any_version_of_the_guard_will_do(self, store: MetadataStore) -> None:
        """It only has to exist."""
        store.put("/owners/me", b"", MUST_NOT_EXIST)
        store.put("/owners/me", b"changed", 0)
        assert store.put("/node", b"", MUST_NOT_EXIST, guard="/owners/me") == 0

    def test_without_its_guard_nothing_is_changed(self, store: MetadataStore) -> None:
        """No put, no delete, no creation, and no parent of what was to be created."""
        store.put("/node", b"kept", MUST_NOT_EXIST)
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.put("/node", b"lost", 0, guard="/owners/me"),
            lambda: store.delete("/node", 0, guard="/owners/me"),
            lambda: store.put("/new", b"lost", MUST_NOT_EXIST, guard="/owners/me"),
            lambda: store.put("/up/above/new", b"lost", MUST_NOT_EXIST, guard="/owners/me"),
        )
        for call in calls:
            with pytest.raises(Fenced, match="/owners/me"):
                call()
        node = store.get("/node")
        assert node is not None
        assert (node.value, node.version) == (b"kept", 0)
        assert store.children("/") == ("node",)

    def test_changes_end_when_another_store_deletes_the_guard(
        self, store: MetadataStore, reopen: Callable[[], MetadataStore]
    ) -> None:
        """At once, also for a store that has used it; those of the other store go on."""
        store.put("/owners/me", b"", MUST_NOT_EXIST)
        store.put("/node", b"a", MUST_NOT_EXIST, guard="/owners/me")
        with closing(reopen()) as other:
            other.put("/owners/other", b"", MUST_NOT_EXIST)
            other.delete("/owners/me", 0, guard="/owners/other")
            with pytest.raises(Fenced, match=r"/node was not changed.*/owners/me"):
                store.put("/node", b"b", 0, guard="/owners/me")
            with pytest.raises(Fenced, match=r"/up/node was not changed.*/owners/me"):
                store.put("/up/node", b"b", MUST_NOT_EXIST, guard="/owners/me")
            assert other.get("/up") is None
            assert other.put("/node", b"c", 0, guard="/owners/other") == 1

    def test_a_missing_guard_counts_before_everything_else(self, store: MetadataStore) -> None:
        """A process that was replaced must stop, not read again and retry."""
        store.put("/up/node", b"", MUST_NOT_EXIST)
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.put("/up/node", b"", MUST_NOT_EXIST, guard="/none"),
            lambda: store.put("/up/node", b"", 7, guard="/none"),
            lambda: store.put("/nothing", b"", 0, guard="/none"),
            lambda: store.delete("/up/node", 7, guard="/none"),
            lambda: store.delete("/nothing", 0, guard="/none"),
            lambda: store.delete("/up", 0, guard="/none"),
            lambda: store.put("/none", b"", MUST_NOT_EXIST, guard="/none"),
        )
        for call in calls:
            with pytest.raises(Fenced):
                call()

    def test_conflicts_under_a_guard_that_exists_are_those_without_one(self, store: MetadataStore) -> None:
        """The errors speak of the path, not of the guard."""
        store.put("/owners/me", b"", MUST_NOT_EXIST)
        store.put("/up/node", b"", MUST_NOT_EXIST)
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.put("/up/node", b"", MUST_NOT_EXIST, guard="/owners/me"),
            lambda: store.put("/up/node", b"", 7, guard="/owners/me"),
            lambda: store.put("/nothing", b"", 0, guard="/owners/me"),
            lambda: store.delete("/up/node", 7, guard="/owners/me"),
            lambda: store.delete("/nothing", 0, guard="/owners/me"),
        )
        for call in calls:
            with pytest.raises(VersionConflict, match=r"/up/node|/nothing"):
                call()
        with pytest.raises(CommitFailed, match="children") as caught:
            store.delete("/up", 0, guard="/owners/me")
        assert not isinstance(caught.value, (VersionConflict, Fenced))

    def test_a_guard_may_be_changed_under_itself(self, store: MetadataStore) -> None:
        """As an owner does that gives up its ownership."""
        store.put("/owners/me", b"", MUST_NOT_EXIST)
        assert store.put("/owners/me", b"x", 0, guard="/owners/me") == 1
        store.delete("/owners/me", 1, guard="/owners/me")
        assert store.children("/owners") == ()

    @pytest.mark.parametrize("path", ["/", *_BAD_PATHS], ids=lambda path: ascii(path[:12]))
    def test_a_malformed_guard_is_refused(self, store: MetadataStore, path: str) -> None:
        """It is a path like any other, and the root guards nothing."""
        store.put("/node", b"", MUST_NOT_EXIST)
        with pytest.raises(InvalidName):
            store.put("/node", b"", 0, guard=path)
        with pytest.raises(InvalidName):
            store.delete("/node", 0, guard=path)

    def test_the_largest_value_fits_under_the_longest_guard(self, store: MetadataStore) -> None:
        """The guard is part of the request, whose length ZooKeeper limits."""
        path, guard = "/" + "p" * (MAX_PATH_BYTES - 1), "/" + "g" * (MAX_PATH_BYTES - 1)
        value = b"v" * store.max_value_bytes
        store.put(guard, b"", MUST_NOT_EXIST)
        store.put(path, value, MUST_NOT_EXIST, guard=guard)
        assert store.put(path, value, 0, guard=guard) == 1

    # --- values and paths -------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("value", [b"", b"\x00", bytes(range(256)), b"\xff" * 70_000])
    def test_values_come_back_byte_for_byte(self, store: MetadataStore, value: bytes) -> None:
        """Values are bytes, the empty one included."""
        store.put("/node", value, MUST_NOT_EXIST)
        node = store.get("/node")
        assert node is not None
        assert node.value == value

    def test_the_largest_value_fits_even_at_the_longest_path(self, store: MetadataStore) -> None:
        """What ``max_value_bytes`` says is kept, for creation and change alike."""
        path = "/" + "p" * (MAX_PATH_BYTES - 1)
        value = b"v" * store.max_value_bytes
        store.put(path, value, MUST_NOT_EXIST)
        store.put(path, value, 0)
        node = store.get(path)
        assert node is not None
        assert node.value == value

    def test_one_byte_more_is_refused_before_anything_is_sent(self, store: MetadataStore) -> None:
        """Neither the node nor its parents are made."""
        with pytest.raises(ValueTooLarge, match="max_value_bytes"):
            store.put("/up/node", b"v" * (store.max_value_bytes + 1), MUST_NOT_EXIST)
        assert store.get("/up") is None

    def test_a_value_past_half_of_the_limit_is_warned_of(
        self, store: MetadataStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An operator hears of it while there is still room."""
        with caplog.at_level(logging.WARNING, logger="afterglow.metadata"):
            store.put("/small", b"v" * (store.max_value_bytes // 2), MUST_NOT_EXIST)
            assert not caplog.records
            store.put("/large", b"v" * (store.max_value_bytes // 2 + 1), MUST_NOT_EXIST)
        assert "/large" in caplog.text

    @pytest.mark.parametrize("name", ["with space", "a+b", "a%2Fb", "*", "é", "漢字", "a:b=c", "...", "~", "'\"\\;--"])
    def test_names_may_hold_any_printable_character(self, store: MetadataStore, name: str) -> None:
        """Names are not interpreted."""
        store.put(f"/up/{name}", b"x", MUST_NOT_EXIST)
        assert store.children("/up") == (name,)
        assert store.get(f"/up/{name}") is not None

    @pytest.mark.parametrize("path", _BAD_PATHS, ids=lambda path: ascii(path[:12]))
    def test_a_malformed_path_is_refused_by_every_call(self, store: MetadataStore, path: str) -> None:
        """One rule for all stores, so that what works on one works on all."""
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.get(path),
            lambda: store.put(path, b"", MUST_NOT_EXIST),
            lambda: store.delete(path, 0),
            lambda: store.children(path),
            lambda: store.watch(path, print),
        )
        for call in calls:
            with pytest.raises(InvalidName):
                call()

    def test_the_root_can_be_listed_and_nothing_else(self, store: MetadataStore) -> None:
        """It has no value and no version."""
        assert store.children("/") == ()
        store.put("/b", b"", MUST_NOT_EXIST)
        store.put("/a/x", b"", MUST_NOT_EXIST)
        assert store.children("/") == ("a", "b")
        with pytest.raises(InvalidName):
            store.get("/")
        with pytest.raises(InvalidName):
            store.put("/", b"", 0)

    # --- the tree ---------------------------------------------------------------------------------------------------

    def test_children_are_the_names_directly_below_in_order(self, store: MetadataStore) -> None:
        """Neither the node itself, nor deeper ones, nor those of a node whose name begins alike."""
        for path in ("/up/b", "/up/a", "/up/C", "/up/a/deep", "/upper/x", "/up/é"):
            if store.get(path) is None:
                store.put(path, b"", MUST_NOT_EXIST)
        assert store.children("/up") == ("C", "a", "b", "é")
        assert store.children("/up/a") == ("deep",)
        assert store.children("/up/b") == ()
        assert store.children("/nothing") == ()

    def test_parents_are_made_with_an_empty_value_and_version_0(self, store: MetadataStore) -> None:
        """An implicit parent is an ordinary node: creating it conflicts, putting to it expects 0."""
        store.put("/a/b/c", b"leaf", MUST_NOT_EXIST)
        for parent in ("/a", "/a/b"):
            node = store.get(parent)
            assert node is not None
            assert (node.value, node.version) == (b"", 0)
        with pytest.raises(VersionConflict):
            store.put("/a/b", b"explicit", MUST_NOT_EXIST)
        assert store.put("/a/b", b"explicit", 0) == 1
        assert store.children("/a/b") == ("c",)

    def test_creating_a_child_leaves_its_parent_as_it_was(self, store: MetadataStore) -> None:
        """A parent's version counts its own puts only."""
        store.put("/up", b"value", MUST_NOT_EXIST)
        store.put("/up/child", b"", MUST_NOT_EXIST)
        node = store.get("/up")
        assert node is not None
        assert (node.value, node.version) == (b"value", 0)

    def test_an_implicit_parent_stays_when_its_last_child_goes(self, store: MetadataStore) -> None:
        """Only a delete removes a node."""
        store.put("/up/child", b"", MUST_NOT_EXIST)
        store.delete("/up/child", 0)
        assert store.children("/up") == ()
        assert store.get("/up") is not None
        store.delete("/up", 0)
        assert store.get("/up") is None

    def test_a_node_with_children_is_not_deleted(self, store: MetadataStore) -> None:
        """The error is not a conflict: reading again would not help."""
        store.put("/up/child", b"x", MUST_NOT_EXIST)
        with pytest.raises(CommitFailed, match="children") as caught:
            store.delete("/up", 0)
        assert not isinstance(caught.value, VersionConflict)
        assert store.get("/up/child") is not None

    # --- several stores and threads ---------------------------------------------------------------------------------

    def test_what_was_put_is_there_after_closing_and_opening_again(self, reopen: Callable[[], MetadataStore]) -> None:
        """A store holds nothing back."""
        with closing(reopen()) as first:
            first.put("/up/node", b"kept", MUST_NOT_EXIST)
            first.put("/up/node", b"kept on", 0)
        with closing(reopen()) as second:
            node = second.get("/up/node")
            assert node is not None
            assert (node.value, node.version) == (b"kept on", 1)
            assert second.children("/up") == ("node",)

    def test_two_stores_on_one_tree_exclude_each_other(
        self, store: MetadataStore, reopen: Callable[[], MetadataStore]
    ) -> None:
        """Of two creators one wins, of two writers with one version one wins."""
        with closing(reopen()) as other:
            store.put("/node", b"mine", MUST_NOT_EXIST)
            with pytest.raises(VersionConflict):
                other.put("/node", b"theirs", MUST_NOT_EXIST)
            other.put("/node", b"theirs", 0)
            with pytest.raises(VersionConflict):
                store.put("/node", b"mine again", 0)

    def test_concurrent_increments_lose_nothing(
        self, store: MetadataStore, reopen: Callable[[], MetadataStore]
    ) -> None:
        """Compare-and-set from several threads over two stores adds up exactly."""
        store.put("/count", b"0", MUST_NOT_EXIST)
        with closing(reopen()) as other:
            threads = [
                threading.Thread(target=increment, args=(source, "/count", 15)) for source in (store, other, store)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        node = store.get("/count")
        assert node is not None
        assert (int(node.value), node.version) == (45, 45)

    # --- watches ----------------------------------------------------------------------------------------------------

    def test_a_watch_reports_creation_change_and_deletion(
        self, store: MetadataStore, reopen: Callable[[], MetadataStore]
    ) -> None:
        """Changes by this store, or by another as in another process."""
        notified: queue.Queue[str] = queue.Queue()
        store.watch("/up/node", notified.put)
        with closing(reopen()) as other:
            for writer in (store, other):
                writer.put("/up/node", b"a", MUST_NOT_EXIST)
                _await_state(notified, lambda: store.get("/up/node") is not None)
                writer.put("/up/node", b"b", 0)
                _await_state(notified, lambda: (node := store.get("/up/node")) is not None and node.version == 1)
                writer.delete("/up/node", 1)
                _await_state(notified, lambda: store.get("/up/node") is None)

    def test_a_watch_reports_children_that_come_and_go(
        self, store: MetadataStore, reopen: Callable[[], MetadataStore]
    ) -> None:
        """Also where the watched node is itself made only by its first child."""
        notified: queue.Queue[str] = queue.Queue()
        store.watch("/up", notified.put)
        with closing(reopen()) as other:
            other.put("/up/a", b"", MUST_NOT_EXIST)
            _await_state(notified, lambda: store.children("/up") == ("a",))
            store.put("/up/b", b"", MUST_NOT_EXIST)
            _await_state(notified, lambda: store.children("/up") == ("a", "b"))
            other.delete("/up/a", 0)
            _await_state(notified, lambda: store.children("/up") == ("b",))

    def test_a_watch_gets_its_path_and_may_use_the_store(self, store: MetadataStore) -> None:
        """Reading what changed is what callbacks are for."""
        notified: queue.Queue[tuple[str, object]] = queue.Queue()
        store.watch("/node", lambda path: notified.put((path, store.get(path))))
        store.put("/node", b"x", MUST_NOT_EXIST)
        assert notified.get(timeout=_TIMEOUT_S) == ("/node", store.get("/node"))

    def test_a_cancelled_watch_is_silent_while_others_go_on(self, store: MetadataStore) -> None:
        """Callbacks of one path run in the order of their registration, so the silent one would have spoken first."""
        notified: queue.Queue[str] = queue.Queue()
        cancelled = store.watch("/node", lambda _: notified.put("cancelled"))
        store.watch("/node", lambda _: notified.put("live"))
        cancelled.cancel()
        cancelled.cancel()
        store.put("/node", b"", MUST_NOT_EXIST)
        assert notified.get(timeout=_TIMEOUT_S) == "live"

    def test_a_callback_that_raises_stops_no_other(
        self, store: MetadataStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is logged with its path."""
        notified: queue.Queue[str] = queue.Queue()

        def fail(path: str) -> None:
            raise RuntimeError(path)

        store.watch("/node", fail)
        store.watch("/node", notified.put)
        store.put("/node", b"", MUST_NOT_EXIST)
        assert notified.get(timeout=_TIMEOUT_S) == "/node"
        assert "the watch callback of /node failed" in caplog.text

    # --- the end ----------------------------------------------------------------------------------------------------

    def test_a_closed_store_refuses_every_call(self, store: MetadataStore) -> None:
        """And may be closed twice."""
        store.watch("/node", print)
        store.close()
        store.close()
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.get("/node"),
            lambda: store.put("/node", b"", MUST_NOT_EXIST),
            lambda: store.delete("/node", 0),
            lambda: store.children("/node"),
            lambda: store.watch("/node", print),
        )
        for call in calls:
            with pytest.raises(MetadataUnavailable, match="closed"):
                call()

    def test_a_callback_may_close_the_store(self, store: MetadataStore) -> None:
        """Neither waits for the other."""
        closed = threading.Event()

        def close(_: str) -> None:
            store.close()
            closed.set()

        store.watch("/node", close)
        store.put("/node", b"", MUST_NOT_EXIST)
        assert closed.wait(_TIMEOUT_S)


def increment(store: MetadataStore, path: str, times: int) -> None:
    """Add 1 to the decimal number in a node, ``times`` times, by compare-and-set."""
    for _ in range(times):
        while True:
            node = store.get(path)
            assert node is not None
            try:
                store.put(path, b"%d" % (int(node.value) + 1), node.version)
            except VersionConflict:
                continue
            break


def _await_state(notified: queue.Queue[str], reached: Callable[[], bool]) -> None:
    """Wait for calls of a watch until one comes at or after the state that is waited for."""
    while True:
        try:
            notified.get(timeout=_TIMEOUT_S)
        except queue.Empty:
            pytest.fail("the watch did not tell of the change")
        if reached():
            return
