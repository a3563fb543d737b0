"""Hot copies of ledgers in segments: they go only when every object that holds a piece of them has been looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from afterglow.format.index import decode_index, encode_index
from afterglow.format.objects import INDEX_SUFFIX
from afterglow.format.offload_context import get_uuid
from afterglow.format.position import EARLIEST, LATEST
from afterglow.format.proto.afterglow_pb2 import SegmentRecord
from afterglow.metadata.paths import AfterglowPaths
from afterglow.offload.explain import LedgerState
from afterglow.storage.counting import CountingStore
from afterglow.testing.ledgers import TOPIC, settings
from afterglow.testing.offloads import OffloadWorld

if TYPE_CHECKING:
    from collections.abc import Callable

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
    while read := ledger.read(position, 1000, 1 << 20):
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


def test_a_segment_that_several_ledgers_share_is_looked_at_once(new_world: NewWorld) -> None:
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
        (short, "holds of ledger 2 by its index the entries none, and by the list 0 to"),
        (unrecorded, "nobody knows where it is"),
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
    # Ledger 1 is damaged too, unless only the piece of ledger 2 is.
    assert world.hot.ledgers() == ((2, 4) if damage is short else (1, 2, 4))
    told = world.service.explain(TOPIC)[1]
    assert told.state is LedgerState.TO_BE_FREED
    assert words in (told.error or "")
    assert entries(world.open()) == before
