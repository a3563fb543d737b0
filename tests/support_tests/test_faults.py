from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.faults import Fault, FaultRule, FaultyMetadataStore, FaultyStore, InjectedFault
from tests.support.metadata import MetadataStoreContract

from afterglow.errors import (
    AfterglowError,
    CommitUnknown,
    ConfigError,
    MetadataUnavailable,
    ObjectMissing,
    StoreThrottled,
    StoreTimeout,
    StoreUnavailable,
    UploadMissing,
    VersionConflict,
)
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.storage import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.metadata.store import MetadataStore

_BODY = bytes(range(256))


def _store(*rules: FaultRule, seed: int = 1) -> FaultyStore:
    inner = MemoryStore()
    inner.put("a", _BODY)
    return FaultyStore(inner, rules, seed=seed)


def test_an_error_before_the_effect_has_none() -> None:
    store = _store(FaultRule(Fault.ERROR_BEFORE))
    with pytest.raises(StoreUnavailable):
        store.put("b", b"")
    assert [info.key for info in store.list()] == ["a"]


def test_an_error_after_the_effect_hides_it() -> None:
    store = _store(FaultRule(Fault.ERROR_AFTER))
    with pytest.raises(StoreTimeout):
        store.put("b", b"")
    assert [info.key for info in store.list()] == ["a", "b"]


def test_a_short_read_gives_a_beginning() -> None:
    data = bytes(_store(FaultRule(Fault.SHORT_READ)).get("a"))
    assert len(data) < len(_BODY)
    assert _BODY.startswith(data)


def test_a_flipped_bit_is_one_bit_and_the_stored_object_stays_good() -> None:
    store = _store(FaultRule(Fault.FLIPPED_BIT))
    damaged = bytes(store.get("a"))
    assert sum((one ^ two).bit_count() for one, two in zip(damaged, _BODY, strict=True)) == 1
    assert store.get("a") == _BODY


def test_no_bit_can_be_taken_from_an_empty_object() -> None:
    store = _store(FaultRule(Fault.SHORT_READ), FaultRule(Fault.FLIPPED_BIT))
    store.put("e", b"")
    assert store.get("e").nbytes == 0
    assert store.get("e").nbytes == 0


def test_missing_hides_objects_and_uploads() -> None:
    store = _store(FaultRule(Fault.MISSING, times=None))
    with pytest.raises(ObjectMissing):
        store.get("a")
    with pytest.raises(ObjectMissing):
        store.head("a")
    upload = store.create_upload("u")
    with pytest.raises(UploadMissing):
        store.upload_part(upload, 1, b"")


def test_slow_waits_and_then_does_it() -> None:
    slept: list[float] = []
    store = FaultyStore(MemoryStore(), [FaultRule(Fault.SLOW, delay_s=3.5)], sleep=slept.append)
    store.put("a", b"x")
    assert slept == [3.5]
    assert bytes(store.get("a")) == b"x"


def test_a_rule_strikes_by_operation_key_and_count() -> None:
    rule = FaultRule(Fault.ERROR_BEFORE, frozenset({"put"}), key="*-index", skip=1, times=2, error=StoreThrottled)
    store = _store(rule)
    outcomes = []
    for key in ("x-index", "x", "y-index", "z-index", "w-index"):
        store.get("a")
        try:
            store.put(key, b"")
        except StoreThrottled:
            outcomes.append(key)
    assert outcomes == ["y-index", "z-index"]
    assert [fault.number for fault in store.injected] == [6, 8]
    assert {fault.fault for fault in store.injected} == {Fault.ERROR_BEFORE}


def test_the_first_rule_that_applies_strikes() -> None:
    store = _store(FaultRule(Fault.MISSING, frozenset({"head"})), FaultRule(Fault.ERROR_BEFORE))
    with pytest.raises(ObjectMissing):
        store.head("a")
    with pytest.raises(StoreUnavailable):
        store.head("a")


def _history(seed: int) -> list[str]:
    store = _store(
        FaultRule(Fault.ERROR_BEFORE, probability=0.3, times=None),
        FaultRule(Fault.FLIPPED_BIT, probability=0.3, times=None),
        seed=seed,
    )
    seen = []
    for _ in range(50):
        try:
            seen.append(bytes(store.get("a")).hex())
        except AfterglowError as error:
            seen.append(str(error))
    return seen


def test_the_same_seed_brings_the_same_faults() -> None:
    assert _history(5) == _history(5)
    assert _history(5) != _history(6)
    assert 5 < sum("injected" in each for each in _history(5)) < 30


def test_the_seed_is_in_the_error_and_in_repr() -> None:
    store = FaultyStore(MemoryStore(), [FaultRule(Fault.ERROR_BEFORE)])
    with pytest.raises(StoreUnavailable, match=f"seed {store.seed}"):
        store.put("a", b"")
    assert f"seed={store.seed}" in repr(store)


@pytest.mark.parametrize(
    ("fault", "operation"), [(Fault.SHORT_READ, "put"), (Fault.MISSING, "delete"), (Fault.ERROR_BEFORE, "gett")]
)
def test_a_rule_that_could_never_strike_is_refused(fault: Fault, operation: str) -> None:
    with pytest.raises(ConfigError, match=operation):
        FaultRule(fault, frozenset({operation}))


def test_a_fault_of_the_other_kind_of_store_is_refused() -> None:
    with pytest.raises(ConfigError, match="lost"):
        FaultyStore(MemoryStore(), [FaultRule(Fault.LOST)])
    with pytest.raises(ConfigError, match="missing"):
        FaultyMetadataStore(MemoryMetadataStore(), [FaultRule(Fault.MISSING)])


# --- metadata ---


PUT = frozenset({"put"})


class TestFaultyContractWithoutRules(MetadataStoreContract):
    @pytest.fixture
    def reopen(self, request: pytest.FixtureRequest) -> Callable[[], MetadataStore]:
        return lambda: FaultyMetadataStore(MemoryMetadataStore(request.node.nodeid))


def faulty(*rules: FaultRule, seed: int = 0) -> FaultyMetadataStore:
    return FaultyMetadataStore(MemoryMetadataStore(), rules, seed=seed)


@pytest.mark.parametrize(
    ("fault", "error", "applied"),
    [
        (Fault.ERROR_BEFORE, MetadataUnavailable, False),
        (Fault.ERROR_AFTER, CommitUnknown, True),
        (Fault.LOST, CommitUnknown, False),
        (Fault.CONFLICT, VersionConflict, False),
    ],
)
def test_a_change_fails_with_or_without_its_effect(fault: Fault, error: type[AfterglowError], *, applied: bool) -> None:
    store = faulty(FaultRule(fault))
    with pytest.raises(error, match="seed 0"):
        store.put("/node", b"x", MUST_NOT_EXIST)
    assert (store.get("/node") is not None) is applied
    assert store.injected == (InjectedFault(1, "put", "/node", fault),)


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER])
def test_a_read_that_fails_is_unavailable(fault: Fault) -> None:
    store = faulty(FaultRule(fault, times=2))
    with pytest.raises(MetadataUnavailable):
        store.get("/node")
    with pytest.raises(MetadataUnavailable):
        store.children("/node")
    assert store.get("/node") is None


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.CONFLICT])
def test_what_can_only_happen_to_a_change_spares_reads(fault: Fault) -> None:
    store = faulty(FaultRule(fault, times=None))
    assert store.get("/node") is None
    assert store.injected == ()
    with pytest.raises(ConfigError, match="get"):
        FaultRule(fault, operations=frozenset({"get"}))


def test_a_slow_call_waits_and_then_succeeds() -> None:
    waited: list[float] = []
    store = FaultyMetadataStore(MemoryMetadataStore(), [FaultRule(Fault.SLOW, delay_s=5.0)], sleep=waited.append)
    assert store.put("/node", b"", MUST_NOT_EXIST) == 0
    assert waited == [5.0]


def test_a_rule_for_metadata_chooses_operation_path_and_time() -> None:
    store = faulty(FaultRule(Fault.ERROR_BEFORE, PUT, key="/a/*", skip=1, times=2))
    outcomes = []
    for path in ("/b/0", "/a/0", "/a/1", "/a/2", "/a/3"):
        try:
            store.put(path, b"", MUST_NOT_EXIST)
            outcomes.append("made")
        except MetadataUnavailable:
            outcomes.append("failed")
    assert outcomes == ["made", "made", "failed", "failed", "made"]


def test_the_same_seed_gives_the_same_faults_of_metadata() -> None:
    def run(seed: int) -> tuple[InjectedFault, ...]:
        store = faulty(
            FaultRule(Fault.ERROR_AFTER, PUT, probability=0.3, times=None),
            FaultRule(Fault.CONFLICT, PUT, probability=0.3, times=None),
            seed=seed,
        )
        for number in range(50):
            try:
                store.put(f"/node{number}", b"", MUST_NOT_EXIST)
            except (CommitUnknown, VersionConflict):
                continue
        return store.injected

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert {injected.fault for injected in run(1)} == {Fault.ERROR_AFTER, Fault.CONFLICT}
