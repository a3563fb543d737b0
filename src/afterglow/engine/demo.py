"""The main job, as far as it is built: a ledger goes to a tier in both formats and comes back through Spark."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from afterglow import __version__
from afterglow.engine.sample import START_MS, sample_entries, sample_messages
from afterglow.format.assemble import assemble_blocks, index_v1, index_v2
from afterglow.format.frames import frame_entries, scan_frames
from afterglow.format.index import encode_index
from afterglow.format.ledger_metadata import ClosedLedger
from afterglow.format.objects import INDEX_SUFFIX, ObjectKey, user_metadata
from afterglow.format.plan import plan_v1, plan_v2
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.read.inspect import inspect_object
from afterglow.spark.object_scan import read_objects
from afterglow.spark.session import local_session
from afterglow.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from afterglow.engine.sample import Sent
    from afterglow.format.frames import Frames
    from afterglow.format.index import ObjectIndex
    from afterglow.storage.store import ObjectStore

_LEDGER = 1
_MANAGED_LEDGER = "public/default/persistent/demo"
_SEED = 20
# Small, so that the demo's few megabytes make several blocks of each kind; 5 MiB is the least that Pulsar allows.
_V1_BLOCK_BYTES = 5 << 20


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What came back."""

    sent: int
    differences: tuple[str, ...]
    """Empty if every message came back as it was sent."""


def run_demo(home: Path, messages: int, say: Callable[[str], None]) -> DemoResult:
    """Write a ledger of messages to a local tier as a V1 and a V2 object, and read both back through a Spark job.

    Args:
        home: Directory for the tier; made if absent.
        messages: How many messages.
        say: Takes a line for each step.

    Raises:
        AfterglowError: A step failed.
    """
    tier = (home / "tier").absolute().as_uri()
    store = open_store(tier, create=True)
    sent = sample_messages(messages, _SEED)
    data = frame_entries(sample_entries(sent, _SEED))
    frames = scan_frames(data, 0)
    say(f"made {messages} messages in {len(frames)} entries, {len(data):,} bytes, batched and not, in every codec")

    keys = [_write_v1(store, data, frames), _write_v2(store, data, frames)]
    differences: list[str] = []
    for key in keys:
        inspection = inspect_object(store, key)
        blocks = list(inspection.blocks())
        assert inspection.index is not None
        say(
            f"{inspection.index.format.name}: {inspection.info.size_bytes:,} bytes in {len(blocks)} blocks, "
            f"{sum(block.statistics.entries for block in blocks)} entries  {key}"
        )
        differences.extend(map(str, inspection.damage))

    started = time.monotonic()
    with local_session() as session:
        say(f"Spark {session.version} is up after {time.monotonic() - started:.1f} s")
        for key in keys:
            started = time.monotonic()
            table = read_objects(session, tier, [key])
            say(f"read {table.num_rows} messages through Spark in {time.monotonic() - started:.1f} s  {key}")
            differences.extend(f"{key}: {difference}" for difference in compare(sent, table))
    return DemoResult(len(sent), tuple(differences))


def compare(sent: Sequence[Sent], table: pa.Table) -> list[str]:
    """What differs between the messages that were sent and a table of those that came back."""
    if table.num_rows != len(sent):
        return [f"{len(sent)} messages were sent, {table.num_rows} came back"]
    columns = ["key", "properties", "event_time", "index", "value"]
    rows = zip(*(table.column(name).to_pylist() for name in columns), strict=True)
    wrong = []
    for i, (message, (key, properties, event_time, index, value)) in enumerate(zip(sent, rows, strict=True)):
        event_ms = 0 if event_time is None else round(event_time.timestamp() * 1000)
        expected = (message.key, message.properties, message.event_time_ms, i, message.value)
        if (key, dict(properties), event_ms, index, value) != expected:
            wrong.append(f"message {i} came back changed")
    return wrong


def _write_v1(store: ObjectStore, data: bytes, frames: Frames) -> str:
    plans = plan_v1(frames.offsets, _V1_BLOCK_BYTES)
    blocks, statistics = assemble_blocks(data, frames.offsets, plans)
    ledger = ClosedLedger(len(frames) - 1, frames.payload_bytes, START_MS, _MANAGED_LEDGER)
    return _store(store, ObjectKey(uuid4(), _LEDGER), blocks, index_v1(ledger, plans, statistics))


def _write_v2(store: ObjectStore, data: bytes, frames: Frames) -> str:
    plans = plan_v2(frames.offsets, _LEDGER, 0)
    blocks, statistics = assemble_blocks(data, frames.offsets, plans)
    info = ManagedLedgerInfo.LedgerInfo(
        ledgerId=_LEDGER, entries=len(frames), size=frames.payload_bytes, timestamp=START_MS
    )
    return _store(store, ObjectKey(uuid4()), blocks, index_v2([(info, plans, statistics)]))


def _store(store: ObjectStore, key: ObjectKey, blocks: bytearray, index: ObjectIndex) -> str:
    for role, name, data in (("data", str(key), blocks), ("index", f"{key}{INDEX_SUFFIX}", encode_index(index))):
        metadata = user_metadata(
            role, _MANAGED_LEDGER, cluster="standalone", instance="demo", software_version=__version__
        )
        store.put(name, data, metadata=metadata)
    return str(key)
