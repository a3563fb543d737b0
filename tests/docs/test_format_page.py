"""docs/format.md agrees with the bytes and fields that the code reads and writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from afterglow.format.blocks import BlockHeader, Format
from afterglow.format.index import decode_index, encode_index
from afterglow.format.objects import user_metadata
from afterglow.format.proto import afterglow_pb2
from afterglow.format.statistics import KEY, STRIPE_BYTES
from afterglow.offload.segments.part_planner import MAX_BLOCKS, MAX_PARTS

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
VECTORS = {name: bytes.fromhex(text) for name, text in re.findall(r"^(V\d \w+)  ([0-9a-f]+)$", PAGE, re.MULTILINE)}


@pytest.mark.parametrize("name", ["BlockStatistics", "ObjectLocation", "SegmentRecord", "UploadRecord", "DeleteRecord"])
def test_a_record_has_the_fields_of_its_table(name: str) -> None:
    table = PAGE.partition(f"| # | {name} |")[2].partition("\n\n")[0]
    documented = {int(number): field for number, field in re.findall(r"^\| (\d+) \| `(\w+)` \|", table, re.MULTILINE)}
    assert documented == {
        field.number: field.name for field in afterglow_pb2.DESCRIPTOR.message_types_by_name[name].fields
    }


@pytest.mark.parametrize("version", Format)
def test_the_index_shown_is_read_and_written_again(version: Format) -> None:
    shown = VECTORS[f"V{version.value} index"]
    index = decode_index(shown)
    assert index.format is version
    assert index.groups[0].last_entry_id == 2
    assert encode_index(index) == shown


@pytest.mark.parametrize("version", Format)
def test_the_header_shown_is_written(version: Format) -> None:
    index = decode_index(VECTORS[f"V{version.value} index"])
    header = BlockHeader(version, index.data_bytes, 0, index.groups[0].ledger_id)
    assert header.encode() == VECTORS[f"V{version.value} block"].ljust(index.header_bytes, b"\0")


def test_user_metadata_has_the_keys_of_its_table() -> None:
    table = PAGE.partition("### User metadata")[2].partition("Keys are compared")[0]
    made = user_metadata("data", "m", cluster="c", instance="i", software_version="1")
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(made)


def test_limits_are_those_of_the_code() -> None:
    assert f"`{KEY}`" in PAGE
    for number in (STRIPE_BYTES, MAX_BLOCKS, MAX_PARTS):
        assert f"{number:,}" in PAGE
