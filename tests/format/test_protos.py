from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.message import Message

from afterglow.format.proto import afterglow_pb2, bookkeeper_pb2, managed_ledger_pb2, pulsar_api_pb2

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("AFTERGLOW_SHARED", ROOT.parent / "shared"))
GOLDEN = Path(os.environ.get("AFTERGLOW_GOLDEN", SHARED / "golden"))

Field: TypeAlias = tuple[int, str, str, str, str]
"""Number, name, type, label, default."""


# --- the generated modules -----------------------------------------------------------------------------------------


def test_the_generated_modules_are_what_the_proto_files_give() -> None:
    pytest.importorskip("grpc_tools", reason="the compiler of protobuf is not installed")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/generate_protos.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_generated_modules_load_in_every_release_of_the_runtime() -> None:
    for module in (afterglow_pb2, bookkeeper_pb2, managed_ledger_pb2, pulsar_api_pb2):
        assert "runtime_version" not in Path(str(module.__file__)).read_text()


def test_no_proto_registers_under_a_name_of_another_package() -> None:
    for module in (afterglow_pb2, bookkeeper_pb2, managed_ledger_pb2, pulsar_api_pb2):
        assert module.DESCRIPTOR.name.startswith("afterglow/format/proto/")
        assert module.DESCRIPTOR.package.startswith("afterglow.")


# --- against the facts ---------------------------------------------------------------------------------------------


def facts(name: str) -> str:
    path = SHARED / "facts" / name
    if not path.exists():
        pytest.skip(f"no {path}: set AFTERGLOW_SHARED to the directory that holds facts/")
    return path.read_text(encoding="utf-8")


def tabled_messages(text: str) -> dict[str, set[Field]]:
    """The tables headed by a bold message name: ``| # | `field` | type | label | default |``."""
    messages: dict[str, set[Field]] = {}
    fields: set[Field] = set()
    for line in text.splitlines():
        if heading := re.fullmatch(r"\*\*([\w.]+)\*\*\s*", line):
            fields = messages.setdefault(heading[1], set())
        elif row := re.fullmatch(r"\| (\d+) \| `(\w+)` \| (\w+) \| (\w+) \|\s*(\S*)\s*\|", line):
            default = "" if row[5].startswith("deprecated") else row[5]
            fields.add((int(row[1]), row[2], row[3], row[4], default))
    return messages


def tabled_enums(text: str) -> dict[str, dict[str, int]]:
    return {
        name: {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", values)}
        for name, values in re.findall(r"^\*\*enum ([\w.]+)\*\*: (.*)$", text, re.MULTILINE)
    }


def declared_field(field: FieldDescriptorProto) -> Field:
    type_name = field.type_name.rsplit(".", 1)[-1] or FieldDescriptorProto.Type.Name(field.type)[5:].lower()
    label = FieldDescriptorProto.Label.Name(field.label)[6:].lower()
    return (field.number, field.name, type_name, label, field.default_value)


def declared(
    file: descriptor_pb2.FileDescriptorProto,
) -> tuple[dict[str, set[Field]], dict[str, dict[str, int]]]:
    """All messages and enums of a file, nested ones with a dotted name."""
    messages: dict[str, set[Field]] = {}
    enums = {enum.name: {value.name: value.number for value in enum.value} for enum in file.enum_type}

    def walk(message: descriptor_pb2.DescriptorProto, prefix: str) -> None:
        name = prefix + message.name
        messages[name] = {declared_field(field) for field in message.field}
        enums.update({f"{name}.{e.name}": {v.name: v.number for v in e.value} for e in message.enum_type})
        for nested in message.nested_type:
            walk(nested, f"{name}.")

    for message in file.message_type:
        walk(message, "")
    return messages, enums


def file_proto(module: object) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)  # type: ignore[attr-defined]  # every generated module has one
    return file


@pytest.mark.parametrize(
    ("module", "source", "least_messages", "least_enums"),
    [(managed_ledger_pb2, "managed-ledger-metadata.md", 16, 1), (pulsar_api_pb2, "wire-protocol.md", 48, 13)],
)
def test_every_tabled_message_and_enum_is_declared_exactly_as_tabled(
    module: object, source: str, least_messages: int, least_enums: int
) -> None:
    text = facts(source)
    tabled, enums = tabled_messages(text), tabled_enums(text)
    assert len(tabled) >= least_messages
    assert len(enums) >= least_enums
    messages, declared_enums = declared(file_proto(module))
    assert {name: messages.get(name) for name in tabled} == tabled
    assert {name: declared_enums.get(name) for name in enums} == enums


def test_every_tabled_command_has_its_type_and_the_field_of_the_same_number() -> None:
    rows = re.findall(r"^\| (\w+)=(\d+) \| (\d+) \| `(\w+)` \| (\w+) \|$", facts("wire-protocol.md"), re.MULTILINE)
    assert len(rows) == 44
    messages, enums = declared(file_proto(pulsar_api_pb2))
    expected: set[Field] = {(int(number), field, message, "optional", "") for _, _, number, field, message in rows}
    assert messages["BaseCommand"] - {(1, "type", "Type", "required", "")} == expected
    assert {(name, int(value)) for name, value, *_ in rows} <= set(enums["BaseCommand.Type"].items())


def test_the_ledger_metadata_of_bookkeeper_is_declared_as_tabled() -> None:
    section = facts("offload-format.md").split("### 2.1", 1)[1].split("\n### ", 1)[0]
    rows = re.findall(r"^\| (\d+) \| (\w+) \| ([^|]+) \| (\w*) ?\| ", section, re.MULTILINE)
    fields = {field[0]: field for field in declared(file_proto(bookkeeper_pb2))[0]["LedgerMetadataFormat"]}
    assert sorted(fields) == [int(row[0]) for row in rows] == list(range(1, 13))
    for number, name, described, label in rows:
        field = fields[int(number)]
        assert field[1] == name
        assert field[3] == (label or "repeated")
        if described in {"int32", "int64", "bytes"}:
            assert field[2] == described
    assert fields[5][4] == "OPEN"


# --- bytes ---------------------------------------------------------------------------------------------------------


def command(**fields: object) -> bytes:
    return pulsar_api_pb2.BaseCommand(**fields).SerializeToString()  # type: ignore[arg-type]  # checked by protobuf


def test_ping_and_pong_have_their_known_bytes() -> None:
    types = pulsar_api_pb2.BaseCommand
    assert command(type=types.PING, ping=pulsar_api_pb2.CommandPing()).hex() == "0812920100"
    assert command(type=types.PONG, pong=pulsar_api_pb2.CommandPong()).hex() == "08139a0100"


def test_message_and_broker_entry_metadata_have_their_known_bytes() -> None:
    metadata = pulsar_api_pb2.MessageMetadata(producer_name="p-0", sequence_id=0, publish_time=1_700_000_000_000)
    assert metadata.SerializeToString().hex() == "0a03702d3010001880d095ffbc31"
    broker = pulsar_api_pb2.BrokerEntryMetadata(broker_timestamp=1_700_000_000_123, index=0)
    assert broker.SerializeToString().hex() == "08fbd095ffbc311000"


def test_bookkeeper_ledger_metadata_has_its_known_bytes() -> None:
    form = bookkeeper_pb2.LedgerMetadataFormat
    metadata = form(
        quorumSize=2,
        ensembleSize=3,
        length=30,
        lastEntryId=2,
        state=form.CLOSED,
        segment=[form.Segment(ensembleMember=["b1:3181", "b2:3181", "b3:3181"], firstEntryId=0)],
        digestType=form.CRC32C,
        ackQuorumSize=2,
        ctime=1_700_000_000_000,
        customMetadata=[form.cMetadataMapEntry(key="application", value=b"pulsar")],
    )
    assert metadata.SerializeToString().hex() == (
        "08021003181e20022803321d0a0762313a333138310a0762323a333138310a0762333a333138311000380348025080d095ffbc315a15"
        "0a0b6170706c69636174696f6e120670756c736172"
    )


def test_ledger_info_has_its_known_bytes() -> None:
    info = managed_ledger_pb2.ManagedLedgerInfo.LedgerInfo(ledgerId=7, entries=3, size=30, timestamp=1_700_000_000_000)
    assert info.SerializeToString().hex() == "08071003181e2080d095ffbc31"


def test_the_halves_of_a_uuid_are_signed() -> None:
    context = managed_ledger_pb2.OffloadContext(uidMsb=-1, uidLsb=2**63 - 1)
    assert context.SerializeToString().hex() == "08ffffffffffffffffff0110ffffffffffffffff7f"


def test_a_java_minus_one_arrives_in_a_message_id_as_the_largest_unsigned_number() -> None:
    parsed = pulsar_api_pb2.MessageIdData.FromString(bytes.fromhex("08ffffffffffffffffff0110ffffffffffffffffff01"))
    assert (parsed.ledgerId, parsed.entryId, parsed.partition, parsed.batch_index) == (2**64 - 1, 2**64 - 1, -1, -1)


def test_repeated_numbers_of_pulsar_are_unpacked() -> None:
    assert managed_ledger_pb2.LongListMap(key=1, values=[2, 3]).SerializeToString().hex() == "080110021003"
    assert pulsar_api_pb2.MessageIdData(ledgerId=1, entryId=2, ack_set=[3, 4]).SerializeToString()[-4:].hex() == (
        "28032804"
    )


@pytest.mark.parametrize("number", [50, 63, 70, 81])
def test_a_command_that_is_known_by_name_only_can_be_named(number: int) -> None:
    parsed = pulsar_api_pb2.BaseCommand.FromString(bytes([0x08, number]))
    assert parsed.type == number
    assert pulsar_api_pb2.BaseCommand.Type.Name(parsed.type)


def test_a_command_of_an_unknown_number_lacks_its_required_type() -> None:
    parsed = pulsar_api_pb2.BaseCommand.FromString(bytes([0x08, 120]))
    assert not parsed.HasField("type")
    assert not parsed.IsInitialized()


def test_statistics_of_blocks_are_columns_of_packed_numbers() -> None:
    statistics = afterglow_pb2.BlockStatistics(
        version=1,
        entries=[3],
        bytes=[300],
        min_broker_time=[-1],
        max_broker_time=[-1],
        min_publish_time=[5],
        max_publish_time=[6],
        first_index=[-1],
        last_index=[-1],
        crc32c=[0xE3069283],
        stripe_bytes=16,
        stripe_crc32c=[1],
    )
    assert statistics.SerializeToString().hex() == (
        "0801" "120103" "1a02ac02" "220101" "2a0101" "32010a" "3a010c" "420101" "4a0101" "5204839206e3" "5810"
        "620401000000"
    )  # fmt: skip


def test_an_upload_record_distinguishes_closed_and_open_segments() -> None:
    record = afterglow_pb2.UploadRecord(version=1, begin=afterglow_pb2.Position(ledger_id=7))
    assert not afterglow_pb2.UploadRecord.FromString(record.SerializeToString()).HasField("end")
    record.end.SetInParent()
    assert afterglow_pb2.UploadRecord.FromString(record.SerializeToString()).HasField("end")


def test_a_segment_record_distinguishes_missing_times_from_the_epoch() -> None:
    record = afterglow_pb2.SegmentRecord.FromString(
        afterglow_pb2.SegmentRecord(version=1, min_publish_time=0).SerializeToString()
    )
    assert record.HasField("min_publish_time")
    assert not record.HasField("min_broker_time")


# --- what Pulsar itself wrote --------------------------------------------------------------------------------------


def unknown_fields(message: Message) -> int:
    nested = [value for field, value in message.ListFields() if field.message_type is not None]
    flat = [item for value in nested for item in ([value] if isinstance(value, Message) else value)]
    before = len(message.SerializeToString())
    message.DiscardUnknownFields()
    return before - len(message.SerializeToString()) + sum(unknown_fields(item) for item in flat)


def test_every_managed_ledger_that_pulsar_wrote_plainly_round_trips_byte_for_byte() -> None:
    values = {path.parent.name: path.read_bytes() for path in sorted(GOLDEN.glob("*/mlinfo.bin"))}
    if not values:
        pytest.skip(f"no {GOLDEN}/*/mlinfo.bin: set AFTERGLOW_GOLDEN to the directory of golden cases")
    plain = {name: value for name, value in values.items() if not value.startswith(b"\x47\x78")}
    assert len(plain) >= 10
    for name, value in plain.items():
        info = managed_ledger_pb2.ManagedLedgerInfo.FromString(value)
        assert info.ledgerInfo, name
        assert info.SerializeToString() == value, name
        assert unknown_fields(info) == 0, name
