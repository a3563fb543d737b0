"""The messages page's endpoint: windows of decoded messages at any position, in both tiers, within limits."""

from __future__ import annotations

import json
import struct
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.admin.test_access import SECURE, as_role

from afterglow.admin import call as admin_call
from afterglow.admin.message_decoding import MessageDecoder
from afterglow.admin.message_window import Budget, MessagePosition, WindowRequest, read_window
from afterglow.config.choices import ReadPriority
from afterglow.format.compression import Codec, compress
from afterglow.format.entry import encode_batch, encode_entry
from afterglow.format.position import Position
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.admin.conftest import Admin

TOPIC = "persistent/public/default/t"
LEDGER = "public/default/persistent/t"
PUBLISHED_MS = 1_700_000_000_123


def metadata(**fields: Any) -> MessageMetadata:
    return MessageMetadata(**{"producer_name": "p", "sequence_id": 7, "publish_time": PUBLISHED_MS, **fields})


def entry(value: bytes, **fields: Any) -> bytes:
    return encode_entry(metadata(**fields), value)


def batch(*values: bytes, **fields: Any) -> bytes:
    singles = ((SingleMessageMetadata(partition_key=f"k{i}"), value) for i, value in enumerate(values))
    return encode_entry(metadata(num_messages_in_batch=len(values), **fields), encode_batch(singles))


def browse(admin: Admin, **query: object) -> Any:
    return admin.get(f"{TOPIC}/messages?" + "&".join(f"{name.rstrip('_')}={value}" for name, value in query.items()))


def values(answer: Any) -> list[str | None]:
    return [row["value"] for row in answer["messages"]]


@pytest.fixture
def topic(admin: Admin) -> Admin:
    """A broker with an empty topic."""
    admin.do("PUT", TOPIC)
    return admin


def test_a_message_is_shown_with_all_that_it_has(topic: Admin) -> None:
    properties = [{"key": "a", "value": "b"}, {"key": "<img src=x>", "value": "日本"}]
    stored = entry(b"hello", partition_key="k", event_time=5, ordering_key=b"\xff", properties=properties)
    topic.write(stored)
    answer = browse(topic)
    [row] = answer["messages"]
    assert row["value"] == "hello"
    assert row["format"] == "text"
    assert row["key"] == "k"
    assert row["ordering_key"] == "/w=="
    assert row["properties"] == [["a", "b"], ["<img src=x>", "日本"]]
    assert (row["publish_ms"], row["event_ms"], row["sequence_id"], row["producer"]) == (PUBLISHED_MS, 5, 7, "p")
    assert (row["batch_index"], row["index"], row["value_bytes"], row["origin"]) == (-1, 0, 5, "cache")
    assert row["problem"] is None
    assert (answer["has_older"], answer["has_newer"], answer["examined"]) == (False, False, 1)


def test_windows_go_forwards_and_backwards_through_entries_and_batches(topic: Admin) -> None:
    for first in range(0, 30, 3):
        topic.write(batch(*(b"%d" % number for number in range(first, first + 3))))
    everything = [str(number) for number in range(30)]
    seen: list[str | None] = []
    answer = browse(topic, from_="earliest", limit=7)
    assert not answer["has_older"]
    seen += values(answer)
    while answer["has_newer"]:
        answer = browse(topic, from_=answer["end"], limit=7)
        assert answer["has_older"]
        seen += values(answer)
    assert seen == everything
    answer = browse(topic, limit=7)
    assert not answer["has_newer"]
    seen = values(answer)
    while answer["has_older"]:
        answer = browse(topic, before=answer["begin"], limit=7)
        seen = values(answer) + seen
    assert seen == everything


def test_a_link_to_a_message_begins_with_it(topic: Admin) -> None:
    ids = [topic.write_ledgers(1)[0]]
    topic.write(batch(b"a", b"b", b"c"))
    ids.append(topic.get(f"{TOPIC}/log")["ledgers"][-1]["ledger_id"])
    assert values(browse(topic, from_=f"{ids[1]}:0:1")) == ["b", "c"]
    assert browse(topic, from_=f"{ids[1]}:0:1")["messages"][0]["batch_index"] == 1
    assert values(browse(topic, before=f"{ids[1]}:0:1"))[-1] == "a"
    # behind the end of a ledger the next one follows, behind the topic nothing
    assert values(browse(topic, from_=f"{ids[0]}:99")) == ["a", "b", "c"]
    beyond = browse(topic, from_=f"{ids[1]}:99")
    assert (beyond["messages"], beyond["has_newer"], beyond["has_older"]) == ([], False, True)
    assert values(browse(topic, before=f"{ids[1]}:99", limit=1)) == ["c"]


def test_a_window_begins_at_a_time(topic: Admin) -> None:
    for number in range(5):
        topic.write(entry(b"%d" % number))
        time.sleep(0.002)  # the next entry has another broker time
    third = browse(topic)["messages"][2]["broker_ms"]
    assert values(browse(topic, time=third)) == ["2", "3", "4"]
    assert values(browse(topic, time=0))[0] == "0"
    assert values(browse(topic, time=4_000_000_000_000)) == []


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("from=1:0&time=5", "exclude each other"),
        ("from=x", "invalid position"),
        ("limit=0", "limit must be from 1 to 200"),
        ("limit=201", "200"),
        ("time=-5", "epoch milliseconds"),
        (f"search={'x' * 201}", "200"),
    ],
)
def test_a_malformed_request_is_refused(topic: Admin, query: str, reason: str) -> None:
    answer = topic.call("GET", f"{TOPIC}/messages?{query}")
    assert answer.status in {400, 412}
    assert reason in answer.reason


def test_a_partitioned_or_missing_topic_is_refused(topic: Admin) -> None:
    topic.do("PUT", "persistent/public/default/p/partitions", 2)
    assert "is partitioned" in topic.refused(405, "GET", "persistent/public/default/p/messages")
    assert "does not exist" in topic.refused(404, "GET", "persistent/public/default/none/messages")
    assert browse(topic) == {**browse(topic), "messages": [], "has_older": False, "has_newer": False}


# --- search -----------------------------------------------------------------------------------------------------------


def test_a_search_finds_text_in_values_keys_and_properties_in_any_case(topic: Admin) -> None:
    for number in range(40):
        topic.write(entry(b"%d" % number))
    topic.write(entry("GRÜSSE Needle".encode()))
    topic.write(entry(b"x", partition_key="needle"))
    topic.write(entry(b"y", properties=[{"key": "n", "value": "NEEDLES"}]))
    topic.write(entry(json.dumps({"deep": ["a needle"]}).encode()))
    answer = browse(topic, from_="earliest", search="needle", limit=3)
    assert values(answer) == ["GRÜSSE Needle", "x", "y"]
    assert (answer["examined"], answer["has_newer"]) == (43, True)
    assert [json.loads(value or "") for value in values(browse(topic, from_=answer["end"], search="needle"))] == [
        {"deep": ["a needle"]}
    ]
    assert values(browse(topic, search="needle", limit=2))[0] == "y"
    nothing = browse(topic, from_="earliest", search="nowhere")
    assert (nothing["messages"], nothing["examined"], nothing["has_newer"]) == ([], 44, False)


def test_a_search_ends_with_its_budget_and_can_be_continued(topic: Admin) -> None:
    for number in range(250):
        topic.write(entry(b"%d" % number * 1000))
    reader = topic.service.store.open(LEDGER, create=False).reader
    decoder = MessageDecoder(lambda _: None, 1 << 20)
    start = MessagePosition(Position(-1, -1))
    seen = 0
    windows = 0
    while True:
        window = read_window(reader, decoder, WindowRequest(start, search="absent"), Budget(read_bytes=10_000))
        assert window.messages == ()
        assert window.read_bytes < 400_000
        seen += window.examined
        windows += 1
        start = window.end
        if not window.has_newer:
            break
    assert seen == 250
    assert windows > 1
    ticks = iter(range(1000))
    everything = WindowRequest(MessagePosition(Position(-1, -1)), limit=200)
    late = read_window(reader, decoder, everything, Budget(monotonic=lambda: next(ticks)))
    assert 0 < len(late.messages) < 200
    assert late.has_newer


# --- values by schema -------------------------------------------------------------------------------------------------

RECORD = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "s", "type": "string"}]}
AVRO = b"\x80\x80\x80\x80\x80\x80\x80\x80\x40" + b"\x04hi"


def add_schema(admin: Admin, kind: str, definition: str, **properties: str) -> bytes:
    body = {"type": kind, "schema": definition, "properties": properties}
    version = admin.call("POST", "schemas/public/default/t/schema", body).json["version"]["version"]
    return struct.pack(">q", version)


def test_values_are_decoded_by_the_schema_version_of_each_message(topic: Admin) -> None:
    topic.do("PUT", "namespaces/public/default/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    avro = add_schema(topic, "AVRO", json.dumps(RECORD))
    number = add_schema(topic, "INT64", "")
    topic.write(entry(AVRO, schema_version=avro))
    topic.write(entry(struct.pack(">q", -5), schema_version=number))
    topic.write(entry(b"\x01", schema_version=avro))
    topic.write(entry(b"x", schema_version=struct.pack(">q", 9)))
    topic.write(entry(b'{"b":1.50,"a":[]}'))
    topic.write(entry(b"\xff\x00"))
    topic.write(entry(b"", null_value=True))
    rows = browse(topic)["messages"]
    assert (rows[0]["format"], json.loads(rows[0]["value"])) == ("AVRO", {"id": 2**61, "s": "hi"})
    assert (rows[1]["format"], rows[1]["value"]) == ("INT64", "-5")
    assert "it ends too early" in rows[2]["problem"]
    assert "no schema version 9" in rows[3]["problem"]
    assert (rows[4]["format"], json.loads(rows[4]["value"])) == ("JSON", {"b": 1.5, "a": []})
    assert (rows[5]["format"], rows[5]["value"], rows[5]["value_base64"]) == ("bytes", None, "/wA=")
    assert (rows[6]["value"], rows[6]["value_bytes"]) == (None, None)
    assert [row["schema_version"] for row in rows[:4]] == [0, 1, 0, 9]


def test_a_value_that_expands_by_its_schema_is_not_shown(topic: Admin) -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["S" * 10_000]}
    version = add_schema(topic, "AVRO", json.dumps({**RECORD, "fields": [{"name": "a", "type": array_of(enum)}]}))
    count = 5_000
    items = bytes([count << 1 & 127 | 128, count << 1 >> 7]) + bytes(count) + b"\0"
    topic.write(entry(items, schema_version=version))
    topic.write(entry(b"\x02\0\0", schema_version=version))
    first, second = browse(topic)["messages"]
    assert "the decoded value takes" in first["problem"]
    assert json.loads(second["value"]) == {"a": ["S" * 10_000]}


def array_of(items: object) -> dict[str, object]:
    return {"type": "array", "items": items}


def test_both_halves_of_a_key_value_pair_are_decoded(topic: Admin) -> None:
    definition = json.dumps({"key": "", "value": ""})
    types = {"key.schema.type": "STRING", "value.schema.type": "INT32", "kv.encoding.type": "INLINE"}
    version = add_schema(topic, "KEY_VALUE", definition, **types)
    pair = struct.pack(">i", 1) + b"k" + struct.pack(">ii", 4, 42)
    topic.write(entry(pair, schema_version=version))
    [row] = browse(topic)["messages"]
    assert (row["format"], json.loads(row["value"])) == ("KEY_VALUE", {"key": "k", "value": 42})


# --- hostile messages -------------------------------------------------------------------------------------------------


def test_a_hostile_message_costs_little_and_the_others_are_shown(start: Callable[..., Admin]) -> None:
    admin = start(max_message_size=100_000)
    admin.do("PUT", TOPIC)
    bomb = compress(Codec.ZSTD, bytes(50 << 20))
    zstd = {"compression": Codec.ZSTD.value}
    admin.write(entry(b"before"))
    admin.write(entry(bomb, uncompressed_size=50 << 20, **zstd))
    admin.write(entry(bomb, uncompressed_size=1000, **zstd))
    admin.write(b"not a message")
    admin.write(entry(b"abc", num_messages_in_batch=2**31 - 1))
    admin.write(entry(b"secret", encryption_keys=[{"key": "k", "value": b"v"}]))
    admin.write(entry(b"part", num_chunks_from_msg=3, chunk_id=1, uuid="u"))
    admin.write(entry(b"marker", marker_type=1))
    admin.write(entry(b"[" * 50_000))
    admin.write(entry(b'{"a":1e999999}', publish_time=2**64 - 1, properties=[{"key": "k", "value": "v" * 90_000}]))
    admin.write(entry(b"after"))
    used_s = time.process_time()
    rows = browse(admin)["messages"]
    assert time.process_time() - used_s < 1
    problems = [row["problem"] for row in rows]
    assert values({"messages": [rows[0], rows[-1]]}) == ["before", "after"]
    assert "above maxMessageSize=100000" in problems[1]
    assert "does not decompress to 1000" in problems[2]
    assert "not a valid message" in problems[3]
    assert "the rest of the batch is not valid" in problems[4]
    assert rows[5]["encrypted"]
    assert "is encrypted" in problems[5]
    assert (rows[6]["chunk"], rows[6]["value"]) == ("2 of 3", "part")
    assert rows[7]["value"].startswith("[[[")
    assert rows[7]["truncated"]
    assert rows[8]["publish_ms"] == -1
    assert len(rows[8]["properties"][0][1]) == 1024
    assert len(rows) == 10


def test_large_values_end_a_window_early(topic: Admin) -> None:
    for _ in range(100):
        topic.write(entry(b"x" * 60_000))
    answer = browse(topic, from_="earliest", limit=200)
    assert 0 < len(answer["messages"]) < 100
    assert answer["has_newer"]
    assert all(len(row["value"]) <= 16 << 10 and row["truncated"] for row in answer["messages"])
    assert len(json.dumps(answer)) < 3 << 20


# --- a long topic, in both tiers --------------------------------------------------------------------------------------

MESSAGES = 1_000_000
PER_BATCH = 1_000


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    """A topic with a million messages, of which all but the last ledger are in the tier only."""
    from tests.admin.conftest import running

    settings = {
        "default_retention_size_in_mb": -1,
        "default_retention_time_in_minutes": -1,
        "managed_ledger_max_entries_per_ledger": 100,
        "managed_ledger_min_ledger_rollover_time_minutes": 0,
        "managed_ledger_offloaded_read_priority": ReadPriority.TIERED_STORAGE_FIRST,
        "managed_ledger_cache_size_mb": 0,
    }
    with running(tmp_path_factory.mktemp("long"), offload=True, **settings) as admin:
        admin.do("PUT", TOPIC)
        singles = [(SingleMessageMetadata(), b"message %d" % number) for number in range(PER_BATCH)]
        payload = encode_batch(singles)
        for first in range(0, MESSAGES, PER_BATCH):
            admin.write(entry(payload, num_messages_in_batch=PER_BATCH, sequence_id=first))
        admin.do("PUT", f"{TOPIC}/offload", "latest")
        for _ in range(3):
            admin.offloading.begin()
            admin.offloading.finish()
        yield admin


@pytest.mark.parametrize("share", [0.0, 0.123, 0.5, 0.899, 0.999])
def test_a_window_at_any_position_of_a_million_messages_is_cheap(long: Admin, share: float) -> None:
    log = long.get(f"{TOPIC}/log")
    number = int(share * MESSAGES)
    rank, batch_index = divmod(number, PER_BATCH)
    ledger = max((row for row in log["ledgers"] if row["first_index"] <= rank), key=lambda row: row["first_index"])
    position = f"{ledger['ledger_id']}:{rank - ledger['first_index']}:{batch_index}"
    for _ in range(2):  # the first call opens the topic's index
        used_s = time.process_time()
        answer = browse(long, from_=position)
        used_s = time.process_time() - used_s
    assert [row["sequence_id"] for row in answer["messages"]] == list(range(number, number + 50))
    assert values(answer)[0] == f"message {batch_index}"
    assert answer["read_bytes"] < 1 << 20
    assert used_s < 0.4
    origin = "tier" if rank < 900 else "hot"
    assert {row["origin"] for row in answer["messages"]} == {origin}


# --- access and rate --------------------------------------------------------------------------------------------------


def test_messages_need_the_permission_to_consume(start: Callable[..., Admin]) -> None:
    admin = start(**SECURE, authorization_enabled=True, super_user_roles=("root",))
    as_role(admin, "root", "PUT", TOPIC)
    for role, action in (("writer", "produce"), ("reader", "consume")):
        as_role(admin, "root", "POST", f"namespaces/public/default/permissions/{role}", [action])
    expected = {None: 401, "stranger": 403, "writer": 403, "reader": 200, "root": 200}
    assert {role: as_role(admin, role, "GET", f"{TOPIC}/messages").status for role in expected} == expected


def test_browsing_is_limited_in_rate(topic: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_call, "_MAX_BROWSE_WAIT_S", -1.0)
    answer = topic.call("GET", f"{TOPIC}/messages")
    assert answer.status == 429
    assert "try again in" in answer.reason
