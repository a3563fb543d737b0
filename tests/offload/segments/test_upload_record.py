"""The record of a segment's upload: one owner, no change lost, and every unknown outcome settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.faults import Fault, FaultRule, FaultyMetadataStore

from afterglow.errors import CorruptMetadata, Fenced
from afterglow.format.proto.afterglow_pb2 import UploadRecord
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.offload.segments.records import parse_upload
from afterglow.offload.segments.upload_record import UploadRecordNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.metadata.store import MetadataStore

PATH = "/afterglow/uploads/t/u"


def owned() -> None:
    """The topic is owned here."""


def fenced() -> None:
    raise Fenced("for a test")


def new_node(store: MetadataStore, epoch: int = 1) -> UploadRecordNode:
    """The node of an owner; made with epoch 1 if none exists."""
    node = UploadRecordNode(store, PATH, epoch)
    if not node.take_over(owned):
        node.create(UploadRecord(version=1, uuid="u", owner_epoch=epoch))
    return node


def stored(store: MetadataStore) -> UploadRecord:
    found = store.get(PATH)
    assert found is not None
    return parse_upload(found.value, PATH)


def setting(**fields: object) -> Callable[[UploadRecord], None]:
    def edit(record: UploadRecord) -> None:
        for name, value in fields.items():
            setattr(record, name, value)

    return edit


def test_a_change_that_meets_another_of_the_same_owner_is_made_on_top_of_it() -> None:
    store = MemoryMetadataStore()
    one, other = new_node(store), new_node(store)
    one.update(setting(upload_id="x"))
    other.update(setting(attempts=3))
    assert (stored(store).upload_id, stored(store).attempts) == ("x", 3)


def test_a_fenced_owner_can_neither_change_nor_delete_the_record() -> None:
    store = MemoryMetadataStore()
    before = new_node(store)
    new_node(store, epoch=2)
    for change in (lambda: before.update(setting(attempts=3)), before.delete, lambda: before.take_over(fenced)):
        with pytest.raises(Fenced):
            change()
    assert (stored(store).owner_epoch, stored(store).attempts) == (2, 0)


def test_the_record_of_a_topics_earlier_life_is_taken_over_whatever_its_epoch() -> None:
    """Epochs begin with the time of day, which may have been set back before the topic was created anew."""
    store = MemoryMetadataStore()
    new_node(store, epoch=7)
    node = new_node(store, epoch=5)
    assert stored(store).owner_epoch == 5
    node.delete()
    assert store.get(PATH) is None


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.ERROR_AFTER])
def test_a_change_of_unknown_outcome_is_settled_by_reading(fault: Fault) -> None:
    inner = MemoryMetadataStore()
    new_node(inner)
    node = new_node(FaultyMetadataStore(inner, [FaultRule(fault, frozenset({"put"}))]))
    node.update(setting(attempts=3))
    assert stored(inner).attempts == 3
    node.update(setting(upload_id="x"))
    assert (stored(inner).upload_id, stored(inner).attempts) == ("x", 3)


def test_a_deleted_record_is_not_created_again_by_a_change() -> None:
    store = MemoryMetadataStore()
    one, other = new_node(store), new_node(store)
    other.delete()
    with pytest.raises(Fenced, match="is deleted"):
        one.update(setting(attempts=3))
    assert store.get(PATH) is None


def test_a_record_that_a_newer_release_wrote_is_left_alone() -> None:
    store = MemoryMetadataStore()
    new_node(store).update(setting(version=2))
    before = store.get(PATH)
    with pytest.raises(CorruptMetadata, match="version 2"):
        new_node(store, epoch=2)
    assert store.get(PATH) == before
