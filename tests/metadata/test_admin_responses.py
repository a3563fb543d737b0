"""Conversion of a Pulsar admin API's responses to records, and invalid responses."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from afterglow.errors import CorruptMetadata
from afterglow.format.objects import get_uuid
from afterglow.format.position import Position
from afterglow.metadata.admin_responses import last_confirmed, ledger_list, schema_versions

UUIDS = [f"0e03dee9-c718-4bb5-bc44-4e761a41380{n}" for n in range(3)]


def info_of(*ledgers: dict[str, Any]) -> dict[str, Any]:
    return {"version": 4, "ledgers": list(ledgers), "cursors": {}}


def stats_of(*offloaded: int, last: str = "9:9") -> dict[str, Any]:
    return {"lastConfirmedEntry": last, "ledgers": [{"ledgerId": each, "offloaded": True} for each in offloaded]}


def test_a_ledger_is_offloaded_only_where_the_statistics_say_so() -> None:
    """``isOffloaded`` of the list says that an offload was begun, whether or not it has ended."""
    begun = {"isOffloaded": True, "entries": 10, "size": 100, "timestamp": 5}
    found = ledger_list(
        info_of(
            {"ledgerId": 1, "offloadedContextUuid": UUIDS[0], **begun},
            {"ledgerId": 2, "offloadedContextUuid": UUIDS[1], **begun},
            {"ledgerId": 3, "isOffloaded": False, "timestamp": 7},
        ),
        stats_of(1),
        "t",
    )
    assert [row.offloadContext.complete for row in found.ledgerInfo] == [True, False, False]
    assert [get_uuid(row.offloadContext) for row in found.ledgerInfo] == [UUID(UUIDS[0]), UUID(UUIDS[1]), None]
    assert [row.HasField("entries") for row in found.ledgerInfo] == [True, True, False]


def test_what_is_null_is_absent() -> None:
    absent = {"entries": None, "size": None, "timestamp": None, "offloadedContextUuid": None, "isOffloaded": False}
    (row,) = ledger_list(info_of({"ledgerId": 1, **absent}), stats_of(), "t").ledgerInfo
    assert not row.HasField("entries")
    assert not row.HasField("offloadContext")


def test_the_end_of_a_topic_may_be_before_its_first_entry() -> None:
    assert last_confirmed(stats_of(last="7:-1"), "t") == Position(7, -1)


@pytest.mark.parametrize(
    ("info", "stats"),
    [
        ({}, stats_of()),
        ({"ledgers": 3}, stats_of()),
        (info_of({"entries": 3}), stats_of()),
        (info_of({"ledgerId": "many"}), stats_of()),
        (info_of({"ledgerId": 1, "offloadedContextUuid": "none"}), stats_of()),
        (info_of(), {}),
        (info_of(), {"ledgers": [7]}),
    ],
)
def test_invalid_ledger_lists_are_reported_with_the_topic(info: dict[str, Any], stats: dict[str, Any]) -> None:
    with pytest.raises(CorruptMetadata, match="topic-x: invalid ledger list in the admin API"):
        ledger_list(info, stats, "topic-x")


@pytest.mark.parametrize("stats", [{}, {"lastConfirmedEntry": 3}, {"lastConfirmedEntry": "here"}])
def test_invalid_last_entries_are_reported_with_the_topic(stats: dict[str, Any]) -> None:
    with pytest.raises(CorruptMetadata, match="topic-x: invalid lastConfirmedEntry in the admin API"):
        last_confirmed(stats, "topic-x")


def test_schemas_come_oldest_first_with_their_versions_as_messages_carry_them() -> None:
    rows = [{"version": n, "type": "AVRO", "data": f"{n}", "properties": {"n": str(n)}} for n in (300, 2)]
    older, newer = schema_versions({"getSchemaResponses": rows}, "t")
    assert (older.version, newer.version) == (bytes([0] * 7 + [2]), bytes([0] * 6 + [1, 44]))
    assert (newer.type, newer.definition, newer.properties) == ("AVRO", b"300", {"n": "300"})


@pytest.mark.parametrize(
    "row", [{}, {"version": -1, "type": "JSON", "data": ""}, {"version": 1, "type": "KEY_VALUE", "data": "{"}, None]
)
def test_invalid_schemas_are_reported_with_the_topic(row: Any) -> None:
    with pytest.raises(CorruptMetadata, match="topic-x: invalid schemas in the admin API"):
        schema_versions({"getSchemaResponses": [row]}, "topic-x")
