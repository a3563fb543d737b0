"""Output of the demo: messages, and on a terminal a live chart of the ledgers and segments of the topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from afterglow.source.directory import SourceLedger

_MARGIN: Final = 13
"""Columns to the left of a lane."""
_ASCII: Final = str.maketrans("▏▒·█▓░", "|#.=+-")
"""For terminals without UTF-8."""


class RangeStyle(NamedTuple):
    """Style of a range of entries."""

    sign: str
    colour: str
    meaning: str


HOT: Final = RangeStyle("▒", "red", "hot")
FREED: Final = RangeStyle("·", "dim", "in the tier alone")
OFFLOADED: Final = RangeStyle("█", "cyan", "in the tier")
UPLOADED: Final = RangeStyle("▓", "blue", "part uploaded")
FILLING: Final = RangeStyle("░", "yellow", "filling")
BLANK: Final = RangeStyle(" ", "", "")

Stroke = tuple[RangeStyle, int, str]
"""Style and label of a range, with its end in the log, or its number of columns on the screen."""


class TopicSnapshot(NamedTuple):
    """Ledgers and segments of a topic at one moment."""

    ledgers: tuple[SourceLedger, ...]
    segments: list[dict[str, Any]]
    """As the admin API lists them."""

    @property
    def entries(self) -> int:
        """Entries of the log."""
        return sum(ledger.entries for ledger in self.ledgers)

    @property
    def offloaded(self) -> list[dict[str, Any]]:
        """Segments that are complete."""
        return [segment for segment in self.segments if segment["status"] == "Offloaded"]

    def lanes(self, width: int, entries: int) -> dict[str, list[Stroke]]:
        """Return ledgers and segments as lanes of ``width`` columns, which represent at least ``entries`` entries."""
        entries = max(entries, self.entries, 1)
        lanes = {"ledgers": self._ledger_ranges(), "segments": self._segment_ranges()}
        return {name: list(_strokes(ranges, width, entries)) for name, ranges in lanes.items()}

    def _ledger_ranges(self) -> Iterator[Stroke]:
        end = 0
        for ledger in self.ledgers:
            end += ledger.entries
            yield HOT if ledger.hot else FREED, end, str(ledger.ledger_id)

    def _segment_ranges(self) -> Iterator[Stroke]:
        """Ranges labelled by number, which is easier to follow than a UUID."""
        for number, segment in enumerate(self.segments, 1):
            begin = self._rank(segment["begin"])
            end = self.entries if segment["end"] is None else self._rank(segment["end"]) + 1
            yield BLANK, begin, ""
            if segment["status"] == "Offloaded":
                yield OFFLOADED, end, str(number)
            else:
                yield UPLOADED, min(begin + segment["entries"], end), str(number)
                yield FILLING, end, "" if segment["entries"] else str(number)

    def _rank(self, position: dict[str, int]) -> int:
        """Number of entries before a position."""
        before = (ledger.entries for ledger in self.ledgers if ledger.ledger_id < position["ledger_id"])
        return position["entry_id"] + sum(before)


def _strokes(ranges: Iterable[Stroke], width: int, entries: int) -> Iterator[Stroke]:
    """Convert the ends of consecutive ranges to columns."""
    column = 0
    for paint, end, label in (*ranges, (BLANK, entries, "")):
        until = max(min(round(end * width / entries), width), column)
        if until > column:
            yield paint, until - column, label
        column = until


class Screen:
    """Context manager that prints the demo on a terminal, or as plain lines without one."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._signs = {} if self._console.encoding.lower().startswith("utf") else _ASCII
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self.say("Afterglow demo", "bold")
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, message: str, style: str = "") -> None:
        """Print a message above the live chart."""
        self._console.print(Text(message, style), soft_wrap=True)

    def draw(self, topic: TopicSnapshot, entries: int, caption: str) -> None:
        """Update the live chart, only on a terminal; its width represents the expected final number of entries."""
        if self._console.is_interactive:
            self._live.start()
            self._live.update(Group(*self._lines(topic, entries), Text(f"  {caption}", "italic")), refresh=True)

    def draw_last(self, topic: TopicSnapshot) -> None:
        """Replace the live chart by a permanent one."""
        self._live.stop()
        for line in self._lines(topic, topic.entries):
            self._console.print(line, soft_wrap=True)

    def _lines(self, topic: TopicSnapshot, entries: int) -> list[Text]:
        width = max(min(self._console.width, 100) - _MARGIN - 1, 20)
        lines = [Text(f"  {'log':<{_MARGIN - 3}} {f'{topic.entries:,} entries':>{width}}", "dim")]
        for name, strokes in topic.lanes(width, entries).items():
            lines.append(Text(f"  {name:<{_MARGIN - 3}} "))
            for paint, columns, label in strokes:
                text = (f"▏{label}" if label else "") + paint.sign * columns
                lines[-1].append(text[:columns].translate(self._signs), paint.colour)
        lines.append(Text(" " * _MARGIN))
        for paint in (HOT, FREED, OFFLOADED, UPLOADED, FILLING):
            lines[-1].append(paint.sign.translate(self._signs), paint.colour).append(f" {paint.meaning}  ", "dim")
        return lines
