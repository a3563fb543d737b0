from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.clock import ManualClock
from tests.support.faults import Fault, FaultRule, FaultyMetadataStore

from afterglow.config import BrokerConfig
from afterglow.errors import Fenced, MetadataUnavailable, TopicMissing
from afterglow.ledger.properties import OWNER_EPOCH, get_number, get_text, set_text
from afterglow.ledger.topic_metadata import TopicMetadata
from afterglow.metadata.memory import MemoryMetadataStore

if TYPE_CHECKING:
    from afterglow.metadata.store import MetadataStore

PATH = "/managed-ledgers/public/default/persistent/t"
PUT = frozenset({"put"})
GET = frozenset({"get"})


def owner(store: MetadataStore) -> TopicMetadata:
    return TopicMetadata(store, PATH, BrokerConfig(), ManualClock())


def set_mark(metadata: TopicMetadata, value: str) -> None:
    metadata.update(lambda info: set_text(info, "mark", value))


def stored_mark(store: MetadataStore) -> str | None:
    metadata = owner(store)
    return get_text(metadata.open(create=False).info, "mark")


def test_a_topic_that_is_not_there_is_created_only_if_asked() -> None:
    store = MemoryMetadataStore()
    with pytest.raises(TopicMissing):
        owner(store).open(create=False)
    owner(store).open(create=True)
    assert store.get(owner(store).path) is not None


def test_every_opener_raises_the_epoch() -> None:
    store = MemoryMetadataStore()
    epochs = []
    for _ in range(3):
        metadata = owner(store)
        info = metadata.open(create=True).info
        assert get_number(info, OWNER_EPOCH) == metadata.owner_epoch
        epochs.append(metadata.owner_epoch)
    assert epochs == sorted(set(epochs))


def test_a_topic_created_anew_does_not_meet_an_epoch_of_its_earlier_life() -> None:
    store = MemoryMetadataStore()
    clock = ManualClock()
    first = TopicMetadata(store, PATH, BrokerConfig(), clock)
    first.open(create=True)
    first.remove()
    clock.advance(0.001)
    second = TopicMetadata(store, PATH, BrokerConfig(), clock)
    second.open(create=True)
    with pytest.raises(Fenced):
        first.check_owner()
    # The node has the very version that the first owner last saw, so that its next write would fit if not for the
    # epoch in the value: the compare-and-set alone cannot tell them apart.
    assert second.snapshot.version == 0


def test_a_fenced_owner_can_change_nothing() -> None:
    store = MemoryMetadataStore()
    first = owner(store)
    first.open(create=True)
    second = owner(store)
    second.open(create=True)
    with pytest.raises(Fenced):
        set_mark(first, "zombie")
    with pytest.raises(Fenced):
        first.remove()
    set_mark(second, "owner")
    assert stored_mark(store) == "owner"


def test_an_owner_whose_topic_was_deleted_is_fenced_and_does_not_create_it() -> None:
    store = MemoryMetadataStore()
    first = owner(store)
    first.open(create=True)
    second = owner(store)
    second.open(create=True)
    second.remove()
    with pytest.raises(Fenced):
        set_mark(first, "zombie")
    assert store.get(second.path) is None


def test_two_writers_of_one_epoch_both_get_through() -> None:
    store = MemoryMetadataStore()
    first = owner(store)
    first.open(create=True)
    same = owner(store)
    same._epoch = first._epoch
    same.check_owner()
    for number in range(5):
        first.update(lambda info, number=number: set_text(info, f"a{number}", "x"))  # type: ignore[misc]
        same.update(lambda info, number=number: set_text(info, f"b{number}", "x"))  # type: ignore[misc]
    info = owner(store).open(create=False).info
    assert {pair.key for pair in info.properties} == {OWNER_EPOCH} | {f"{who}{n}" for who in "ab" for n in range(5)}


def test_an_edit_that_changes_nothing_is_not_written() -> None:
    store = FaultyMetadataStore(MemoryMetadataStore())
    metadata = owner(store)
    metadata.open(create=True)
    version = metadata.snapshot.version
    assert metadata.update(lambda _info: None).version == version


@pytest.mark.parametrize("fault", [Fault.ERROR_AFTER, Fault.LOST, Fault.CONFLICT])
def test_an_update_succeeds_despite_faults_of_its_put(fault: Fault) -> None:
    store = FaultyMetadataStore(MemoryMetadataStore(), [FaultRule(fault, PUT, skip=1, times=1)])
    metadata = owner(store)
    metadata.open(create=True)
    set_mark(metadata, "one")
    assert len(store.injected) == 1
    assert get_text(metadata.snapshot.info, "mark") == "one"
    assert stored_mark(store) == "one"


@pytest.mark.parametrize("fault", [Fault.ERROR_AFTER, Fault.LOST, Fault.CONFLICT])
def test_opening_succeeds_despite_faults_of_its_put(fault: Fault) -> None:
    store = FaultyMetadataStore(MemoryMetadataStore(), [FaultRule(fault, PUT, times=1)])
    metadata = owner(store)
    metadata.open(create=True)
    set_mark(metadata, "one")
    assert stored_mark(store) == "one"


def test_a_store_that_cannot_be_reached_changes_nothing() -> None:
    store = FaultyMetadataStore(MemoryMetadataStore(), [FaultRule(Fault.ERROR_BEFORE, PUT, skip=1, times=1)])
    metadata = owner(store)
    metadata.open(create=True)
    with pytest.raises(MetadataUnavailable):
        set_mark(metadata, "one")
    assert get_text(metadata.snapshot.info, "mark") is None
    set_mark(metadata, "two")
    assert stored_mark(store) == "two"


@pytest.mark.parametrize(("fault", "applied"), [(Fault.ERROR_AFTER, True), (Fault.LOST, False)])
def test_an_unknown_outcome_is_resolved_by_the_next_update(fault: Fault, applied: bool) -> None:  # noqa: FBT001
    store = FaultyMetadataStore(
        MemoryMetadataStore(),
        [FaultRule(fault, PUT, skip=1, times=1), FaultRule(Fault.ERROR_BEFORE, GET, skip=1, times=1)],
    )
    metadata = owner(store)
    metadata.open(create=True)
    with pytest.raises(MetadataUnavailable):
        set_mark(metadata, "one")
    met: list[str | None] = []
    metadata.update(lambda info: met.append(get_text(info, "mark")))
    assert met == ["one" if applied else None]


@pytest.mark.parametrize("fault", [Fault.ERROR_AFTER, Fault.LOST, Fault.CONFLICT])
def test_removal_succeeds_despite_faults(fault: Fault) -> None:
    store = FaultyMetadataStore(MemoryMetadataStore(), [FaultRule(fault, frozenset({"delete"}), times=1)])
    metadata = owner(store)
    metadata.open(create=True)
    metadata.remove()
    assert store.get(metadata.path) is None
    assert len(store.injected) == 1


def test_a_long_list_is_compressed_as_configured() -> None:
    from afterglow.config.choices import CompressionType

    store = MemoryMetadataStore()
    config = BrokerConfig(
        managed_ledger_info_compression_type=CompressionType.LZ4, managed_ledger_info_compression_threshold_in_bytes=100
    )
    metadata = TopicMetadata(store, PATH, config, ManualClock())
    metadata.open(create=True)
    metadata.update(lambda info: set_text(info, "long", "x" * 1000))
    found = store.get(PATH)
    assert found is not None
    assert found.value[:2] == b"\x47\x78"
    assert get_text(owner(store).open(create=False).info, "long") == "x" * 1000
