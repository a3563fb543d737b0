"""Frames, digests, metadata and placement of BookKeeper, against golden bytes of real traffic and BookKeeper itself."""

from __future__ import annotations

import ast
import inspect
import io
import struct
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tests.support.bookies import stored_entries, stored_entry

import afterglow.hot.bookkeeper
from afterglow.errors import CorruptBlock, CorruptMetadata, HotLogUnavailable, InvalidFrame, InvalidPosition
from afterglow.format.proto.bookkeeper_pb2 import LedgerMetadataFormat
from afterglow.hot.bookkeeper import BookKeeperCluster, protocol
from afterglow.hot.bookkeeper.entries import (
    DigestType,
    EntryDecoder,
    StoredEntry,
    append_frame,
    detect_decoder,
    split_batch,
)
from afterglow.hot.bookkeeper.ledger_metadata import (
    Fragment,
    LedgerMetadata,
    LedgerState,
    decode_ledger_metadata,
    ledger_path,
)
from afterglow.hot.bookkeeper.protocol import (
    LAST_ENTRY,
    ResponseBuffer,
    encode_batch_read,
    encode_read,
)
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.store import MUST_NOT_EXIST

if TYPE_CHECKING:
    from afterglow.hot.bookkeeper.protocol import (
        Response,
    )

ENTRY_0 = (
    "00000000000000040000000000000000ffffffffffffffff000000000000002ac25172280e018b9c6501000000190a0e7374616e64616c6f6e65"
    "2d312d31100018fcf8f6bb9e3468656c6c6f2d30"
)
ENTRY_1 = (
    "000000000000000400000000000000010000000000000000000000000000005455b435250e0107fcb97d000000190a0e7374616e64616c6f6e65"
    "2d312d3110011882f9f6bb9e3468656c6c6f2d31"
)
ENTRY_2 = (
    "000000000000000400000000000000020000000000000001000000000000007e853e690d0e014fa5947b000000190a0e7374616e64616c6f6e65"
    "2d312d3110021887f9f6bb9e3468656c6c6f2d32"
)
READ_0 = "0000006602020000000000000000000000000004000000000000000000000000" + "00000004" + ENTRY_0[16:]
BATCH = (
    "000001160207000000000000000000000000000400000000000000000000000000000007"
    f"0000004e{ENTRY_0}0000004e{ENTRY_1}0000004e{ENTRY_2}"
)
ABSENT = "00000018020200000000000200000000000000040000000000000003"
NO_LEDGER = "0000001802020000000000010000000005f5e0ff0000000000000000"
BATCH_ABSENT = "000000200207000000000002000000000000000400000000000000030000000000000001"
LAST = f"0000006602020000000000000000000000000004ffffffffffffffff{ENTRY_2}"

OPEN_METADATA = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a7a08021003180020ffffffffffffffffff01280132260a0d31302e30"
    "2e302e313a333138310a0d31302e302e302e323a333138310a04626b2d331000321e0a0d31302e302e302e313a333138310a04626b2d340a0462"
    "6b2d3310a21f3803420048025a150a0b6170706c69636174696f6e120670756c7361726000"
)
CLOSED_METADATA = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a740802100318f9ff0420bf3e280332260a0d31302e302e302e313a33"
    "3138310a0d31302e302e302e323a333138310a04626b2d331000321e0a0d31302e302e302e313a333138310a04626b2d340a04626b2d3310a21f"
    "3803420048025a150a0b6170706c69636174696f6e120670756c7361726000"
)
LINES_METADATA = (
    b"BookieMetadataFormatVersion\t1\n2\n3\n0\n0\t10.0.0.1:3181\t10.0.0.2:3181\tbk-3\n"
    b"4002\t10.0.0.1:3181\tbk-4\tbk-3\n-102\tCLOSED"
)
FRAGMENTS = (
    Fragment(0, ("10.0.0.1:3181", "10.0.0.2:3181", "bk-3")),
    Fragment(4002, ("10.0.0.1:3181", "bk-4", "bk-3")),
)
BOOKIE_INFO = bytes.fromhex("32230a06626f6f6b696510add1021a093132372e302e302e31220a626f6f6b69652d727063")


def parsed(data: bytes, sizes: list[int] | None = None) -> list[Response]:
    """All responses in some bytes, received in parts of some sizes."""
    buffer, found, at = ResponseBuffer(), [], 0
    left = list(sizes or [])
    while at < len(data):
        space = buffer.space()
        part = data[at : at + min(left.pop() if left else len(data), len(space))]
        space[: len(part)] = part
        at += len(part)
        found += list(buffer.received(len(part)))
    return found


# --- frames ---


def test_requests_have_their_golden_bytes() -> None:
    assert encode_read(4, 0).hex() == "000000140202000000000000000000040000000000000000"
    assert encode_read(4, 3).hex() == "000000140202000000000000000000040000000000000003"
    assert encode_read(4, LAST_ENTRY).hex() == "00000014020200000000000000000004ffffffffffffffff"
    assert encode_batch_read(4, 0, 7, 10, 1 << 20).hex() == (
        "00000028020700000000000000000004000000000000000000000000000000070000000a0000000000100000"
    )


def test_responses_are_parsed_from_their_golden_bytes() -> None:
    data = bytes.fromhex(READ_0 + ABSENT + NO_LEDGER + BATCH + BATCH_ABSENT + LAST)
    found = parsed(data)
    assert [each[:5] for each in found] == [
        (False, 0, 4, 0, 0),
        (False, 2, 4, 3, 0),
        (False, 1, 99_999_999, 0, 0),
        (True, 0, 4, 0, 7),
        (True, 2, 4, 3, 1),
        (False, 0, 4, -1, 0),
    ]
    assert found[0].body.hex() == ENTRY_0
    assert found[5].body.hex() == ENTRY_2
    assert [each.hex() for each in split_batch(4, found[3].body, 0)] == [ENTRY_0, ENTRY_1, ENTRY_2]


@given(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-3, (1 << 63) - 1),
    st.integers(0, 1 << 62),
    st.integers(-2, 1 << 40),
    st.integers(-2, 1 << 70),
)
def test_rule_1_no_arguments_make_another_header_than_the_two(
    ledger: int, entry: int, request: int, count: int, size: int
) -> None:
    try:
        assert encode_read(ledger, entry)[:8].hex() == "0000001402020000"
    except InvalidPosition:
        assert entry < -1
    try:
        frame = encode_batch_read(ledger, entry, request, count, size)
    except InvalidPosition:
        assert entry < 0 or count < 1  # -1 and no limit would return entries that are not confirmed
    else:
        assert frame[:8].hex() == "0000002802070000"
        max_count, max_bytes = struct.unpack_from(">iq", frame, 32)
        assert 1 <= max_count <= count
        assert max_bytes >= 1


def test_rule_1_the_code_cannot_name_flags_keys_or_fencing() -> None:
    package = Path(inspect.getfile(afterglow.hot.bookkeeper)).parent
    for path in package.glob("*.py"):
        source = path.read_text()
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.NAME:
                assert not any(word in token.string.lower() for word in ("flag", "fence", "fencing", "master")), token
        headers = {
            node.value & 0xFFFFFFFF
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value >> 24 == 2
        }
        assert headers <= {0x02020000, 0x02070000}
    assert (protocol.READ_HEADER, protocol.BATCH_READ_HEADER) == (0x02020000, 0x02070000)


@given(st.data())
def test_responses_are_the_same_however_the_bytes_arrive(data: st.DataObject) -> None:
    frames = data.draw(st.lists(st.sampled_from([READ_0, ABSENT, BATCH, BATCH_ABSENT, LAST]), max_size=8))
    stream = bytes.fromhex("".join(frames))
    sizes = data.draw(st.lists(st.integers(1, 300), max_size=len(frames) * 4))
    assert parsed(stream, sizes) == [each for frame in frames for each in parsed(bytes.fromhex(frame))]


@pytest.mark.parametrize("size", [1, 127 << 10, 129 << 10, 256 << 10, 5 << 20])
def test_large_responses_arrive_whole_between_small_ones(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    large = struct.pack(">IIiqq", 24 + len(body), 0x02020000, 0, 4, 9) + body
    found = parsed(bytes.fromhex(READ_0) + large + bytes.fromhex(ABSENT))
    assert [each.entry_id for each in found] == [0, 9, 3]
    assert bytes(found[1].body) == body


@pytest.mark.parametrize(
    "data",
    [
        "7fffffff02020000",
        "00000004 02020000",
        "0000001802030000" + "00" * 20,
        "0000001802070000" + "00" * 20,
        "0000001802020001" + "00" * 20,
    ],
)
def test_bytes_that_are_no_response_are_refused(data: str) -> None:
    with pytest.raises(InvalidFrame):
        parsed(bytes.fromhex(data))


# --- entries ---


@pytest.mark.parametrize(
    ("digest", "password", "stored"),
    [
        (
            DigestType.CRC32,
            b"",
            (
                "000000000000001700000000000000010000000000000000000000000000003c000000004b8d10060e013388825c000000120a076c61622d"
                "352d31100118dc9193bc9e347831"
            ),
        ),
        (
            DigestType.HMAC,
            b"",
            (
                "000000000000001300000000000000010000000000000000000000000000003c61ab3813102dc2aeecd074ec7e15a5db26c75e420e0156df"
                "427f000000120a076c61622d342d31100118d48192bc9e347831"
            ),
        ),
        (
            DigestType.HMAC,
            b"s3cret",
            (
                "000000000000001a00000000000000010000000000000000000000000000003cdf5e44a1fb7917d44c979a1d21999f69290109100e016620"
                "2bf3000000120a076c61622d362d311001189e8f94bc9e347831"
            ),
        ),
        (
            DigestType.DUMMY,
            b"",
            (
                "000000000000000f00000000000000010000000000000000000000000000003c0e0106c5cc90000000120a076c61622d332d31100118efee"
                "8fbc9e347831"
            ),
        ),
        (DigestType.CRC32C, b"", ENTRY_1),
    ],
)
def test_rule_3_golden_entries_are_verified(digest: DigestType, password: bytes, stored: str) -> None:
    data = bytes.fromhex(stored)
    ledger_id = struct.unpack_from(">q", data)[0]
    entry = EntryDecoder(ledger_id, digest, password).decode(memoryview(data), 1)
    payload = data.index(b"\x0e\x01", 30)
    assert entry == StoredEntry(1, 0, 84 if ledger_id == 4 else 60, memoryview(data)[payload:])
    if digest not in {DigestType.DUMMY, DigestType.HMAC} or not password:
        assert detect_decoder(ledger_id, memoryview(data)) is not None or digest == DigestType.DUMMY
    if digest == DigestType.HMAC:
        with pytest.raises(CorruptBlock, match="HMAC digest differs"):
            EntryDecoder(ledger_id, digest, b"other").decode(memoryview(data), 1)


@given(st.sampled_from(["CRC32C", "CRC32", "HMAC"]), st.binary(max_size=40), st.data())
def test_rule_3_any_flipped_bit_is_detected(digest: str, payload: bytes, data: st.DataObject) -> None:
    stored = bytearray(stored_entry(7, 5, payload, 100 + len(payload), digest=digest, password=b"p"))
    decoder = EntryDecoder(7, DigestType[digest], b"p")
    assert bytes(decoder.decode(memoryview(bytes(stored)), 5).payload) == payload
    bit = data.draw(st.integers(0, len(stored) * 8 - 1))
    stored[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptBlock):
        decoder.decode(memoryview(stored), 5)


@pytest.mark.parametrize(
    ("stored", "problem"),
    [
        (stored_entry(8, 5, b"x", 9, digest="DUMMY"), "says that it is 8:5"),
        (stored_entry(7, 6, b"x", 9, digest="DUMMY"), "says that it is 7:6"),
        (stored_entry(7, 5, b"x", 9, digest="DUMMY", last_confirmed=5), "says that entry 5 was confirmed before it"),
        (stored_entry(7, 5, b"x", 9, digest="DUMMY", last_confirmed=-2), "says that entry -2 was confirmed before it"),
        (stored_entry(7, 5, b"xyz", 2, digest="DUMMY"), "exceed the ledger's length of 2"),
        (stored_entry(7, 5, b"", 2)[:30], "only 30 bytes"),
    ],
)
def test_rule_3_ids_lac_and_length_are_verified_without_a_digest_too(stored: bytes, problem: str) -> None:
    with pytest.raises(CorruptBlock, match=problem):
        EntryDecoder(7, DigestType.DUMMY).decode(memoryview(stored), 5)


def test_the_lengths_of_consecutive_entries_must_fit() -> None:
    entries = [StoredEntry(0, -1, 3, memoryview(b"abc")), StoredEntry(1, 0, 9, memoryview(b"de"))]
    frames = bytearray()
    append_frame(frames, 7, entries[0], 0)
    with pytest.raises(CorruptBlock, match="7 bytes precede it by its length, 3 by that of the one before"):
        append_frame(frames, 7, entries[1], 3)
    assert bytes(frames) == b"\0\0\0\3" + bytes(8) + b"abc"


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.integers(0, 200))
def test_a_batch_of_any_length_is_split_or_refused(payloads: list[bytes], cut: int) -> None:
    entries = stored_entries(7, payloads)
    body = b"".join(struct.pack(">i", len(each)) + each for each in entries)
    assert [bytes(each) for each in split_batch(7, memoryview(body), 0)] == entries
    borders = [sum(4 + len(each) for each in entries[:n]) for n in range(len(entries) + 1)]
    if cut == 0 or (cut < len(body) and cut not in borders):
        with pytest.raises(CorruptBlock, match="its size does not fit the response"):
            split_batch(7, memoryview(body)[:cut], 0)


# --- metadata ---


def test_golden_metadata_of_all_versions() -> None:
    found = decode_ledger_metadata(OPEN_METADATA)
    assert found == LedgerMetadata(3, 2, 2, LedgerState.OPEN, -1, 0, FRAGMENTS, DigestType.CRC32C, b"")
    closed = decode_ledger_metadata(CLOSED_METADATA)
    assert closed == LedgerMetadata(3, 2, 2, LedgerState.CLOSED, 7999, 81_913, FRAGMENTS, DigestType.CRC32C, b"")
    lines = decode_ledger_metadata(LINES_METADATA)
    assert lines == LedgerMetadata(3, 2, 2, LedgerState.IN_RECOVERY, -1, 0, FRAGMENTS, None, b"")
    opened = LINES_METADATA.removesuffix(b"-102\tCLOSED")
    assert decode_ledger_metadata(opened).state == LedgerState.OPEN
    ended = decode_ledger_metadata(opened.replace(b"3\n0\n", b"3\n81913\n") + b"7999\tCLOSED")
    assert (ended.state, ended.last_entry, ended.length) == (LedgerState.CLOSED, 7999, 81_913)
    message = LedgerMetadataFormat.FromString(CLOSED_METADATA[31:])
    text = b"BookieMetadataFormatVersion\t2\n" + text_format.MessageToString(message).encode()
    assert decode_ledger_metadata(text) == closed


def test_the_password_is_not_shown() -> None:
    assert "s3cret" not in repr(LedgerMetadata(1, 1, 1, LedgerState.OPEN, -1, 0, (), DigestType.HMAC, b"s3cret"))


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"something",
        b"BookieMetadataFormatVersion\tx\n",
        b"BookieMetadataFormatVersion\t9\n",
        b"BookieMetadataFormatVersion\t3\n",
        OPEN_METADATA[:-1],
        b"BookieMetadataFormatVersion\t2\nnot a message",
        b"BookieMetadataFormatVersion\t1\n2\n3\n0\n",
        LINES_METADATA.replace(b"\tbk-4", b""),
        LINES_METADATA.replace(b"4002", b"0"),
        LINES_METADATA.replace(b"1\n2\n3", b"1\n4\n3"),
    ],
)
def test_metadata_that_does_not_parse_is_corrupt(stored: bytes) -> None:
    with pytest.raises(CorruptMetadata):
        decode_ledger_metadata(stored)


@given(st.binary(max_size=80))
def test_no_bytes_behind_the_version_raise_another_error(rest: bytes) -> None:
    for version in (b"1", b"2", b"3"):
        try:
            decode_ledger_metadata(b"BookieMetadataFormatVersion\t" + version + b"\n" + rest)
        except CorruptMetadata:
            continue


@pytest.mark.parametrize(
    ("layout", "ledger_id", "path"),
    [
        ("", 1_234_567, "/ledgers/00/0123/L4567"),
        ("", 2_147_483_647, "/ledgers/000/0000/0021/4748/L3647"),
        ("", 2_147_483_646, "/ledgers/21/4748/L3646"),
        ("org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory", 1_234_567, "/ledgers/00/0123/L4567"),
        ("LongHierarchicalLedgerManagerFactory", 1_234_567, "/ledgers/000/0000/0000/0123/L4567"),
        ("LegacyHierarchicalLedgerManagerFactory", 2_147_483_647, "/ledgers/21/4748/L3647"),
        ("FlatLedgerManagerFactory", 1_234_567, "/ledgers/L0001234567"),
    ],
)
def test_paths_of_ledgers(layout: str, ledger_id: int, path: str) -> None:
    assert ledger_path("/ledgers", layout, ledger_id) == path


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(CorruptMetadata, match="unknown layout"):
        ledger_path("/ledgers", "some.OtherFactory", 1)


@given(st.integers(1, 7), st.data())
def test_holders_are_the_bookies_that_the_writer_wrote_to(size: int, data: st.DataObject) -> None:
    quorum = data.draw(st.integers(1, size))
    firsts = sorted(data.draw(st.sets(st.integers(1, 60), max_size=3)) | {0})
    fragments = tuple(Fragment(first, tuple(f"{at}-{n}" for n in range(size))) for at, first in enumerate(firsts))
    metadata = LedgerMetadata(size, quorum, quorum, LedgerState.OPEN, -1, 0, fragments, None)
    written: dict[str, set[int]] = {}
    for entry_id in range(80):
        fragment = max((each for each in fragments if each.first <= entry_id), key=lambda each: each.first)
        for i in range(quorum):
            written.setdefault(fragment.ensemble[(entry_id + i) % size], set()).add(entry_id)
    first, count = data.draw(st.integers(0, 70)), data.draw(st.integers(1, 8))
    _, end = metadata.fragment_at(first)
    assert end == min((each for each in firsts if each > first), default=None)
    if end is None or first + count <= end:
        wanted = set(range(first, first + count))
        assert set(metadata.holders(first, count)) == {name for name, ids in written.items() if wanted <= ids}
    assert set(metadata.replicas(first)) == {name for name, ids in written.items() if first in ids}


# --- the cluster's metadata ---


def cluster_of(nodes: dict[str, bytes]) -> BookKeeperCluster:
    store = MemoryMetadataStore()
    for path, value in nodes.items():
        store.put(path, value, MUST_NOT_EXIST)
    return BookKeeperCluster(store)


def test_ledgers_are_found_with_and_without_a_recorded_layout() -> None:
    default = cluster_of({"/ledgers/00/0000/L0004": OPEN_METADATA})
    assert default.ledger_metadata(4) == decode_ledger_metadata(OPEN_METADATA)
    assert default.ledger_metadata(5) is None
    factory = b"2\norg.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory:1"
    recorded = cluster_of({"/ledgers/LAYOUT": factory, "/ledgers/000/0000/0000/0000/L0004": CLOSED_METADATA})
    assert recorded.ledger_metadata(4) == decode_ledger_metadata(CLOSED_METADATA)


def test_bookie_ids_are_resolved_by_their_registration() -> None:
    cluster = cluster_of(
        {
            "/ledgers/available/bk-four": BOOKIE_INFO,
            "/ledgers/available/readonly/bk-five": BOOKIE_INFO,
            "/ledgers/available/old:3181": b"",
            "/ledgers/cookies/bk-six": b"5\n",
        }
    )
    assert cluster.address("bk-four") == cluster.address("bk-five") == ("127.0.0.1", 43181)
    assert cluster.address("old:3181") == ("old", 3181)
    assert cluster.address("10.0.0.9:3181") == ("10.0.0.9", 3181)  # perhaps it has only lost its session
    assert cluster.bookies() == ("bk-six",)
    with pytest.raises(HotLogUnavailable, match="bookie bk-six is not registered"):
        cluster.address("bk-six")


def test_registrations_without_an_endpoint_are_refused() -> None:
    cluster = cluster_of({"/ledgers/available/a": b"\xff\xff", "/ledgers/available/b": b"\x32\x03\x0a\x01x"})
    for name in ("a", "b"):
        with pytest.raises(HotLogUnavailable, match=f"bookie {name}"):
            cluster.address(name)
