"""Events of topics and ledgers: each once, and deletions with their reason and policy."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tests.support.ledgers import TOPIC, World, settings

from afterglow.format.position import LATEST

if TYPE_CHECKING:
    import pytest

NAME = "persistent://public/default/t"


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    """Events so far, without those seen before."""
    found = [
        (record.__dict__["msg"].text, record.__dict__["fields"])
        for record in caplog.records
        if "fields" in record.__dict__
    ]
    caplog.clear()
    assert {fields.pop("topic") for _, fields in found} <= {NAME}
    return found


def test_a_topic_logs_its_life_from_creation_over_roll_overs_to_its_deletion(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = World()
    ledger = world.open()
    assert events(caplog) == [("topic created", {})]
    world.append(ledger, b"abc")
    world.append(ledger, b"abc")
    ledger.roll()
    ((text, fields),) = events(caplog)
    assert (text, set(fields)) == ("ledger rolled", {"ledger", "entries", "bytes", "next"})
    assert (fields["ledger"], fields["entries"], fields["next"]) == (1, 2, 2)
    ledger.close()
    world.open()
    assert "topic created" not in dict(events(caplog))
    world.store.delete(TOPIC)
    found = events(caplog)
    assert [text for text, _ in found] == ["hot copy deleted"] * (len(found) - 1) + ["topic deleted"]
    assert found[-1][1]["reason"] == "deleted on request, with its data"


def test_a_trimmed_ledger_is_logged_with_what_why_and_the_policy_with_its_origin(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(settings(default_retention_time_in_minutes=10, default_retention_size_in_mb=0))
    ledger = world.open()
    world.append(ledger, b"abc")
    caplog.set_level(logging.INFO)
    ledger.roll()
    world.append(ledger, b"abc")
    assert ledger.trim() == ()
    _, trimmed, deleted = events(caplog)
    assert trimmed[0] == "ledger trimmed"
    assert (
        trimmed[1].items()
        >= {
            "ledger": 1,
            "entries": 1,
            "reason": "consumed and past retention",
            "policy": "defaultRetentionTimeInMinutes=10 (default), defaultRetentionSizeInMB=0 (default)",
        }.items()
    )
    assert deleted == ("hot copy deleted", {"ledger": 1})


def test_truncation_is_logged_as_a_request(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    ledger = world.open()
    world.append(ledger, b"abc")
    caplog.set_level(logging.INFO)
    ledger.trimmer.truncate()
    found = dict(events(caplog))
    assert found["ledger trimmed"]["reason"] == "truncated on request"
    assert "policy" not in found["ledger trimmed"]
    assert ledger.layout.last < LATEST
