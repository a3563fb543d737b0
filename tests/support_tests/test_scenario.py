from __future__ import annotations

import pytest
from tests.support.scenario import Step, parse_scenario

TEXT = """
# a remark
topics create {tenant}/a/t --metadata "one=1 2"
! topics create {tenant}/a/t

last = topics last-message-id {tenant}/a/t
> produce {tenant}/a/t 10
"""


def test_a_line_is_a_command_a_failing_one_one_to_keep_or_a_deed() -> None:
    assert parse_scenario(TEXT) == (
        Step(3, 'topics create {tenant}/a/t --metadata "one=1 2"'),
        Step(4, "topics create {tenant}/a/t", fails=True),
        Step(6, "topics last-message-id {tenant}/a/t", keeps="last"),
        Step(7, "produce {tenant}/a/t 10", deed=True),
    )


def test_variables_are_replaced_and_quoted_words_stay_whole() -> None:
    step = Step(1, "topics get-message-by-id {tenant}/a/t -l {inside.ledgers.1.ledgerId} 'a b' '{}' ")
    known = {"tenant": "acme", "inside": {"ledgers": [{"ledgerId": 4}, {"ledgerId": 7}]}}
    assert step.words(known) == ["topics", "get-message-by-id", "acme/a/t", "-l", "7", "a b", "{}"]
    with pytest.raises(KeyError):
        step.words({"tenant": "acme"})
