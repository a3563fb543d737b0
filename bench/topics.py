"""Offloaded topics of any size, made without a server: objects by the writers of the formats, and a home.

A topic is one sample of frames over and over, its entries numbered through. Its ledger has left the hot log.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
from tests.support.assemble import assemble_blocks

from afterglow.catalog.catalog import Catalog
from afterglow.format.blocks import plan_v2
from afterglow.format.frames import FRAME_BYTES, scan_frames
from afterglow.format.index import encode_index, index_v2
from afterglow.format.metadata_envelope import serialize_managed_ledger
from afterglow.format.objects import INDEX_SUFFIX, set_uuid, user_metadata
from afterglow.format.proto.afterglow_pb2 import Position, SegmentRecord
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.ledger.properties import BROKER_TIME, set_text
from afterglow.metadata.paths import STANDALONE, AfterglowPaths, managed_ledger_path
from afterglow.metadata.sqlite import SqliteMetadataStore
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.tier.locations import location_of_url, location_record
from bench.offload import store_of
from bench.samples import TIME_MS, records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from uuid import UUID

    from numpy.typing import NDArray

    from afterglow.format.compression import Codec
    from afterglow.storage.store import ObjectStore
    from afterglow.tier.locations import TierLocation
    from bench.offload import Target

NAME = "public/default/persistent/bench"
SEGMENT = 64 << 20  # as `serve --streaming` sets it
MESSAGE = 1024
SAMPLE = 16 << 20  # bytes of values in a sample


@dataclass(frozen=True, slots=True)
class Stored:
    """A segment in the tier."""

    key: str
    """Of its data object."""
    size_bytes: int
    ledger_id: int
    first: int
    """First entry, inclusive."""
    last: int
    """Last entry, inclusive."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that was made."""

    home: Path
    name: str
    store: ObjectStore
    segments: tuple[Stored, ...]
    """In the topic's order."""
    messages: int

    @property
    def value_bytes(self) -> int:
        """Of all messages, without anything around them."""
        return self.messages * MESSAGE

    @property
    def stored_bytes(self) -> int:
        """Of all data objects."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def entries(self) -> int:
        """In all segments."""
        return sum(segment.last - segment.first + 1 for segment in self.segments)


def location_of(target: Target) -> TierLocation:
    """Where metadata says that objects are."""
    endpoint, region = target.options.get("endpoint", ""), target.options.get("region", "")
    return location_of_url(target.url, endpoint=endpoint, region=region)


def let_in(target: Target) -> None:
    """Put the credentials of a tier where readers of this process and below it look for them."""
    if target.options:
        os.environ["ACCESS_KEY_ID"] = target.options["access_key"]
        os.environ["ACCESS_KEY_SECRET"] = target.options["secret_key"]


def record_topic(home: Path, target: Target, total: int, batch: int, codec: Codec) -> Topic:
    """A topic of ``total`` bytes of records, ``batch`` in an entry, in a new home."""
    frames = records(MESSAGE, min(SAMPLE, total) // MESSAGE // batch * batch, batch, codec)
    sample = np.frombuffer(frames, np.uint8)
    offsets = scan_frames(frames, 0).offsets
    rounds = total // (min(SAMPLE, total))
    per_object = min(max(SEGMENT // sample.size, 1), rounds)
    writer = TopicWriter(home, target)
    count = offsets.size - 1
    for at in range(0, rounds, per_object):
        repeats = min(per_object, rounds - at)
        everywhere = np.append(
            (offsets[:-1] + sample.size * np.arange(repeats)[:, None]).ravel(), sample.size * repeats
        )
        writer.segment(1, at * count, renumbered(np.tile(sample, repeats), everywhere, at * count), everywhere)
    writer.ledger(1)
    return writer.finish(messages=rounds * count * batch)


def renumbered(frames: NDArray[np.uint8], offsets: NDArray[np.int64], first: int) -> NDArray[np.uint8]:
    """Frames whose entries count from ``first`` on, changed in place."""
    ids = np.arange(first, first + offsets.size - 1).astype(">i8").view(np.uint8).reshape(-1, 8)
    frames[(offsets[:-1] + FRAME_BYTES - 8)[:, None] + np.arange(8)] = ids
    return frames


class TopicWriter:
    """Puts the segments of one topic into a tier, and its metadata into a home.

    Args:
        home: A directory that is not there yet.
        target: The tier.
    """

    def __init__(self, home: Path, target: Target) -> None:
        home.mkdir()
        self._home = home
        self.store = store_of(target)
        self._location = location_of(target)
        self._metadata = SqliteMetadataStore(home / "metadata.db")
        Catalog(self._metadata, STANDALONE).ensure_defaults()
        self._info = ManagedLedgerInfo()
        self._row = ManagedLedgerInfo.LedgerInfo()
        self._segments: list[Stored] = []

    def segment(self, ledger_id: int, first: int, frames: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        """Write a segment with entries of one ledger, from ``first`` on."""
        plans = plan_v2(offsets, ledger_id, first)
        data, measured = assemble_blocks(frames.data, offsets, plans)
        row = ManagedLedgerInfo.LedgerInfo(ledgerId=ledger_id, entries=first + offsets.size - 1, size=int(offsets[-1]))
        index = encode_index(index_v2([(row, plans, measured)]))

        def put(key: str) -> None:
            self.store.put(key, data, metadata=user("data"))
            self.store.put(key + INDEX_SUFFIX, index, metadata=user("index"))

        times = [(block.min_broker_time or 0, block.max_broker_time or 0) for block in measured]
        self.location(ledger_id, first, first + offsets.size - 2, len(data), (times[0][0], times[-1][1]), put)

    def location(  # noqa: PLR0917 - what a record holds
        self, ledger_id: int, first: int, last: int, size: int, times: tuple[int, int], put: Callable[[str], None]
    ) -> None:
        """Have a segment's objects written, and record it."""
        uuid = uuid4()
        put(str(uuid))
        self._record(uuid, Position(ledger_id=ledger_id, entry_id=first), last, size, times)
        stub = self._row.offloadContext.offloadSegment.add(complete=True, endEntryId=last)
        set_uuid(stub, uuid)
        self._row.entries = last + 1
        self._row.size += size
        set_text(self._row, BROKER_TIME, str(times[1]))
        self._segments.append(Stored(str(uuid), size, ledger_id, first, last))

    def ledger(self, ledger_id: int) -> None:
        """End a ledger: the segments since the last one are its."""
        self._row.ledgerId, self._row.timestamp = ledger_id, TIME_MS
        self._row.offloadContext.bookkeeperDeleted = True
        self._info.ledgerInfo.append(self._row)
        self._row = ManagedLedgerInfo.LedgerInfo()

    def finish(self, messages: int) -> Topic:
        """Write the topic's list."""
        self._metadata.put(managed_ledger_path(NAME), serialize_managed_ledger(self._info), MUST_NOT_EXIST)
        self._metadata.close()
        return Topic(self._home, "persistent://public/default/bench", self.store, tuple(self._segments), messages)

    def _record(self, uuid: UUID, begin: Position, last: int, size: int, times: tuple[int, int]) -> None:
        record = SegmentRecord(
            version=1,
            uuid=str(uuid),
            location=location_record(self._location, str(uuid)),
            begin=begin,
            end=Position(ledger_id=begin.ledger_id, entry_id=last),
            bytes=size,
            entries=last + 1 - begin.entry_id,
            min_broker_time=times[0],
            max_broker_time=times[1],
            min_publish_time=times[0],
            max_publish_time=times[1],
        )
        self._metadata.put(AfterglowPaths(STANDALONE).segment(NAME, uuid), record.SerializeToString(), MUST_NOT_EXIST)


def user(role: str) -> dict[str, str]:
    """User metadata of an object, as a server puts it."""
    return dict(user_metadata(role, NAME, cluster=STANDALONE, instance="bench", software_version="0"))
