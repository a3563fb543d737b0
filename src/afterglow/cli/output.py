"""Output of commands: tables for people, one JSON object per line for machines.

Results go to stdout and nothing else does; progress goes to stderr, and only on a terminal.

Names, keys, payloads and error messages come from others. A terminal acts on control characters: it moves the cursor,
changes its title, or types an answer on the user's behalf. Characters that reorder the text around them can make a name
look like another one. Whatever people see has both as escapes of Python.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_HARMLESS: Final = frozenset("\u00a0\u200c\u200d\u3000")
"""Spaces of other widths, and the joiners inside words and emoji: not printable to Python, and no danger."""
_SHOW_AFTER_S: Final = 0.5
"""Most calls are over by then, and a line that flickers helps nobody."""
_STATISTICS: Final = {
    "publishers": ("producerName", "producerId", "msgRateIn", "address", "clientVersion"),
    "subscriptions": ("name", "type", "msgBacklog", "unackedMessages", "msgOutCounter", "bytesOutCounter"),
    "ledgers": ("ledgerId", "entries", "size", "offloaded", "isOffloaded"),
    "cursors": ("name", "markDelete", "markDeletePosition", "readPosition", "state", "individuallyDeletedMessages"),
}
"""What people see of the longer ones, as far as it is there; the rest is in the JSON."""


def printable(text: str, keep: str = "") -> str:
    """The text with every control, formatting and unassigned character escaped.

    Args:
        text: Of anyone.
        keep: Characters to leave as they are, such as a newline.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _HARMLESS or c in keep else repr(c)[1:-1] for c in text)


def json_text(value: object, out: TextIO) -> str:
    """A value as one line of JSON; on a terminal its strings have escapes, which mean the same to every JSON parser."""
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable() or not out.isatty():
        return text
    return "".join(c if c.isprintable() or c in _HARMLESS else json.dumps(c)[1:-1] for c in text)


class PrintableFormatter(logging.Formatter):
    """A formatter of log lines that hold names which clients have chosen.

    A record is one line, and what a traceback adds to it is indented: a name with a newline in it cannot pass for a
    record of its own.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name in logging
        """The record's line, without its traceback."""
        return printable(super().formatMessage(record).rstrip("\n"))

    def format(self, record: logging.LogRecord) -> str:
        """The record's line, and the lines of its traceback."""
        line, *traceback = super().format(record).split("\n")
        return "\n".join([line, *("  " + printable(each, keep="\t") for each in traceback)])


class Output:
    """Prints in the form that was asked for."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def rows(self, rows: Iterable[Mapping[str, Any]], absent: str, columns: Sequence[str] = ()) -> None:
        """Print a list of objects.

        Args:
            rows: The objects; all have the keys of the first.
            absent: What people see where there are none.
            columns: The keys that people see; all unless given.
        """
        if self.as_json:
            for row in rows:
                self.json(row)
            return
        found = list(rows)
        if found:
            self.table(found, columns or list(found[0]))
        else:
            self._write(absent)

    def lines(self, name: str, values: Iterable[str]) -> None:
        """Print a list of texts: one per line, or objects that hold each under a name."""
        for value in values:
            if self.as_json:
                self.json({name: value})
            else:
                self._write(printable(value))

    def record(self, value: Mapping[str, Any] | None, absent: str) -> None:
        """Print one object as names and values.

        Args:
            value: The object; None where nothing is set.
            absent: What people see where nothing is set.
        """
        if self.as_json:
            self.json(value)
        elif value is None:
            self._write(absent)
        else:
            self.table([{"name": name, "value": item} for name, item in value.items()], ("name", "value"))

    def table(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], title: str | None = None) -> None:
        """Print a table for people."""
        from rich.console import Console  # noqa: PLC0415 - rich is slow to import, and machines do not need it
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(title=title, title_justify="left")
        for column in columns:
            numbers = all(_is_number(row.get(column)) for row in rows)
            table.add_column(column, justify="right" if numbers else "left", overflow="fold")
        for row in rows:
            # Text, not str: a name with brackets is no mark-up.
            table.add_row(*(Text(printable(_shown(row.get(column)), keep="\n")) for column in columns))
        Console().print(table)

    def statistics(self, stats: Mapping[str, Any]) -> None:
        """Print statistics of a topic: for people figures first, then a table for each list or map inside."""
        if self.as_json:
            self.json(stats)
            return
        self.record({name: value for name, value in stats.items() if not isinstance(value, dict | list)}, absent="")
        for name, columns in _STATISTICS.items():
            found = stats.get(name) or []
            rows = [{"name": key, **row} for key, row in found.items()] if isinstance(found, dict) else found
            if rows:
                self.table(rows, [column for column in columns if column in rows[0]], title=name)
        for name, partition in (stats.get("partitions") or {}).items():
            self.say(name)
            self.statistics(partition)

    def say(self, sentence: str, value: object = None) -> None:
        """Print one result: a sentence for people, a value for machines; without a value machines need no word."""
        if not self.as_json:
            self._write(printable(sentence, keep="\n\t"))
        elif value is not None:
            self.json(value)

    def json(self, value: object) -> None:
        """Print one value on one line."""
        self._write(json_text(value, sys.stdout))

    def raw(self, data: bytes) -> None:
        """Print bytes as they are, and a newline behind them."""
        try:
            sys.stdout.buffer.write(data + b"\n")
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            silence_stdout()
            raise SystemExit(0) from None

    @contextmanager
    def working(self, sentence: str) -> Iterator[Callable[[str], None]]:
        """Show that something goes on, with a line that may be changed; it is gone at the end."""
        if not sys.stderr.isatty():
            yield lambda _: None
            return
        from threading import Timer  # noqa: PLC0415 - a machine that calls needs neither

        from rich.console import Console  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        status = Console(stderr=True, highlight=False).status(Text(printable(sentence)))
        timer = Timer(_SHOW_AFTER_S, status.start)
        timer.start()
        try:
            yield lambda changed: status.update(Text(printable(changed)))
        finally:
            timer.cancel()
            timer.join()
            status.stop()

    def _write(self, line: str) -> None:
        try:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            silence_stdout()
            raise SystemExit(0) from None


def silence_stdout() -> None:
    """Send to nowhere what a reader that has seen enough does not take.

    What is still buffered would fail again when the interpreter ends.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, dict) and value.keys() == {"ledger_id", "entry_id"}:
        return f"{value['ledger_id']}:{value['entry_id']}"
    if isinstance(value, bool | dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
