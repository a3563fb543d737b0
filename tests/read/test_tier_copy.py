"""Entries from objects of either format: byte-equal, whatever is asked for, and fetched once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afterglow.config import BrokerConfig
from afterglow.format.frames import iter_entries
from afterglow.testing.read_world import ReadWorld, random_entries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.read.copies import ServedRun

MIB = 1 << 20
SIZES = st.lists(
    st.one_of(st.integers(0, 2_000), st.sampled_from([0, 4_000, 4_096 - 12, 400_000, MIB - 12, MIB, 3 * MIB])),
    min_size=1,
    max_size=12,
)
LAYOUTS = ("v1", "v1 of Pulsar", "v2", "v2 of Pulsar")


def offloaded(world: ReadWorld, sizes: list[int], layout: str, block_bytes: int) -> ManagedLedgerInfo.LedgerInfo:
    """A ledger that only the tier has."""
    row = world.add(random_entries(sizes))
    statistics = "Pulsar" not in layout
    if layout.startswith("v1"):
        world.offload_v1(row, block_bytes=block_bytes, statistics=statistics)
    else:
        world.offload_v2([(row, 0, len(sizes) - 1)], block_bytes=block_bytes, statistics=statistics)
    world.free(row)
    return row


def ids_and_entries(runs: Iterable[ServedRun]) -> list[tuple[int, bytes]]:
    """Each entry of runs, with its id."""
    return [(at, bytes(data)) for served in runs for at, data in iter_entries(served.run.data, served.run.frames)]


@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    sizes=SIZES,
    block_bytes=st.sampled_from([4 * MIB, 6 * MIB + 1]),
    buffer_bytes=st.sampled_from([1, 5_000, MIB, 5 * MIB]),
    ranges=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11), st.integers(0, 3 * MIB)), max_size=5),
)
@settings(max_examples=25, deadline=None)
def test_any_range_is_what_was_written(
    layout: str, sizes: list[int], block_bytes: int, buffer_bytes: int, ranges: list[tuple[int, int, int]]
) -> None:
    policy = BrokerConfig(managed_ledger_offload_read_buffer_size_in_bytes=buffer_bytes)
    world = ReadWorld(BrokerConfig(offload_scan_read_buffer_size_in_bytes=buffer_bytes), policy)
    row = offloaded(world, sizes, layout, block_bytes)
    expected = list(enumerate(world.entries[row.ledgerId]))
    assert ids_and_entries(world.source.scan(row, 0, len(sizes) - 1)) == expected
    for one, other, max_bytes in ranges:
        first, last = min(one, other), min(max(one, other), len(sizes) - 1)
        assert ids_and_entries(world.source.walk(row, first, last, max_bytes)) == expected[first : last + 1]
        assert ids_and_entries(world.source.scan(row, first, last)) == expected[first : last + 1]
    world.tiers.close()
