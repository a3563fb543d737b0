from __future__ import annotations

import json
from typing import Any

from tests.support.admin_tool import Outcome
from tests.support.differences import Allowed, Answer, Difference, allowed_differences, compare
from tests.support.http_proxy import Exchange


def answer(printed: Any = "", code: int = 0, status: int = 200, errors: str = "", times: int = 1) -> Answer:
    output = printed if isinstance(printed, str) else json.dumps(printed)
    exchange = Exchange("GET", "/admin/v2/clusters", status, b"x" if status == 200 and output else b"")
    return Answer(Outcome(code, output, errors), (exchange,) * times)


def parts(theirs: Answer, ours: Answer) -> list[tuple[str, Any, Any]]:
    return [(found.path, found.theirs, found.ours) for found in compare("topics stats", theirs, ours)]


def test_names_that_a_server_chooses_are_no_difference() -> None:
    theirs = {
        "owner": "127.0.0.1:8080",
        "at": "2026-11-16T17:15:23.282Z",
        "ms": 1_794_849_325_319,
        "last": "17:3",
        "ledgers": [{"ledgerId": 12}, {"ledgerId": 17}],
        "ranges": "[(17:3..17:4]]",
    }
    ours = {
        "owner": "localhost:41111",
        "at": "2026-11-16T17:16:00Z",
        "ms": 1_794_849_999_999,
        "last": "2:3",
        "ledgers": [{"ledgerId": 1}, {"ledgerId": 2}],
        "ranges": "[(2:3..2:4]]",
    }
    assert parts(answer(theirs), answer(ours)) == []
    ours["ledgers"] = [{"ledgerId": 2}, {"ledgerId": 1}]
    assert parts(answer(theirs), answer(ours)) == []
    ours["last"] = "1:3"
    assert parts(answer(theirs), answer(ours)) != []


def test_a_moment_is_not_the_same_as_none() -> None:
    assert parts(answer({"at": 1_794_849_325_319}), answer({"at": 0})) == [("at", "MOMENT", 0)]


def test_a_part_that_one_lacks_or_that_has_another_type_is_a_difference() -> None:
    assert parts(answer({"a": {"b": 1}, "c": [1, 2]}), answer({"a": {}, "c": [1], "d": None})) == [
        ("a.b", 1, "<absent>"),
        ("c.1", 2, "<absent>"),
        ("d", "<absent>", None),
    ]
    assert parts(answer({"a": 0}), answer({"a": 0.0})) == [("a", 0, 0.0)]
    assert parts(answer({"a": 1}), answer({"a": True})) == [("a", 1, True)]


def test_names_come_in_any_order_but_sentences_in_theirs() -> None:
    assert parts(answer("one\ntwo\n"), answer("two\none\n")) == []
    assert parts(answer("one\ntwo\n"), answer("one\nthree\n")) == [("output", ["two"], ["three"])]
    assert parts(answer("the one\nthe two\n"), answer("the two\nthe one\n")) != []
    assert parts(answer("one    1\ntwo    2\n"), answer("two    2\none    3\n")) == [("one", "1", "3")]


def test_of_errors_the_status_counts_and_not_the_words() -> None:
    absent = answer(code=1, status=404, errors="Topic not found\n\nReason: Topic not found\n")
    assert parts(absent, answer(code=1, status=404, errors="no such topic")) == []
    assert [path for path, *_ in parts(absent, answer(code=1, status=412, errors="no such topic"))] == ["status"]
    assert [path for path, *_ in parts(absent, answer())] == ["code"]
    assert [path for path, *_ in parts(absent, answer(code=1, status=404))] == ["reason"]


def test_an_empty_answer_is_the_same_with_either_status_and_waiting_counts_once() -> None:
    assert parts(answer(status=200), answer(status=204)) == []
    assert parts(answer({}, times=1), answer({}, times=3)) == []


def test_a_table_says_what_is_allowed() -> None:
    table = """
    Words.

    | command | part | why |
    |---|---|---|
    | `topics stats *` | `*.msgRateIn` | it is measured |
    """
    (row,) = allowed_differences(table)
    assert row == Allowed("topics stats *", "*.msgRateIn", "it is measured")
    assert row.covers(Difference("topics stats a/b/c", "publishers.0.msgRateIn", 0.0, 1.0))
    assert not row.covers(Difference("topics stats a/b/c", "msgInCounter", 0, 1))
    assert not row.covers(Difference("topics stats-internal a/b/c", "publishers.0.msgRateIn", 0.0, 1.0))
