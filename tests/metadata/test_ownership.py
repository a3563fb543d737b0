from __future__ import annotations

import threading
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pytest
from tests.support.clock import ManualClock
from tests.support.crash_points import Crashed, CrashingMetadataStore, CrashPoint
from tests.support.faults import Fault, FaultRule, FaultyMetadataStore

from afterglow.config import BrokerConfig
from afterglow.errors import CommitUnknown, Fenced, MetadataUnavailable
from afterglow.ledger.properties import get_text, set_text
from afterglow.ledger.topic_metadata import TopicMetadata
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.ownership import OwnedMetadataStore, take_ownership
from afterglow.metadata.sqlite import SqliteMetadataStore
from afterglow.metadata.store import MUST_NOT_EXIST

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from afterglow.metadata.store import MetadataStore

OWNERS: Final = "/afterglow/standalone/owners"
PATH: Final = "/managed-ledgers/public/default/persistent/t"
PUT: Final = frozenset({"put"})
DELETE: Final = frozenset({"delete"})


def own(store: MetadataStore, number: int) -> OwnedMetadataStore:
    return take_ownership(store, OWNERS, UUID(int=number))


def guard_of(number: int) -> str:
    return f"{OWNERS}/{UUID(int=number)}"


def guards(store: MetadataStore) -> tuple[str, ...]:
    return tuple(f"{OWNERS}/{name}" for name in store.children(OWNERS))


def test_each_owner_fences_the_one_before() -> None:
    store = MemoryMetadataStore()
    first = own(store, 1)
    assert first.put("/node", b"first", MUST_NOT_EXIST) == 0
    second = own(store, 2)
    with pytest.raises(Fenced, match=str(UUID(int=1))):
        first.put("/node", b"zombie", 0)
    with pytest.raises(Fenced):
        first.put("/up/new", b"zombie", MUST_NOT_EXIST)
    with pytest.raises(Fenced):
        first.delete("/node", 0)
    assert store.get("/up") is None
    assert second.put("/node", b"second", 0) == 1
    assert guards(store) == (second.guard,)


def test_a_fenced_process_still_reads() -> None:
    store = MemoryMetadataStore()
    first = own(store, 1)
    first.put("/up/node", b"x", MUST_NOT_EXIST)
    own(store, 2)
    node = first.get("/up/node")
    assert node is not None
    assert node.value == b"x"
    assert first.children("/up") == ("node",)
    assert first.max_value_bytes == store.max_value_bytes


@pytest.mark.parametrize("earlier", [0, 1, 3])
def test_after_a_crash_at_any_step_the_next_owner_fences_all_others(earlier: int) -> None:
    at = 0
    while True:
        store = MemoryMetadataStore()
        before = [own_without_deleting(store, number) for number in range(1, 1 + earlier)]
        crashing = CrashingMetadataStore(store)
        crashing.before = CrashPoint(at)
        try:
            own(crashing, 10)
        except Crashed:
            crashed = True
        else:
            crashed = False
        effects = crashing.before.effects
        assert effects == [f"put {guard_of(10)}", *(f"delete {owner.guard}" for owner in before)][:at]
        fenced = [is_fenced(owner) for owner in before]
        assert fenced == [number < at - 1 for number in range(earlier)]  # the first step fences nobody
        last = own(store, 11)
        assert guards(store) == (last.guard,)
        assert all(is_fenced(owner) for owner in (*before, OwnedMetadataStore(store, guard_of(10))))
        assert not is_fenced(last)
        if not crashed:
            assert at == 1 + earlier
            return
        at += 1


def own_without_deleting(store: MetadataStore, number: int) -> OwnedMetadataStore:
    """An owner as several of them are left by crashes."""
    store.put(guard_of(number), b"", MUST_NOT_EXIST)
    return OwnedMetadataStore(store, guard_of(number))


def is_fenced(owner: OwnedMetadataStore) -> bool:
    found = owner.get("/probe")
    try:
        owner.put("/probe", b"", MUST_NOT_EXIST if found is None else found.version)
    except Fenced:
        return True
    return False


class Interrupted(FaultyMetadataStore):
    """A store that runs something else before one of the changes of its user."""

    def __init__(self, inner: MetadataStore, at: int, run: Callable[[], object]) -> None:
        super().__init__(inner)
        self._left = at
        self._run = run

    def interrupt(self) -> None:
        self._left -= 1
        if self._left == -1:
            self._run()

    def put(self, path: str, value: bytes, expected_version: int, *, guard: str | None = None) -> int:
        self.interrupt()
        return super().put(path, value, expected_version, guard=guard)

    def children(self, path: str) -> tuple[str, ...]:
        self.interrupt()
        found = super().children(path)
        self.interrupt()
        return found

    def delete(self, path: str, expected_version: int, *, guard: str | None = None) -> None:
        self.interrupt()
        super().delete(path, expected_version, guard=guard)


@pytest.mark.parametrize("at", range(5))
def test_of_two_processes_that_take_ownership_at_once_one_survives(at: int) -> None:
    # The second process takes ownership in one go, before each request of the first: its put, its list, what it does
    # with the list, and its first and second delete.
    store = MemoryMetadataStore()
    earlier = [own_without_deleting(store, number) for number in (1, 20)]
    owners: list[OwnedMetadataStore] = []
    try:
        owners.append(own(Interrupted(store, at, lambda: owners.append(own(store, 10))), 5))
    except Fenced:
        assert at > 0
    assert all(is_fenced(owner) for owner in earlier)
    survivors = [owner for owner in owners if not is_fenced(owner)]
    assert [owner.guard for owner in survivors] == [guard_of(5 if at == 0 else 10)]
    assert guards(store) == (survivors[0].guard,)


def test_of_two_that_see_each_other_the_first_to_delete_survives() -> None:
    store = MemoryMetadataStore()
    ready, go_on = threading.Event(), threading.Event()

    class Held(FaultyMetadataStore):
        def delete(self, path: str, expected_version: int, *, guard: str | None = None) -> None:
            ready.set()
            assert go_on.wait(30)
            super().delete(path, expected_version, guard=guard)

    own_without_deleting(store, 1)
    errors: list[Exception] = []

    def take() -> None:
        try:
            own(Held(store), 2)
        except Fenced as error:
            errors.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    assert ready.wait(30)
    survivor = own(store, 3)
    go_on.set()
    thread.join(30)
    assert len(errors) == 1
    assert guards(store) == (survivor.guard,)
    assert not is_fenced(survivor)


def test_of_many_threads_on_one_file_at_most_one_survives(tmp_path: Path) -> None:
    count = 8
    start = threading.Barrier(count)
    owners: list[OwnedMetadataStore] = []
    stores = [SqliteMetadataStore(tmp_path / "metadata.db") for _ in range(count)]

    def take(number: int) -> None:
        start.wait(30)
        with suppress(Fenced):
            owners.append(own(stores[number], number))

    threads = [threading.Thread(target=take, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    try:
        live = [owner.guard for owner in owners if not is_fenced(owner)]
        assert len(live) == 1
        assert guards(stores[0]) == tuple(live)
    finally:
        for store in stores:
            store.close()


@pytest.mark.parametrize("fault", [Fault.ERROR_AFTER, Fault.LOST])
@pytest.mark.parametrize("operations", [PUT, DELETE])
def test_an_unknown_outcome_is_read_again(fault: Fault, operations: frozenset[str]) -> None:
    inner = MemoryMetadataStore()
    first = own(inner, 1)
    store = FaultyMetadataStore(inner, [FaultRule(fault, operations, key=f"{OWNERS}/*")])
    second = own(store, 2)
    assert len(store.injected) == 1
    assert guards(inner) == (second.guard,)
    assert is_fenced(first)
    assert not is_fenced(second)


@pytest.mark.parametrize("operations", [PUT, DELETE])
def test_outcomes_that_stay_unknown_end_the_attempt(operations: frozenset[str]) -> None:
    inner = MemoryMetadataStore()
    own(inner, 1)
    store = FaultyMetadataStore(inner, [FaultRule(Fault.LOST, operations, times=None)])
    with pytest.raises(CommitUnknown, match=f"{OWNERS}/.* was not (created|deleted)"):
        own(store, 2)


@pytest.mark.parametrize("operation", ["put", "children", "get", "delete"])
def test_after_a_failure_of_the_store_the_next_owner_fences_all_others(operation: str) -> None:
    inner = MemoryMetadataStore()
    first = own(inner, 1)
    store = FaultyMetadataStore(inner, [FaultRule(Fault.ERROR_BEFORE, frozenset({operation}))])
    with pytest.raises(MetadataUnavailable):
        own(store, 2)
    assert not is_fenced(first)
    third = own(store, 3)
    assert is_fenced(first)
    assert guards(inner) == (third.guard,)


def test_a_deletion_of_unknown_outcome_by_a_process_that_was_replaced_is_fenced() -> None:
    inner = MemoryMetadataStore()
    own(inner, 1)
    store = FaultyMetadataStore(inner, [FaultRule(Fault.LOST, DELETE)])
    # After the lost delete another process takes ownership: the retry must not delete the guard of an owner.
    interrupted = Interrupted(store, 4, lambda: own(inner, 3))
    with pytest.raises(Fenced):
        own(interrupted, 2)
    assert guards(inner) == (guard_of(3),)


# --- what the guard is for ------------------------------------------------------------------------------------------


def topic(store: MetadataStore, clock: ManualClock) -> TopicMetadata:
    return TopicMetadata(store, PATH, BrokerConfig(), clock)


def set_mark(metadata: TopicMetadata, value: str) -> None:
    metadata.update(lambda info: set_text(info, "mark", value))


def replace_and_create_again(
    first: MetadataStore, take_over: Callable[[], MetadataStore]
) -> tuple[TopicMetadata, TopicMetadata]:
    """A topic as the replaced process knows it, and as its successor deleted and created it, both at one version."""
    clock = ManualClock()
    replaced = topic(first, clock)
    replaced.open(create=True)
    second = take_over()
    earlier_life = topic(second, clock)
    earlier_life.open(create=False)
    earlier_life.remove()
    clock.advance(0.001)
    owner = topic(second, clock)
    owner.open(create=True)
    assert owner.snapshot.version == replaced.snapshot.version
    return replaced, owner


@pytest.mark.parametrize("change", [partial(set_mark, value="replaced"), TopicMetadata.remove], ids=["put", "delete"])
def test_a_replaced_process_does_not_change_a_topic_that_was_deleted_and_created_again(
    change: Callable[[TopicMetadata], None],
) -> None:
    store = MemoryMetadataStore()
    replaced, owner = replace_and_create_again(own(store, 1), lambda: own(store, 2))
    with pytest.raises(Fenced):
        change(replaced)
    set_mark(owner, "owner")
    assert get_text(owner.check_owner().info, "mark") == "owner"


def test_without_a_guard_a_replaced_process_changes_the_topic_of_another_life() -> None:
    # If this fails, versions or epochs have become sufficient, and guards are not needed any more.
    store = MemoryMetadataStore()
    replaced, owner = replace_and_create_again(store, lambda: store)
    set_mark(replaced, "replaced")
    with pytest.raises(Fenced):
        set_mark(owner, "owner")


def test_a_change_that_arrives_after_the_replacement_has_no_effect() -> None:
    store = MemoryMetadataStore()
    first = own(store, 1)
    late = partial(store.put, "/node", b"late", MUST_NOT_EXIST, guard=first.guard)  # sent, and still in transit
    own(store, 2)
    with pytest.raises(Fenced):
        late()
    assert store.get("/node") is None


def test_a_guard_that_the_caller_names_replaces_that_of_the_process() -> None:
    store = MemoryMetadataStore()
    owned = own(store, 1)
    store.put("/other", b"", MUST_NOT_EXIST)
    store.delete(owned.guard, 0)
    assert owned.put("/node", b"", MUST_NOT_EXIST, guard="/other") == 0
    owned.delete("/node", 0, guard="/other")
    store.put(owned.guard, b"", MUST_NOT_EXIST)
    with pytest.raises(Fenced, match="/missing"):
        owned.put("/node", b"", MUST_NOT_EXIST, guard="/missing")
    with pytest.raises(Fenced, match="/missing"):
        owned.delete("/other", 0, guard="/missing")


def test_closing_closes_the_store_and_leaves_the_guard(tmp_path: Path) -> None:
    owned = own(SqliteMetadataStore(tmp_path / "metadata.db"), 1)
    owned.close()
    with pytest.raises(MetadataUnavailable):
        owned.get("/node")
    with closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        assert guards(store) == (guard_of(1),)
