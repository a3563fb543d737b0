"""Every object that Pulsar itself wrote is read as Pulsar's own reader reads it, and written again byte by byte."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import golden
from tests.support.assemble import encode_block
from tests.support.oracle import batch_rows, decode_rows

from afterglow.errors import CorruptBlock
from afterglow.format.blocks import Format, plan_v1
from afterglow.format.checks import Damage, block_problems, index_problems, open_block
from afterglow.format.columns import decode_messages
from afterglow.format.frames import frame_entries, iter_entries, scan_frames
from afterglow.format.index import decode_index, encode_index
from afterglow.format.objects import check_version, parse_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.format.index import ObjectIndex

BLOCK_BYTES = 5 * 1024 * 1024
"""Block size that all cases were written with."""

DAMAGED = {"oversize", "streaming_v2_manyblocks"}
CASES = {name: case for name, case in golden.cases().items() if name != "fs_mapfile"}  # another format
WHOLE = [name for name in CASES if name not in DAMAGED]
V1 = [name for name in WHOLE if not name.startswith("streaming")]


def objects(case: golden.GoldenCase) -> Iterator[tuple[int | None, bytes, bytes]]:
    """Ledger id (V1), data and index of each object, in the order of the ledgers."""
    keys = [key for key in map(parse_key, case.objects) if not key.index]
    for key in sorted(keys, key=lambda key: key.ledger_id or 0):
        yield key.ledger_id, case.objects[str(key)], case.objects[f"{key}-index"]


def entries(case: golden.GoldenCase) -> Iterator[tuple[int, int, bytes]]:
    """Ledger id, entry id and bytes of each entry, found by way of the index."""
    for key_ledger, data, index_bytes in objects(case):
        for group, number, start, end in decode_index(index_bytes).extents():
            block = open_block(data[start:end], group.blocks[number].first_entry_id, group.ledger_id)
            assert block.frames.damage is None
            ledger = key_ledger if key_ledger is not None else block.header.ledger_id
            assert ledger is not None
            for entry_id, entry in iter_entries(data[start:end], block.frames):
                yield ledger, entry_id, bytes(entry)


def problems(data: bytes, index: ObjectIndex, ledger_id: int | None) -> Iterator[Damage]:
    yield from index_problems(index, len(data), ledger_id)
    for group, number, start, end in index.extents():
        ledger = ledger_id if group.ledger_id is None else group.ledger_id
        first = group.blocks[number].first_entry_id
        try:
            block = open_block(data[start:end], first, group.ledger_id)
        except CorruptBlock as error:
            yield Damage(ledger, first, str(error))
            continue
        yield from block_problems(data[start:end], block, group, number, whole_ledger=index.format is Format.V1)


def test_the_full_set_of_golden_cases_is_at_hand() -> None:
    if golden.full_set() is None:
        pytest.skip(f"only the small cases are tested; {golden.ENVIRONMENT} names the directory of the full set")
    assert len(CASES) >= 13


@pytest.mark.parametrize("name", CASES)
def test_the_loader_gives_the_bytes_that_were_recorded(name: str) -> None:
    case = CASES[name]
    for item in case.listing:
        data = case.objects[item.key]
        assert (len(data), hashlib.sha256(data).hexdigest()) == (item.size_bytes, item.sha256)
        assert str(parse_key(item.key)) == item.key
        check_version(item.key, item.user_metadata)


@pytest.mark.parametrize("name", [name for name in WHOLE if CASES[name].messages() is not None])
def test_messages_are_those_that_pulsars_reader_saw(name: str) -> None:
    expected = CASES[name].messages()
    assert expected
    rows: list[dict[str, Any]] = []
    for ledger_id, data, index_bytes in objects(CASES[name]):
        for _group, _number, start, end in decode_index(index_bytes).extents():
            block = data[start:end]
            for messages in decode_messages(block, open_block(block).frames, ledger_id or 0, check=True, strict=True):
                rows += batch_rows(messages.batch)
    found = [golden.as_manifest(row) for row in rows]
    if name == "txn":  # only a reader of the whole topic can leave out aborted messages
        seen = {(item["ledgerId"], item["entryId"], item["batchIndex"]) for item in expected}
        aborted = [item for item in found if (item["ledgerId"], item["entryId"], item["batchIndex"]) not in seen]
        found = [item for item in found if item not in aborted]
        assert len(aborted) + len(found) == CASES[name].about["sent"]
    keys = found[0].keys() | {"keyBytesB64", "payloadB64"}
    assert found == [{key: item[key] for key in item if key in keys} for item in expected]


@pytest.mark.parametrize("name", [name for name in WHOLE if CASES[name].messages() is not None])
def test_the_oracle_and_the_columns_agree(name: str) -> None:
    for ledger, entry_id, entry in list(entries(CASES[name]))[:300]:
        framed = frame_entries([entry], entry_id)
        rows = [
            row
            for messages in decode_messages(framed, scan_frames(framed, entry_id), ledger, check=True, strict=True)
            for row in batch_rows(messages.batch)
        ]
        assert rows == decode_rows(entry, ledger, entry_id, check=True)


@pytest.mark.parametrize("name", [name for name in WHOLE if CASES[name].entries() is not None])
def test_entries_have_the_digests_that_were_recorded(name: str) -> None:
    found = [
        {"ledgerId": ledger, "entryId": entry_id, "size": len(entry), "sha256": hashlib.sha256(entry).hexdigest()}
        for ledger, entry_id, entry in entries(CASES[name])
    ]
    assert found == CASES[name].entries()


@pytest.mark.parametrize("name", V1)
def test_v1_objects_written_again_from_their_entries_are_byte_equal(name: str) -> None:
    found = list(entries(CASES[name]))
    for ledger_id, data, index_bytes in objects(CASES[name]):
        framed = frame_entries(entry for ledger, _, entry in found if ledger == ledger_id)
        plans = plan_v1(scan_frames(framed, 0).offsets, BLOCK_BYTES)
        written = b"".join(encode_block(plan.header, framed[plan.start : plan.end]) for plan in plans)
        assert written == data
        index = decode_index(index_bytes)
        assert [(block.first_entry_id, block.part_id, block.offset) for block in index.groups[0].blocks] == [
            (plan.header.first_entry_id, number, plan.offset) for number, plan in enumerate(plans, 1)
        ]


@pytest.mark.parametrize("name", CASES)
def test_indexes_written_again_are_byte_equal(name: str) -> None:
    for _, _, index_bytes in objects(CASES[name]):
        assert encode_index(decode_index(index_bytes)) == index_bytes


@pytest.mark.parametrize("name", WHOLE)
def test_whole_objects_have_no_problems(name: str) -> None:
    for ledger_id, data, index_bytes in objects(CASES[name]):
        assert list(problems(data, decode_index(index_bytes), ledger_id)) == []


@pytest.mark.parametrize(
    ("name", "position"),
    [
        ("oversize", (54, 3)),  # entries 3..6 were never written
        ("streaming_v2_manyblocks", (100, 88)),  # its block is longer than it says, and all that follow are misplaced
    ],
)
def test_what_pulsar_wrote_wrongly_is_recognised_with_its_position(name: str, position: tuple[int, int]) -> None:
    if name not in CASES:
        pytest.skip(f"{name} is not among the small cases; {golden.ENVIRONMENT} names the directory of the full set")
    (((ledger_id, data, index_bytes)),) = objects(CASES[name])
    found = list(problems(data, decode_index(index_bytes), ledger_id))
    assert found[0].detail.startswith("the index says")  # both are longer than their index
    assert (found[1].ledger_id, found[1].entry_id) == position
