from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterglow.errors import InvalidName
from afterglow.metadata.names import Domain, NamespaceName, TopicName, decode_name, encode_name

DOTS = {".", ".."}
entities = st.text("abzABZ019_-=:.", min_size=1, max_size=5).filter(lambda name: name not in DOTS)
local_names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda name: name not in DOTS)
flat_names = local_names.map(lambda name: name.replace("/", "_"))
namespaces = st.builds(NamespaceName, entities, entities)
topics = st.builds(TopicName, namespaces, flat_names)
legacy_topics = st.builds(TopicName, st.builds(NamespaceName, entities, entities, entities), local_names)

# --- encoding -------------------------------------------------------------------------------------------------------


# Each right side is what java.net.URLEncoder.encode(left, UTF_8) returns.
@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("my-topic", "my-topic"),
        ("A.z_0-9*", "A.z_0-9*"),
        ("a b", "a+b"),
        ("a+b", "a%2Bb"),
        ("~", "%7E"),
        ("100%", "100%25"),
        ("a/b", "a%2Fb"),
        ("a:b=c", "a%3Ab%3Dc"),
        ("é", "%C3%A9"),
        ("漢字", "%E6%BC%A2%E5%AD%97"),
        ("😀", "%F0%9F%98%80"),
        ("a\nb\x00", "a%0Ab%00"),
        ("!'()", "%21%27%28%29"),
        ("@&,;$?#[]", "%40%26%2C%3B%24%3F%23%5B%5D"),
        ("%41", "%2541"),
        ("...", "..."),
    ],
)
def test_names_are_encoded_as_java_does(name: str, encoded: str) -> None:
    assert encode_name(name) == encoded
    assert decode_name(encoded) == name


@given(local_names)
def test_decoding_undoes_encoding(name: str) -> None:
    encoded = encode_name(name)
    assert decode_name(encoded) == name
    assert encoded.isascii()
    assert "/" not in encoded


@pytest.mark.parametrize("name", ["", ".", "..", "\ud800"])
def test_a_name_that_no_path_can_hold_is_not_encoded(name: str) -> None:
    with pytest.raises(InvalidName):
        encode_name(name)


@pytest.mark.parametrize("encoded", ["%", "%4", "%zz", "a%", "%+1", "%ff", "%C3"])
def test_a_broken_encoding_is_refused(encoded: str) -> None:
    with pytest.raises(InvalidName):
        decode_name(encoded)


def test_lower_case_digits_and_needless_escapes_are_understood() -> None:
    assert decode_name("%c3%a9%41") == "éA"


# --- topics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "full", "ledger"),
    [
        ("t", "persistent://public/default/t", "public/default/persistent/t"),
        ("acme/sales/t", "persistent://acme/sales/t", "acme/sales/persistent/t"),
        ("persistent://acme/sales/t", "persistent://acme/sales/t", "acme/sales/persistent/t"),
        ("persistent://acme/eu/sales/t", "persistent://acme/eu/sales/t", "acme/eu/sales/persistent/t"),
        ("persistent://acme/eu/sales/a/b", "persistent://acme/eu/sales/a/b", "acme/eu/sales/persistent/a%2Fb"),
        ("a b~*", "persistent://public/default/a b~*", "public/default/persistent/a+b%7E*"),
        ("t-partition-3", "persistent://public/default/t-partition-3", "public/default/persistent/t-partition-3"),
        # Written by Apache Pulsar 4.0.8.
        (
            "persistent://public/default/golden-batched_lz4",
            "persistent://public/default/golden-batched_lz4",
            "public/default/persistent/golden-batched_lz4",
        ),
    ],
)
def test_every_spelling_has_one_full_name_and_one_managed_ledger(text: str, full: str, ledger: str) -> None:
    topic = TopicName.parse(text)
    assert str(topic) == full
    assert topic.managed_ledger_name == ledger
    assert TopicName.parse(full) == topic
    assert TopicName.from_managed_ledger_name(ledger) == topic


@given(topics | legacy_topics)
def test_every_topic_comes_back_from_its_names(topic: TopicName) -> None:
    assert TopicName.parse(str(topic)) == topic
    assert TopicName.from_managed_ledger_name(topic.managed_ledger_name) == topic


@given(st.text())
def test_any_text_is_a_topic_or_an_invalid_name(text: str) -> None:
    try:
        topic = TopicName.parse(text)
    except InvalidName:
        return
    assert TopicName.parse(str(topic)) == topic


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a/b",
        "/t",
        "a/b/",
        "a/b/c/d",
        "persistent://",
        "persistent://t",
        "persistent://t/n",
        "persistent://t/n/",
        "persistent:///n/t",
        "persistent://t//n/x",
        "persistent://te nant/n/t",
        "persistent://té/n/t",
        "persistent://t/n%20/t",
        "persistent://../n/t",
        "persistent://t/./t",
        "persistent://t/n/..",
        "topic://t/n/x",
        "Persistent://t/n/x",
        "://t/n/x",
        "a\n/b/c",
        "tenant\n/namespace/topic",
    ],
)
def test_an_invalid_topic_is_rejected(text: str) -> None:
    with pytest.raises(InvalidName):
        TopicName.parse(text)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a/b/persistent",
        "a/b/c/d",
        "a/b/non-persistent/t",
        "a/b/persistent/a%2Fb",
        "a/b/persistent/%",
        "a//persistent/t",
    ],
)
def test_an_invalid_managed_ledger_name_is_rejected(name: str) -> None:
    with pytest.raises(InvalidName):
        TopicName.from_managed_ledger_name(name)


def test_a_non_persistent_topic_parses_and_has_no_managed_ledger() -> None:
    topic = TopicName.parse("non-persistent://public/default/t")
    assert topic.domain is Domain.NON_PERSISTENT
    assert not topic.is_persistent
    assert str(topic) == "non-persistent://public/default/t"
    with pytest.raises(InvalidName, match="only persistent:// topics"):
        _ = topic.managed_ledger_name


def test_an_error_names_the_topic_and_the_forms() -> None:
    with pytest.raises(InvalidName, match=r"'a/b'.*persistent://TENANT/NAMESPACE/NAME"):
        TopicName.parse("a/b")


# --- partitions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "index", "base"),
    [
        ("t", None, "t"),
        ("t-partition-0", 0, "t"),
        ("t-partition-12", 12, "t"),
        ("t-partition-1-partition-2", 2, "t-partition-1"),
        ("t-partition-2147483647", 2147483647, "t"),
        # Pulsar takes none of these for a partition.
        ("t-partition-2147483648", None, "t-partition-2147483648"),
        ("t-partition-01", None, "t-partition-01"),
        ("t-partition--1", None, "t-partition--1"),
        ("t-partition-+1", None, "t-partition-+1"),
        ("t-partition-", None, "t-partition-"),
        ("t-partition-1x", None, "t-partition-1x"),
        ("t-partition-1\n", None, "t-partition-1\n"),
        ("-partition-1", None, "-partition-1"),
    ],
)
def test_partitions_are_recognised_as_pulsar_does(name: str, index: int | None, base: str) -> None:
    topic = TopicName.parse(name)
    assert topic.partition_index == index
    assert topic.base.local_name == base


@given(topics.filter(lambda topic: topic.partition_index is None), st.integers(0, 2**31 - 1))
def test_a_partition_knows_its_index_and_its_base(topic: TopicName, index: int) -> None:
    partition = topic.partition(index)
    assert partition.partition_index == index
    assert partition.base == topic
    assert topic.base == topic


@pytest.mark.parametrize("index", [-1, 2**31])
def test_an_index_out_of_range_is_refused(index: int) -> None:
    with pytest.raises(InvalidName):
        TopicName.parse("t").partition(index)


def test_a_partition_has_no_partitions() -> None:
    with pytest.raises(InvalidName, match="already"):
        TopicName.parse("t-partition-0").partition(1)


# --- namespaces -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["public/default", "acme/eu/sales", "a.b/c:d=e-f_g"])
def test_a_namespace_comes_back_from_its_text(text: str) -> None:
    assert str(NamespaceName.parse(text)) == text


@pytest.mark.parametrize("text", ["", "a", "a/", "/a", "a/b/c/d", "a b/c", "a/é", "a/..", "a//b"])
def test_an_invalid_namespace_is_rejected(text: str) -> None:
    with pytest.raises(InvalidName):
        NamespaceName.parse(text)


def test_a_namespace_names_its_topics() -> None:
    topic = NamespaceName.parse("acme/sales").topic("orders")
    assert str(topic) == "persistent://acme/sales/orders"
    assert topic.namespace == NamespaceName("acme", "sales")


# --- what Apache Pulsar wrote ---------------------------------------------------------------------------------------


def test_golden_topics_are_where_apache_pulsar_put_them() -> None:
    named = os.environ.get("AFTERGLOW_GOLDEN")
    golden = Path(named) if named else Path(__file__).parents[3] / "shared" / "golden"
    if not golden.is_dir():
        pytest.skip(f"no golden data at {golden}: set AFTERGLOW_GOLDEN")
    pairs = [
        (case["topic"], case["zk_path"])
        for case in (json.loads(file.read_text()) for file in sorted(golden.glob("*/case.json")))
        if "zk_path" in case
    ]
    assert pairs
    for topic, path in pairs:
        assert f"/managed-ledgers/{TopicName.parse(topic).managed_ledger_name}" == path
