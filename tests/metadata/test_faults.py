from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from afterglow.errors import CommitUnknown, ConfigError, MetadataUnavailable, VersionConflict
from afterglow.metadata.faults import Fault, FaultRule, FaultyMetadataStore, InjectedFault
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.testing.metadata import MetadataStoreContract

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.errors import AfterglowError
    from afterglow.metadata.store import MetadataStore

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


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(ConfigError, match="fetch"):
        FaultRule(Fault.SLOW, operations=frozenset({"fetch"}))


def test_a_slow_call_waits_and_then_succeeds() -> None:
    waited: list[float] = []
    store = FaultyMetadataStore(MemoryMetadataStore(), [FaultRule(Fault.SLOW, delay_s=5.0)], sleep=waited.append)
    assert store.put("/node", b"", MUST_NOT_EXIST) == 0
    assert waited == [5.0]


def test_a_rule_chooses_operation_path_and_time() -> None:
    store = faulty(FaultRule(Fault.ERROR_BEFORE, PUT, path="/a/*", skip=1, times=2))
    outcomes = []
    for path in ("/b/0", "/a/0", "/a/1", "/a/2", "/a/3"):
        try:
            store.put(path, b"", MUST_NOT_EXIST)
            outcomes.append("made")
        except MetadataUnavailable:
            outcomes.append("failed")
    assert outcomes == ["made", "made", "failed", "failed", "made"]


def test_the_same_seed_gives_the_same_faults() -> None:
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
