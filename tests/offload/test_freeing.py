"""Hot copies of ledgers in segments: freed only when every object that holds a part of them has been verified."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from tests.support.ledgers import TOPIC, settings
from tests.support.offloads import OffloadWorld

from afterglow.errors import CorruptMetadata, WrongLength, WrongVersion
from afterglow.format.index import decode_index, encode_index
from afterglow.format.objects import FORMAT_VERSION_KEY, INDEX_SUFFIX, get_uuid
from afterglow.format.position import EARLIEST, LATEST
from afterglow.format.proto.afterglow_pb2 import SegmentRecord
from afterglow.metadata.paths import AfterglowPaths
from afterglow.offload.explain import LedgerState
from afterglow.offload.freeing import CopyVerifier
from afterglow.storage.wrapper import CountingStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.storage.store import ObjectStore

    NewWorld = Callable[..., OffloadWorld]


def streamed(new_world: NewWorld, *ledgers: int, **given: object) -> OffloadWorld:
    """A topic whose closed ledgers are all in segments of some 300 bytes; their hot copies may go in a second."""
    world = new_world(
        settings(
            streaming_offload_enabled=True,
            max_offload_segment_size_in_bytes=300,
            managed_ledger_offload_deletion_lag_in_millis=1000,
            managed_ledger_cache_size_mb=0,
        ),
        **given,
    )
    world.topic(*ledgers)
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    return world


def entries(ledger: ManagedLedger) -> list[bytes]:
    found: list[bytes] = []
    position = EARLIEST
    while read := ledger.reader.read(position, 1000, 1 << 20):
        found += [bytes(entry.data) for entry in read]
        position = read[-1].position.next()
    return found


def segments(world: OffloadWorld, ledger_id: int) -> list[UUID]:
    (row,) = [row for row in world.info().ledgerInfo if row.ledgerId == ledger_id]
    return [uuid for item in row.offloadContext.offloadSegment if (uuid := get_uuid(item)) is not None]


def test_hot_copies_of_ledgers_in_segments_go_after_the_lag_and_their_entries_stay(new_world: NewWorld) -> None:
    world = streamed(new_world, 3, 9, 2)
    ledger = world.open()
    before = entries(ledger)
    assert len(segments(world, 2)) > 1
    assert set(segments(world, 1)) & set(segments(world, 2))
    world.clock.advance(1)
    world.run()
    assert world.hot.ledgers() == (1, 2, 3, 4)
    world.clock.advance(0.001)
    world.run()
    assert world.hot.ledgers() == (4,)
    assert entries(ledger) == before
    assert {found.state for found in world.service.explain(TOPIC)[:3]} == {LedgerState.FREED}


def test_the_list_says_that_a_hot_copy_is_gone_before_it_goes(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that plans by the ledger list in between must not choose a copy that is gone."""
    world = streamed(new_world, 3, 9, 2)
    delete = world.hot.delete

    def inspect_and_delete(ledger_id: int) -> None:
        (row,) = [row for row in world.info().ledgerInfo if row.ledgerId == ledger_id]
        assert row.offloadContext.bookkeeperDeleted
        delete(ledger_id)

    monkeypatch.setattr(world.hot, "delete", inspect_and_delete)
    world.clock.advance(2)
    world.run()
    assert world.hot.ledgers() == (4,)


def test_a_segment_that_several_ledgers_share_is_verified_once(new_world: NewWorld) -> None:
    counting: list[CountingStore] = []

    def wrap(store: ObjectStore) -> ObjectStore:
        counting.append(CountingStore(store))
        return counting[-1]

    world = streamed(new_world, 1, 1, 1, wrap=wrap)
    assert len({uuid for ledger_id in (1, 2, 3) for uuid in segments(world, ledger_id)}) == 1
    before = counting[0].counts()["head"].requests
    world.clock.advance(2)
    world.run()
    assert world.hot.ledgers() == (4,)
    assert counting[0].counts()["head"].requests == before + 1


def missing(world: OffloadWorld, key: str) -> None:
    world.tier.delete((key,))


def without_index(world: OffloadWorld, key: str) -> None:
    world.tier.delete((key + INDEX_SUFFIX,))


def truncated(world: OffloadWorld, key: str) -> None:
    data, metadata = bytes(world.tier.get(key)), world.tier.head(key).metadata
    world.tier.put(key, data[:-1], metadata=metadata)


def torn_index(world: OffloadWorld, key: str) -> None:
    data, metadata = bytes(world.tier.get(key + INDEX_SUFFIX)), world.tier.head(key).metadata
    world.tier.put(key + INDEX_SUFFIX, data[:-1], metadata=metadata)


def shifted(world: OffloadWorld, key: str) -> None:
    """Its index parses, and names every entry, but not where the first block begins."""
    index = decode_index(world.tier.get(key + INDEX_SUFFIX))
    first, *others = index.groups
    moved = replace(first, blocks=(replace(first.blocks[0], offset=1), *first.blocks[1:]))
    made = encode_index(replace(index, groups=(moved, *others)))
    world.tier.put(key + INDEX_SUFFIX, made, metadata=world.tier.head(key).metadata)


def short(world: OffloadWorld, key: str) -> None:
    """Whole in itself, but without the last block of the last ledger."""
    index = decode_index(world.tier.get(key + INDEX_SUFFIX))
    group = index.groups[-1]
    end = group.blocks[-1].offset
    groups = index.groups[:-1]
    if len(group.blocks) > 1:
        raise AssertionError("a block of its own was expected")
    made = encode_index(type(index)(index.format, end, groups, index.header_bytes))
    metadata = world.tier.head(key).metadata
    world.tier.put(key, bytes(world.tier.get(key))[:end], metadata=metadata)
    world.tier.put(key + INDEX_SUFFIX, made, metadata=metadata)
    path = AfterglowPaths().segment(TOPIC, UUID(key))
    found = world.metadata.get(path)
    assert found is not None
    record = SegmentRecord.FromString(found.value)
    record.bytes = end
    world.metadata.put(path, record.SerializeToString(), found.version)


def unrecorded(world: OffloadWorld, key: str) -> None:
    path = AfterglowPaths().segment(TOPIC, UUID(key))
    found = world.metadata.get(path)
    assert found is not None
    world.metadata.delete(path, found.version)


def misrecorded(world: OffloadWorld, key: str) -> None:
    path = AfterglowPaths().segment(TOPIC, UUID(key))
    found = world.metadata.get(path)
    assert found is not None
    record = SegmentRecord.FromString(found.value)
    record.bytes += 1
    world.metadata.put(path, record.SerializeToString(), found.version)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (missing, "is missing"),
        (without_index, "has no index"),
        (truncated, "bytes, and its index says"),
        (torn_index, "has a damaged index"),
        (shifted, "has a damaged index: object: the first block begins at 1, not at 0"),
        (short, "of ledger 2, and its index has none"),
        (unrecorded, "the tier location is unknown"),
        (misrecorded, "and its record says"),
    ],
)
def test_a_ledger_keeps_its_hot_copy_while_any_of_its_objects_is_not_as_it_must_be(
    damage: Callable[[OffloadWorld, str], None], words: str
) -> None:
    world = streamed(OffloadWorld, 3, 9, 2)  # not checked at the end: it stays damaged
    before = entries(world.open())
    (shared,) = set(segments(world, 1)) & set(segments(world, 2))
    damage(world, str(shared))
    world.clock.advance(2)
    world.run()
    # Ledger 1 is damaged too, unless only entries of ledger 2 are.
    assert world.hot.ledgers() == ((2, 4) if damage is short else (1, 2, 4))
    explained = world.service.explain(TOPIC)[1]
    assert explained.state is LedgerState.TO_BE_FREED
    assert words in (explained.error or "")
    assert entries(world.open()) == before


# --- the check by itself: the list may say more than it should --------------------------------------------------------


def check_copies(world: OffloadWorld, row: ManagedLedgerInfo.LedgerInfo) -> None:
    CopyVerifier(TOPIC, world.config, world.tiers, world.metadata, AfterglowPaths()).verify(row)


def row_in_segments(world: OffloadWorld) -> ManagedLedgerInfo.LedgerInfo:
    """Ledger 2 of the list, which is in several segments."""
    (row,) = [row for row in world.info().ledgerInfo if row.ledgerId == 2]
    assert len(row.offloadContext.offloadSegment) > 2
    return row


def test_a_ledger_longer_than_its_segments_is_not_whole_in_the_tier(new_world: NewWorld) -> None:
    world = streamed(new_world, 3, 9, 2)
    row = row_in_segments(world)
    check_copies(world, row)
    row.entries += 1
    with pytest.raises(WrongLength, match="segments hold 9 entries of ledger 2, which has 10"):
        check_copies(world, row)


def test_a_hole_before_the_entries_of_a_segment_is_found_though_its_end_is_as_listed(new_world: NewWorld) -> None:
    world = streamed(new_world, 3, 9, 2)
    row = row_in_segments(world)
    del row.offloadContext.offloadSegment[1]
    with pytest.raises(WrongLength, match=r"its index has \d to \d"):
        check_copies(world, row)


def test_a_segment_that_is_not_committed_does_not_count(new_world: NewWorld) -> None:
    world = streamed(new_world, 3, 9, 2)
    row = row_in_segments(world)
    row.offloadContext.offloadSegment[1].complete = False
    with pytest.raises(CorruptMetadata, match="is not in committed segments from entry"):
        check_copies(world, row)


def test_an_object_of_a_format_that_this_release_does_not_read_does_not_count() -> None:
    world = streamed(OffloadWorld, 3, 9, 2)  # not checked at the end: it stays as it is
    row = row_in_segments(world)
    key = str(get_uuid(row.offloadContext.offloadSegment[0]))
    metadata = {**world.tier.head(key).metadata, FORMAT_VERSION_KEY: "7"}
    world.tier.put(key, bytes(world.tier.get(key)), metadata=metadata)
    with pytest.raises(WrongVersion):
        check_copies(world, row)
