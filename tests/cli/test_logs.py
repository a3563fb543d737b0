from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from afterglow.cli.logs import JsonFormatter, log_settings, log_setup
from afterglow.config import load_conf
from afterglow.errors import ConfigError
from afterglow.events import log_event

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger("afterglow.tests.logs")


@pytest.fixture
def _root() -> Iterator[None]:
    """Levels and handlers as they were."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("afterglow.offload", "afterglow.tests"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def begin(**settings: str) -> None:
    with log_setup() as setup:
        _log.warning("before the settings are known")
        setup.begin(load_conf(overrides=settings))


@pytest.mark.usefixtures("_root")
def test_the_text_log_has_one_line_per_record_and_begins_with_what_came_before_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    begin()
    log_event(_log, "topic created", topic="a\nb")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "WARNING afterglow.tests.logs: before the settings are known",
        r'INFO afterglow.tests.logs: topic created topic="a\nb"',
    ]


@pytest.mark.usefixtures("_root")
def test_the_json_log_has_one_object_per_record_with_the_fields_beside_time_level_logger_and_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    begin(logFormat="json")
    log_event(_log, "ledger trimmed", ledger=3, level="of the event", reason="two\nlines")
    _log.info("%d of %d", 1, 2)
    rows = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [row["message"] for row in rows] == ["before the settings are known", "ledger trimmed", "1 of 2"]
    assert rows[1].items() >= {"level": "INFO", "logger": "afterglow.tests.logs", "ledger": 3}.items()
    assert rows[1]["reason"] == "two\nlines"
    assert rows[1]["time"].endswith("+00:00")


def test_json_of_an_unexpected_error_has_its_traceback_in_one_field() -> None:
    error = ValueError("why")
    record = logging.LogRecord("a", logging.ERROR, "f", 1, "failed", None, (ValueError, error, None))
    assert json.loads(JsonFormatter().format(record))["error"].endswith("ValueError: why")


@pytest.mark.usefixtures("_root")
def test_a_level_applies_to_all_loggers_and_a_single_one_may_have_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    begin(logLevel="ERROR", logLevels="afterglow.offload=debug")
    _log.warning("dropped")
    logging.getLogger("afterglow.offload.service").debug("kept")
    logging.getLogger("afterglow.ledger.store").warning("dropped")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("DEBUG afterglow.offload.service: kept")


@pytest.mark.usefixtures("_root")
def test_settings_that_differ_from_their_defaults_are_logged_with_secrets_masked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = load_conf(overrides={"brokerServicePort": "7", "tokenSecretKey": "swordfish", "webServicePort": "8080"})
    with caplog.at_level(logging.INFO):
        log_settings(config)
    (record,) = caplog.records
    assert record.__dict__["fields"] == {"brokerServicePort": "7", "tokenSecretKey": "********"}


def test_an_unknown_level_is_refused_with_its_logger() -> None:
    with pytest.raises(ConfigError, match="'afterglow=loud' is not a comma-separated list of LOGGER=LEVEL"):
        load_conf(overrides={"logLevels": "afterglow=loud"})
