from __future__ import annotations

import re
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from afterglow.cli import progress as module
from afterglow.cli.progress import ProgressText, duration_text, progress, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_progress_has_percentage_amounts_rate_and_remaining_time() -> None:
    clock = Clock()
    text = ProgressText("verifying", "bytes", clock)
    clock.now_s += 7
    assert str(text) == "verifying: 7 s"
    text.show("starting Spark")
    assert str(text) == "verifying: starting Spark, 7 s"
    text.show("1 objects", 0, 4 << 20)
    clock.now_s += 2
    text.show("2 objects", 1 << 20, 4 << 20)
    assert str(text) == "verifying: 2 objects, 25 %, 1.0 MiB of 4.0 MiB, 512.0 KiB/s, 6 s left"


def test_what_an_earlier_run_has_done_does_not_count_for_the_rate() -> None:
    clock = Clock()
    text = ProgressText("exporting t", "entries", clock)
    text.show("", 900, 1_000)
    clock.now_s += 10
    text.show("", 950, 1_000)
    assert str(text) == "exporting t: 95 %, 950 of 1,000 entries, 5 entries/s, 10 s left"


def test_more_than_the_total_is_all_of_it() -> None:
    text = ProgressText("exporting t", "entries", Clock())
    text.show("", 12, 10)
    assert str(text).startswith("exporting t: 100 %, ")


def test_control_characters_of_a_name_are_escaped() -> None:
    assert str(ProgressText("reading \x1b[2J", "rows", Clock())) == r"reading \x1b[2J: 0 s"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (59.4, "59 s"), (125, "2 min 5 s"), (12_000, "3 h 20 min")]
)
def test_durations_are_short(seconds: float, shown: str) -> None:
    assert duration_text(seconds) == shown


@pytest.mark.parametrize(
    ("size", "shown"), [(0, "0 bytes"), (1023, "1,023 bytes"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes_have_a_unit(size: int, shown: str) -> None:
    assert size_text(size) == shown


@pytest.fixture
def _lines_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "_FIRST_LINE_S", 0.0)
    monkeypatch.setattr(module, "_LINES_S", 300.0)
    monkeypatch.delenv("AFTERGLOW_PROGRESS", raising=False)
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


class Lines:
    """Standard error that is not a terminal, and tells when a line was written."""

    def __init__(self) -> None:
        self.text = ""
        self.written = threading.Event()

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> None:
        self.text += text
        self.written.set()

    def flush(self) -> None:
        pass


@pytest.mark.usefixtures("_lines_at_once")
def test_without_a_terminal_progress_is_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines()
    monkeypatch.setattr(sys, "stderr", lines)
    with progress("exporting t"):
        assert lines.written.wait(60)
    assert re.fullmatch(r"afterglow: exporting t: \d+ s\n", lines.text)


@pytest.mark.usefixtures("_lines_at_once")
def test_what_ends_soon_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_LINE_S", 300.0)
    lines = Lines()
    monkeypatch.setattr(sys, "stderr", lines)
    with progress("exporting t") as show:
        show("", 1, 2)
    assert lines.text == ""
