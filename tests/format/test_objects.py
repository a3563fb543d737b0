from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterglow.errors import InvalidName, WrongVersion
from afterglow.format.blocks import Format
from afterglow.format.objects import (
    ObjectKey,
    check_version,
    get_uuid,
    ledger_uuid,
    named_uuids,
    parse_key,
    set_uuid,
    user_metadata,
)
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo, OffloadContext

UUID_TEXT = "0cfa4ce6-99b6-4e42-a939-7ebe3a1f3a06"


@given(st.builds(ObjectKey, st.uuids(), st.none() | st.integers(0, 10**19 - 1), st.booleans()))
def test_a_key_is_read_as_it_was_written(key: ObjectKey) -> None:
    assert parse_key(str(key)) == key
    assert key.format is (Format.V2 if key.ledger_id is None else Format.V1)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"{UUID_TEXT}-ledger-9", ObjectKey(UUID(UUID_TEXT), 9)),
        (f"{UUID_TEXT}-ledger-9-index", ObjectKey(UUID(UUID_TEXT), 9, index=True)),
        (UUID_TEXT, ObjectKey(UUID(UUID_TEXT))),
        (f"{UUID_TEXT}-index", ObjectKey(UUID(UUID_TEXT), index=True)),
    ],
)
def test_keys_have_pulsars_form(text: str, key: ObjectKey) -> None:
    assert parse_key(text) == key
    assert str(key) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        UUID_TEXT.upper(),
        UUID_TEXT[:-1],
        UUID_TEXT.replace("-", ""),
        f"{UUID_TEXT}\n",
        f"a/{UUID_TEXT}",
        f"{UUID_TEXT}-ledger-",
        f"{UUID_TEXT}-ledger--1",
        f"{UUID_TEXT}-ledger-1-index-index",
        f"{UUID_TEXT}-ledger-٣",  # a digit, but not ours
        f"{UUID_TEXT}-ledger-007",  # another key than ledger 7's
        f"{UUID_TEXT}-ledger-{10**19}",
    ],
)
def test_other_names_are_no_keys(text: str) -> None:
    with pytest.raises(InvalidName, match="not the key of an offloaded object"):
        parse_key(text)


@given(st.text())
def test_any_text_is_the_key_it_says_or_none(text: str) -> None:
    try:
        key = parse_key(text)
    except InvalidName:
        return
    assert str(key) == text


def test_user_metadata_has_pulsars_keys_and_ours_and_the_callers() -> None:
    found = user_metadata(
        "data",
        "public/default/persistent/t",
        cluster="standalone",
        instance="i-1",
        software_version="0.1",
        software_git_sha="abc",
        extra={"colour": "red", "role": "mine"},
    )
    assert found == {
        "s3managedledgeroffloaderformatversion": "1",
        "s3managedledgeroffloadersoftwareversion": "0.1",
        "s3managedledgeroffloadersoftwaregitsha": "abc",
        "pulsarclustername": "standalone",
        "role": "data",
        "ManagedLedgerName": "public/default/persistent/t",
        "afterglowinstance": "i-1",
        "colour": "red",
    }


def test_another_format_version_is_refused_whatever_the_case_of_its_key() -> None:
    check_version("k", {})
    check_version("k", {"S3ManagedLedgerOffloaderFormatVersion": "1"})
    with pytest.raises(WrongVersion, match="object k: format version '2'"):
        check_version("k", {"S3ManagedLedgerOffloaderFormatVersion": "2"})


@given(st.uuids())
def test_a_uuid_is_stored_as_java_stores_it(uuid: UUID) -> None:
    context = OffloadContext()
    assert get_uuid(context) is None
    set_uuid(context, uuid)
    assert get_uuid(OffloadContext.FromString(context.SerializeToString())) == uuid
    assert context.uidMsb == int.from_bytes(uuid.bytes[:8], "big", signed=True)
    assert context.uidLsb == int.from_bytes(uuid.bytes[8:], "big", signed=True)


def test_a_list_names_objects_of_ledgers_and_of_segments_complete_or_not() -> None:
    info = ManagedLedgerInfo()
    whole, segmented, plain = (info.ledgerInfo.add(ledgerId=number) for number in range(3))
    set_uuid(whole.offloadContext, UUID(int=1))
    set_uuid(segmented.offloadContext, UUID(int=2))
    set_uuid(segmented.offloadContext.offloadSegment.add(complete=True), UUID(int=2))
    set_uuid(segmented.offloadContext.offloadSegment.add(), UUID(int=3))
    assert named_uuids(info) == {UUID(int=1), UUID(int=2), UUID(int=3)}
    assert [ledger_uuid(row) for row in (whole, segmented, plain)] == [UUID(int=1), None, None]
