from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest
from tests.support.offloaded import HOUR_MS, INSTANCE, OffloadedTopic, random_entries

from afterglow.errors import CorruptMetadata
from afterglow.format.proto.afterglow_pb2 import DeleteRecord, ObjectLocation, UploadRecord
from afterglow.metadata.paths import managed_ledger_path
from afterglow.storage.wrapper import CountingStore
from afterglow.verify import FindingKind, verify

if TYPE_CHECKING:
    from afterglow.storage import ObjectStore
    from afterglow.storage.store import Upload


def reported(world: OffloadedTopic, age_ms: int = 2 * HOUR_MS) -> list[tuple[FindingKind, str | None]]:
    return [(found.kind, found.object) for found in world.verify(age_ms=age_ms)]


def keys(store: ObjectStore) -> list[str]:
    return [info.key for info in store.list()]


def orphan(world: OffloadedTopic) -> str:
    """An object and its index that no metadata names."""
    key = f"{uuid4()}-ledger-77"
    world.ledger(77, random_entries(3))
    world.write_v1(key, 77)
    return key


def intend_to_delete(world: OffloadedTopic, key: str) -> None:
    uuid, _, ledger = key.partition("-ledger-")
    record = DeleteRecord(version=1, uuid=uuid, location=ObjectLocation(key=key), instance=INSTANCE)
    if ledger:
        record.ledger_id = int(ledger)
    world.put_record(world.paths.delete(world.topic, UUID(uuid)), record)


def upload_record(world: OffloadedTopic, key: str, upload_id: str) -> None:
    record = UploadRecord(version=1, uuid=key, location=ObjectLocation(key=key), upload_id=upload_id)
    world.put_record(world.paths.upload(world.topic, UUID(key)), record)


# --- objects ---


def test_an_object_of_ours_that_no_metadata_names_is_an_orphan_after_the_grace_period(
    any_world: OffloadedTopic,
) -> None:
    key = orphan(any_world)
    pair = [key, f"{key}-index"]
    assert reported(any_world) == [(FindingKind.ORPHAN_OBJECT, each) for each in pair]
    assert reported(any_world, age_ms=HOUR_MS // 2) == [(FindingKind.PENDING, each) for each in pair]
    assert [found.topic for found in any_world.verify()] == ["persistent://public/default/t"] * 2


def test_the_orphan_of_a_deleted_topic_is_found(world: OffloadedTopic) -> None:
    world.write("0f0e0d0c-0000-4000-8000-000000000000", b"x", b"y")
    assert [kind for kind, _ in reported(world)] == [FindingKind.ORPHAN_OBJECT] * 2


def test_a_segment_whose_record_alone_is_left_is_an_orphan(world: OffloadedTopic) -> None:
    world.ledger(1, random_entries(5))
    key = world.segment([(1, 0, 4)])
    world.edit(lambda info: info.ledgerInfo.pop())
    assert reported(world) == [(FindingKind.ORPHAN_OBJECT, key), (FindingKind.ORPHAN_OBJECT, f"{key}-index")]


def test_objects_of_others_are_foreign(any_world: OffloadedTopic) -> None:
    any_world.write("0f0e0d0c-0000-4000-8000-000000000000-ledger-1", b"x", b"y", instance="theirs")
    any_world.tier.put("holiday.jpg", b"z")
    assert [kind for kind, _ in reported(any_world)] == [FindingKind.FOREIGN] * 3
    assert reported(any_world) == reported(any_world, age_ms=0)


def test_an_object_of_ours_with_a_malformed_topic_is_still_classified(world: OffloadedTopic) -> None:
    metadata = dict(world.object_metadata()) | {"ManagedLedgerName": "../../x"}
    world.tier.put(str(uuid4()), b"x", metadata=metadata)
    [found] = world.verify()
    assert (found.kind, found.topic) == (FindingKind.ORPHAN_OBJECT, None)


def test_objects_with_a_pending_delete_are_not_findings(world: OffloadedTopic) -> None:
    intend_to_delete(world, orphan(world))
    world.ledger(1, random_entries(5))
    key = world.segment([(1, 0, 4)])
    world.edit(lambda info: info.ledgerInfo.pop())
    intend_to_delete(world, key)
    assert reported(world) == []


def test_objects_of_a_segment_that_is_being_uploaded_are_not_findings(world: OffloadedTopic) -> None:
    key = str(uuid4())
    upload_record(world, key, "")
    world.write(key, b"x", b"y")
    assert reported(world) == []


def test_an_attempt_that_another_has_replaced_is_an_orphan_unless_it_is_to_be_deleted(world: OffloadedTopic) -> None:
    world.ledger(1, random_entries(5))
    first = world.assign(1)
    world.write_v1(first, 1)
    world.offload(1)
    assert {kind for kind, _ in reported(world)} == {FindingKind.ORPHAN_OBJECT}
    intend_to_delete(world, first)
    assert reported(world) == []


def test_a_named_object_costs_no_request_beyond_its_own_verification(world: OffloadedTopic) -> None:
    for ledger_id in range(20):
        world.ledger(ledger_id, [b"x"])
        world.offload(ledger_id)
    counting = CountingStore(world.tier)
    world.tier = counting
    assert reported(world) == []
    counts = counting.counts()
    assert counts["head"].requests == 40
    assert counts["get"].requests == 20 + 20, "each index, and each object for the deep verification"


# --- uploads ---


def test_uploads_of_others_are_foreign(any_world: OffloadedTopic) -> None:
    for key in ("movie.mkv", f"{uuid4()}-ledger-5"):
        any_world.tier.create_upload(key)
    assert [kind for kind, _ in reported(any_world)] == [FindingKind.FOREIGN] * 2


def begin(world: OffloadedTopic, key: str) -> Upload:
    return world.tier.create_upload(key, metadata=world.object_metadata())


def test_an_upload_of_a_finished_object_is_leaked_once_it_is_old(any_world: OffloadedTopic) -> None:
    any_world.ledger(1, random_entries(5))
    key = any_world.offload(1)
    begin(any_world, key)
    assert reported(any_world) == [(FindingKind.LEAKED_UPLOAD, key)]


def test_a_young_upload_of_a_finished_object_is_pending(world: OffloadedTopic) -> None:
    world.ledger(1, random_entries(5))
    key = world.offload(1)
    begin(world, key)
    assert reported(world, age_ms=0) == [(FindingKind.PENDING, key)]


def test_an_upload_beside_the_recorded_one_is_leaked(world: OffloadedTopic) -> None:
    key = str(uuid4())
    recorded = begin(world, key)
    upload_record(world, key, recorded.upload_id)
    assert reported(world) == []
    begin(world, key)
    assert reported(world) == [(FindingKind.LEAKED_UPLOAD, key)]


def test_uploads_that_may_be_needed_are_not_findings(world: OffloadedTopic) -> None:
    key = str(uuid4())
    upload_record(world, key, "")  # created, but not on record yet
    begin(world, key)
    world.ledger(1, random_entries(5))
    begin(world, world.assign(1))
    going = f"{uuid4()}-ledger-8"
    intend_to_delete(world, going)
    begin(world, going)
    assert reported(world) == []
    assert reported(world, age_ms=0) == []


def test_an_upload_of_unknown_age_is_pending(world: OffloadedTopic) -> None:
    from dataclasses import replace

    world.ledger(1, random_entries(5))
    begin(world, world.offload(1))

    class Ageless(CountingStore):
        def list_uploads(self, prefix: str = "") -> tuple[Upload, ...]:
            return tuple(replace(upload, created_ms=0) for upload in super().list_uploads(prefix))

    world.tier = Ageless(world.tier)
    assert [kind for kind, _ in reported(world)] == [FindingKind.PENDING]


# --- the sweep ---


def furnish(world: OffloadedTopic) -> tuple[set[str], set[str]]:
    """A world with everything in it. Returns the keys to be swept, and those of the uploads to be aborted."""
    world.ledger(1, random_entries(5))
    kept = world.offload(1)
    world.ledger(2, random_entries(5))
    world.segment([(2, 0, 4)])
    world.ledger(3, random_entries(5))
    world.write_v1(world.assign(3), 3)
    world.tier.put("holiday.jpg", b"z")
    world.write(f"{uuid4()}-ledger-1", b"x", b"y", instance="theirs")
    going = f"{uuid4()}-ledger-8"
    world.write(going, b"x", b"y")
    intend_to_delete(world, going)
    world.tier.create_upload("movie.mkv")
    begin(world, kept)
    key = orphan(world)
    return {key, f"{key}-index"}, {kept}


def test_a_dry_run_changes_nothing(any_world: OffloadedTopic) -> None:
    objects, uploads = furnish(any_world)
    before = keys(any_world.tier), any_world.tier.list_uploads()
    swept = any_world.sweep(dry_run=True)
    assert (keys(any_world.tier), any_world.tier.list_uploads()) == before
    assert {item.finding.object for item in swept} == objects | uploads
    assert not any(item.removed for item in swept)


def test_the_sweep_deletes_orphans_and_leaks_and_nothing_else(any_world: OffloadedTopic) -> None:
    objects, uploads = furnish(any_world)
    before = set(keys(any_world.tier))
    swept = any_world.sweep()
    assert {item.finding.object for item in swept} == objects | uploads
    assert all(item.removed for item in swept)
    assert set(keys(any_world.tier)) == before - objects
    assert [upload.key for upload in any_world.tier.list_uploads()] == ["movie.mkv"]
    assert not any(found.kind.is_fault for found in any_world.verify())
    assert any_world.sweep() == []


def test_the_sweep_leaves_what_is_younger_than_the_grace(world: OffloadedTopic) -> None:
    furnish(world)
    before = keys(world.tier), world.tier.list_uploads()
    assert world.sweep(age_ms=HOUR_MS // 2) == []
    assert (keys(world.tier), world.tier.list_uploads()) == before


class CommittedMeanwhile(CountingStore):
    """A store whose listing is followed by a commit that names an object in it."""

    def __init__(self, world: OffloadedTopic, key: str) -> None:
        super().__init__(world.tier)
        self._world = world
        self._key = key

    def head(self, key: str):  # type: ignore[no-untyped-def]  # noqa: ANN201 - as the wrapper
        if key == self._key:
            self._world.assign(77, UUID(key.partition("-ledger-")[0]))
        return super().head(key)


def test_an_object_that_a_commit_names_meanwhile_is_neither_reported_nor_swept(world: OffloadedTopic) -> None:
    key = orphan(world)
    world.tier.delete([f"{key}-index"])
    world.tier = CommittedMeanwhile(world, key)
    assert world.sweep() == []
    assert keys(world.tier) == [key]


def test_nothing_is_swept_while_a_value_of_metadata_cannot_be_read(world: OffloadedTopic) -> None:
    key = orphan(world)
    other = OffloadedTopic(world.tier, world.metadata, "public/default/persistent/other")
    other.put(managed_ledger_path(other.topic), b"\x0a\x7f")
    with pytest.raises(CorruptMetadata):
        world.sweep()
    assert key in keys(world.tier)


def test_a_bucket_that_is_also_reached_below_a_prefix_keeps_what_is_named(world: OffloadedTopic) -> None:
    from afterglow.storage import PrefixedStore

    whole = world.tier
    world.tier = PrefixedStore(whole, "below")
    world.ledger(1, random_entries(5))
    world.offload(1)
    findings = verify(
        world.metadata, world.store, tiers=[whole], instance=INSTANCE, now_ms=2**60, grace_ms=0, deep=False
    )
    assert list(findings) == []
