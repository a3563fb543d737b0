from __future__ import annotations

import logging
from uuid import UUID

import pytest

from afterglow.events import Event, log_event, log_warning

_log = logging.getLogger("afterglow.tests")


def test_an_event_is_a_text_with_fields_and_leaves_out_those_without_a_value(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_event(_log, "topic created", topic="persistent://a/b/c", role=None, entries=3)
    (record,) = caplog.records
    assert record.getMessage() == "topic created topic=persistent://a/b/c entries=3"
    assert record.__dict__["fields"] == {"topic": "persistent://a/b/c", "entries": 3}
    assert record.levelno == logging.INFO
    assert record.pathname == __file__, "the record names the caller"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain/text:1", "plain/text:1"),
        ("two words", '"two words"'),
        ('a"b', r'"a\"b"'),
        ("x=y", '"x=y"'),
        ("", '""'),
        ("a\nb", r'"a\nb"'),
        (True, "true"),
        ({"a": [1]}, '{"a": [1]}'),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ],
)
def test_a_value_is_quoted_if_the_end_of_its_field_were_unclear_without(value: object, shown: str) -> None:
    assert str(Event("text", {"field": value})) == f"text field={shown}"


def test_an_event_below_the_level_costs_no_record(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        log_event(_log, "segment committed", entries=1)
        log_warning(_log, "client refused", client="127.0.0.1:1")
    assert caplog.messages == ["client refused client=127.0.0.1:1"]
