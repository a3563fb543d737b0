"""Objects that Apache Pulsar offloaded, read through Pulsar's metadata: byte-equal to Pulsar's own reader."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from tests.support import golden
from tests.support.oracle import batch_rows

from afterglow.config import BrokerConfig
from afterglow.config.choices import DamagePolicy
from afterglow.errors import CorruptIndex, WrongLength
from afterglow.format.frames import iter_entries
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.read.copies import StorageTier
from afterglow.read.counters import ReadCounters
from afterglow.read.entry_source import TieredEntrySource
from afterglow.read.messages import MessageBatches
from afterglow.read.neighbours import ViewNeighbours
from afterglow.read.ranges import ObjectLocator
from afterglow.read.scan_range import ScanRange
from afterglow.read.tier_reader import TierReader
from afterglow.read.topic_reader import TopicReader, TopicView
from afterglow.testing.memory_hot import MemoryLog
from afterglow.tier.locations import TierLocation, Tiers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.golden import GoldenCase

DAMAGED = {"oversize", "streaming_v2_manyblocks"}
CASES = {name: case for name, case in golden.cases().items() if name != "fs_mapfile"}
WHOLE = [name for name in CASES if name not in DAMAGED]


@pytest.fixture(params=[1, 100_000, 1 << 20], ids=["small buffer", "odd buffer", "stock buffer"])
def buffer_bytes(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


def reader(case: GoldenCase, tier: Path, policy: BrokerConfig) -> TopicReader:
    """A reader of a topic of which only the tier has anything."""
    case.unpack(tier)
    location = TierLocation("filesystem", str(tier))
    info = parse_managed_ledger(case.stored_list())
    hot = MemoryLog()
    config = BrokerConfig(
        offload_scan_read_buffer_size_in_bytes=policy.managed_ledger_offload_read_buffer_size_in_bytes
    )
    source = TieredEntrySource(
        "public/default/persistent/t",
        hot,
        TierReader(Tiers(), config, ObjectLocator(explicit=location)),
        lambda: policy,
        ReadCounters(),
    )
    return TopicReader(TopicView.pin("public/default/persistent/t", info, hot), source)


def found_entries(topic: TopicReader, *, scan: bool) -> Iterator[tuple[int, int, bytes]]:
    for served in topic.read(scan=scan):
        assert served.tier is StorageTier.TIERED
        for entry_id, data in iter_entries(served.run.data, served.run.frames):
            yield served.run.ledger_id, entry_id, bytes(data)


@pytest.mark.parametrize("scan", [False, True], ids=["read", "scan"])
@pytest.mark.parametrize("name", WHOLE)
def test_every_message_is_what_pulsars_reader_saw(name: str, tmp_path: Path, buffer_bytes: int, *, scan: bool) -> None:
    case = CASES[name]
    topic = reader(case, tmp_path, BrokerConfig(managed_ledger_offload_read_buffer_size_in_bytes=buffer_bytes))
    expected = case.messages()
    if expected is None:
        digests = [
            {"ledgerId": ledger, "entryId": entry_id, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for ledger, entry_id, data in found_entries(topic, scan=scan)
        ]
        assert digests == case.entries()
        return
    batches = MessageBatches("t", ScanRange(), neighbours=ViewNeighbours(topic))
    seen = {
        (row["ledger_id"], row["entry_id"], row["batch_index"]): hashlib.sha256(row["value"] or b"").hexdigest()
        for served in topic.read(scan=scan)
        for batch in batches.of(served)
        for row in batch_rows(batch)
    }
    wanted = {(item["ledgerId"], item["entryId"], item["batchIndex"]): item["sha256"] for item in expected}
    assert seen == wanted


@pytest.mark.parametrize(
    ("name", "error", "kept"),
    [
        ("oversize", CorruptIndex, 0),  # the index names a block that was never written
        ("streaming_v2_manyblocks", WrongLength, 88),  # blocks after the first are not at the offsets in the index
    ],
)
def test_what_pulsar_wrote_wrongly_is_an_error_or_skipped(
    name: str, error: type[Exception], kept: int, tmp_path: Path
) -> None:
    if name not in CASES:
        pytest.skip(f"{name} is not among the small cases; {golden.ENVIRONMENT} names the directory of the full set")
    with pytest.raises(error):
        list(reader(CASES[name], tmp_path, BrokerConfig()).read())
    lenient = reader(CASES[name], tmp_path, BrokerConfig(damaged_data_policy=DamagePolicy.SKIP_AND_REPORT))
    found = list(found_entries(lenient, scan=True))
    assert [entry_id for _, entry_id, _ in found[:kept]] == list(range(kept))
    digests = {(item["ledgerId"], item["entryId"]): item["sha256"] for item in CASES[name].entries() or ()}
    assert all(digests[ledger, entry_id] == hashlib.sha256(data).hexdigest() for ledger, entry_id, data in found)
