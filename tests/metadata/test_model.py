"""Stores against a model: a dictionary of path to value and version, and ZooKeeper's rules in a few lines."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from afterglow.errors import CommitFailed, Fenced, VersionConflict
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.sqlite import SqliteMetadataStore
from afterglow.metadata.store import MUST_NOT_EXIST

if TYPE_CHECKING:
    from afterglow.metadata.store import MetadataStore

# Few names and shallow trees, so that operations meet.
paths = st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))
versions = st.sampled_from([MUST_NOT_EXIST, 0, 1, 2])
values = st.binary(max_size=3)
guards = st.none() | paths


class Model:
    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int]] = {}

    def check(self, path: str, expected: int, guard: str | None) -> None:
        if guard is not None and guard not in self.nodes:
            raise Fenced(path)
        found = self.nodes[path][1] if path in self.nodes else MUST_NOT_EXIST
        if found != expected:
            raise VersionConflict(path)

    def put(self, path: str, value: bytes, expected: int, guard: str | None = None) -> int:
        self.check(path, expected, guard)
        while expected == MUST_NOT_EXIST and "/" in path[1:] and (parent := path.rpartition("/")[0]) not in self.nodes:
            self.put(parent, b"", MUST_NOT_EXIST)
        self.nodes[path] = (value, expected + 1)
        return expected + 1

    def delete(self, path: str, expected: int, guard: str | None = None) -> None:
        self.check(path, expected, guard)
        if self.children(path):
            raise CommitFailed(path)
        del self.nodes[path]

    def children(self, path: str) -> tuple[str, ...]:
        prefix = path.rstrip("/") + "/"
        below = (node.removeprefix(prefix) for node in self.nodes if node.startswith(prefix))
        return tuple(sorted(name for name in below if "/" not in name))


class StoresFollowTheModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.directory = tempfile.TemporaryDirectory()
        self.memory = MemoryMetadataStore()
        self.sqlite = SqliteMetadataStore(Path(self.directory.name) / "metadata.db")

    @property
    def stores(self) -> tuple[MetadataStore, ...]:
        return self.memory, self.sqlite

    @initialize()
    def begin_with_a_tree(self) -> None:
        self.put("/a/b", b"", MUST_NOT_EXIST, None)

    @rule(path=paths, value=values, expected=versions, guard=guards)
    def put(self, path: str, value: bytes, expected: int, guard: str | None) -> None:
        outcome = _outcome(lambda: self.model.put(path, value, expected, guard))
        for store in self.stores:
            assert _outcome(lambda store=store: store.put(path, value, expected, guard=guard)) == outcome

    @rule(path=paths, expected=st.sampled_from([0, 1, 2]), guard=guards)
    def delete(self, path: str, expected: int, guard: str | None) -> None:
        outcome = _outcome(lambda: self.model.delete(path, expected, guard))
        for store in self.stores:
            assert _outcome(lambda store=store: store.delete(path, expected, guard=guard)) == outcome

    @rule()
    def reopen_the_file(self) -> None:
        self.sqlite.close()
        self.sqlite = SqliteMetadataStore(Path(self.directory.name) / "metadata.db")

    @rule(path=paths)
    def read(self, path: str) -> None:
        for store in self.stores:
            node = store.get(path)
            assert (None if node is None else (node.value, node.version)) == self.model.nodes.get(path)
            assert store.children(path) == self.model.children(path)

    @invariant()
    def the_same_nodes_exist(self) -> None:
        for store in self.stores:
            assert _walk(store, "") == self.model.nodes

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        self.directory.cleanup()


def _outcome(call: object) -> object:
    assert callable(call)
    try:
        return call()
    except CommitFailed as error:
        return type(error)


def _walk(store: MetadataStore, path: str) -> dict[str, tuple[bytes, int]]:
    nodes: dict[str, tuple[bytes, int]] = {}
    for name in store.children(path or "/"):
        node = store.get(f"{path}/{name}")
        assert node is not None
        nodes[f"{path}/{name}"] = (node.value, node.version)
        nodes |= _walk(store, f"{path}/{name}")
    return nodes


TestStoresFollowTheModel = StoresFollowTheModel.TestCase
TestStoresFollowTheModel.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_the_model_itself_knows_conflict_from_children() -> None:
    model = Model()
    model.put("/a/b", b"x", MUST_NOT_EXIST)
    assert model.nodes == {"/a": (b"", 0), "/a/b": (b"x", 0)}
    assert _outcome(lambda: model.delete("/a", 0)) is CommitFailed
    assert _outcome(lambda: model.delete("/a", 1)) is VersionConflict
    with closing(MemoryMetadataStore()) as store:
        assert _walk(store, "") == {}
