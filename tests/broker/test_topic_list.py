from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterglow.broker.topic_list import MAX_PATTERN_CHARS, choose_topics, compile_pattern, topics_hash
from afterglow.format.proto import pulsar_api_pb2 as wire

Ask = wire.CommandGetTopicsOfNamespace

TOPICS = [
    "persistent://public/default/orders",
    "persistent://public/default/orders-2",
    "persistent://public/default/invoices-partition-0",
    "persistent://public/default/invoices-partition-1",
    "non-persistent://public/default/orders-live",
]


def ask(pattern: str | None = None, known: str | None = None, mode: Ask.Mode.ValueType = Ask.PERSISTENT) -> Ask:
    return Ask(request_id=7, namespace="public/default", topics_pattern=pattern, topics_hash=known, mode=mode)


def names(answer: wire.CommandGetTopicsOfNamespaceResponse) -> list[str]:
    return [topic.rpartition("/")[2] for topic in answer.topics]


def test_without_a_pattern_all_topics_of_the_mode_are_sent() -> None:
    answer = choose_topics(TOPICS, ask())
    assert answer.request_id == 7
    assert list(answer.topics) == TOPICS[:4]
    assert not answer.filtered
    assert answer.changed
    assert names(choose_topics(TOPICS, ask(mode=Ask.NON_PERSISTENT))) == ["orders-live"]
    assert list(choose_topics(TOPICS, ask(mode=Ask.ALL)).topics) == TOPICS


@pytest.mark.parametrize(
    "pattern",
    ["persistent://public/default/orders.*", "public/default/orders.*", "^persistent://public/default/orders.*$"],
)
def test_the_scheme_of_a_pattern_is_ignored(pattern: str) -> None:
    answer = choose_topics(TOPICS, ask(pattern, mode=Ask.ALL))
    assert answer.filtered
    assert names(answer) == ["orders", "orders-2", "orders-live"]


def test_a_pattern_must_match_the_whole_name() -> None:
    assert names(choose_topics(TOPICS, ask("public/default/orders"))) == ["orders"]
    assert names(choose_topics(TOPICS, ask("default/orders"))) == []


def test_a_partition_is_included_if_its_topic_matches() -> None:
    answer = choose_topics(TOPICS, ask("public/default/invoices"))
    assert names(answer) == ["invoices-partition-0", "invoices-partition-1"]


def test_an_unchanged_list_is_not_sent_again() -> None:
    known = choose_topics(TOPICS, ask("public/default/orders.*")).topics_hash
    again = choose_topics(reversed(TOPICS), ask("public/default/orders.*", known))
    assert not again.changed
    assert not again.topics
    assert again.filtered
    assert again.topics_hash == known
    other = choose_topics(TOPICS[1:], ask("public/default/orders.*", known))
    assert other.changed
    assert names(other) == ["orders-2"]


def test_an_unsupported_pattern_leaves_the_list_unfiltered() -> None:
    answer = choose_topics(TOPICS, ask("public/default/(orders|invoices)"))
    assert not answer.filtered
    assert list(answer.topics) == TOPICS[:4]


def test_the_hash_equals_that_of_guava() -> None:
    # The check value of CRC32C is 0xe3069283; Guava prints the lowest byte first.
    assert topics_hash(["123456789"]) == "839206e3"
    assert topics_hash([]) == "00000000"
    assert topics_hash(["b", "a"]) == topics_hash(["a", "b"]) == topics_hash(["a,b"])


def test_the_hash_sorts_as_java_does() -> None:
    beyond, private = "\U00010000", "\uffee"  # 0xd800… as 16-bit units: before U+FFEE in Java, behind it in Python
    assert topics_hash([private, beyond]) == topics_hash([f"{beyond},{private}"])


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "(a|b)",
        "a*",
        "a+",
        "a?",
        "a{2}",
        ".*?a",
        ".*+a",
        ".{3}",
        "[a-z]+",
        r"\d+",
        r"\bfoo",
        r"\Qfoo\E",
        "[a&&b]",
        "[[a]b]",
        "[a--b]",
        "(?i)foo",
        "foo(?=bar)",
        r"(a)\1",
        "a^b",
        "a$b",
        "a|b",
        "[z-a]",
        "[",
        "\\",
        "(persistent|non-persistent)://public/default/foo",
        "persistent://a/b/c://d",
        "x" * (MAX_PATTERN_CHARS + 1),
    ],
)
def test_expensive_or_ambiguous_patterns_are_left_to_the_client(pattern: str) -> None:
    assert compile_pattern(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("a/b/.*", ["a/b/", "a/b/c"], ["a/c/b"]),
        ("a/b/.+", ["a/b/c"], ["a/b/"]),
        (r"a/b/c\.d", ["a/b/c.d"], ["a/b/cxd"]),
        ("a/b/c.d", ["a/b/c.d", "a/b/cxd"], ["a/b/cd"]),
        (r"a/b/v\d", ["a/b/v7"], ["a/b/vx", "a/b/v٣"]),
        ("a/b/[a-c_-]x", ["a/b/bx", "a/b/-x"], ["a/b/dx"]),
        ("a/b/[^a-c]x", ["a/b/dx"], ["a/b/ax"]),
        ("a/b/.*-x-.*-y", ["a/b/1-x-2-y", "a/b/-x-x-x--y"], ["a/b/-y-x-"]),
        ("a/b/x.*x", ["a/b/xx", "a/b/xyx"], ["a/b/x"]),
        (r"a/b/x\$", ["a/b/x$"], ["a/b/x"]),
    ],
)
def test_simple_patterns_are_matched_by_the_broker(pattern: str, matching: list[str], other: list[str]) -> None:
    matcher = compile_pattern(pattern)
    assert matcher is not None
    assert [name for name in (*matching, *other) if matcher.fullmatch(name)] == matching


TOKENS = st.sampled_from(["a", "b", ".", ".*", ".+", "[ab]", "[^a]", r"\.", r"\w"])


@given(st.lists(TOKENS, max_size=8).map("".join), st.lists(st.text("ab.", max_size=10), min_size=1, max_size=10))
def test_matching_agrees_with_backtracking(pattern: str, texts: list[str]) -> None:
    matcher = compile_pattern(pattern)
    assert matcher is not None
    for text in texts:
        assert bool(matcher.fullmatch(text)) == bool(re.fullmatch(pattern, text, re.ASCII)), (pattern, text)


def test_matching_time_is_linear_in_the_number_of_stars() -> None:
    # By backtracking this would take some 200 ** 25 steps.
    matcher = compile_pattern("public/default/" + ".*a" * 25 + "b")
    assert matcher is not None
    began = time.perf_counter()
    assert not matcher.fullmatch("public/default/" + "a" * 200)
    assert time.perf_counter() - began < 1
