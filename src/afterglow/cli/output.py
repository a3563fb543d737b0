"""Output of commands: tables, or one JSON object per line.

Only results are written to stdout; progress goes to stderr, and only to a terminal.

Names, keys, payloads and error messages are untrusted. Control characters can move a terminal's cursor, change its
title or type on the user's behalf, and bidirectional formatting characters can make one name look like another.
Therefore text output escapes both as Python does.
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
"""Spaces of other widths, and joiners in words and emoji: not printable according to Python, but harmless."""
_READABLE: Final = 20
"""Characters of a folded cell; narrower ones are hard to read."""
_SHOW_AFTER_S: Final = 0.5
"""Most calls have ended by then; an indicator that only flickers is of no use."""
_STATISTICS_COLUMNS: Final = {
    "publishers": ("producerName", "producerId", "msgRateIn", "address", "clientVersion"),
    "subscriptions": ("name", "type", "msgBacklog", "unackedMessages", "msgOutCounter", "bytesOutCounter"),
    "ledgers": ("ledgerId", "entries", "size", "offloaded", "isOffloaded"),
    "cursors": ("name", "markDelete", "markDeletePosition", "readPosition", "state", "individuallyDeletedMessages"),
}
"""Columns of the tables of statistics, if present; JSON has all fields."""


def printable(text: str, keep: str = "") -> str:
    """Escape all control, formatting and unassigned characters.

    Args:
        text: Untrusted text.
        keep: Characters that are not escaped, such as a newline.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _HARMLESS or c in keep else repr(c)[1:-1] for c in text)


def json_text(value: object, out: TextIO) -> str:
    """Return a value as one line of JSON; on a terminal, control characters in strings are written as JSON escapes."""
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable() or not out.isatty():
        return text
    return "".join(c if c.isprintable() or c in _HARMLESS else json.dumps(c)[1:-1] for c in text)


class PrintableFormatter(logging.Formatter):
    """Formatter of log records that contain untrusted names.

    A record is one line, and the lines of its traceback are indented, so that a name with a newline cannot forge a
    record.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name in logging
        """Return the line of the record, without its traceback."""
        return printable(super().formatMessage(record).rstrip("\n"))

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of the record, followed by its traceback."""
        line, *traceback = super().format(record).split("\n")
        return "\n".join([line, *("  " + printable(each, keep="\t") for each in traceback)])


class Output:
    """Prints results as tables or as JSON."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def rows(self, rows: Iterable[Mapping[str, Any]], absent: str, columns: Sequence[str] = ()) -> None:
        """Print a list of objects.

        Args:
            rows: Objects with the same keys.
            absent: Message if there are none, except in JSON.
            columns: Columns of the table. Default: all keys.
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
        """Print a list of strings, one per line; in JSON as objects with one key."""
        for value in values:
            if self.as_json:
                self.json({name: value})
            else:
                self._write(printable(value))

    def record(self, value: Mapping[str, Any] | None, absent: str) -> None:
        """Print one object as names and values.

        Args:
            value: The object; None if it is not set.
            absent: Message if it is not set, except in JSON.
        """
        if self.as_json:
            self.json(value)
        elif value is None:
            self._write(absent)
        else:
            self.table([{"name": name, "value": item} for name, item in value.items()], ("name", "value"))

    def table(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], title: str | None = None) -> None:
        """Print a table; one whose columns would be too narrow for the terminal as a block of lines for each row."""
        from rich.console import Console  # noqa: PLC0415 - rich is slow to import, and machines do not need it
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        console = Console()
        if len(columns) > 2 and _least_width(rows, columns) > console.width:
            self._blocks(rows, columns, title)
            return
        table = Table(title=title, title_justify="left")
        for column in columns:
            numbers = all(_is_number(row.get(column)) for row in rows)
            table.add_column(column, justify="right" if numbers else "left", overflow="fold")
        for row in rows:
            # Text, not str: brackets in a name are not mark-up.
            table.add_row(*(Text(printable(_shown(row.get(column)), keep="\n")) for column in columns))
        console.print(table)

    def _blocks(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], title: str | None) -> None:
        if title is not None:
            self._write(title)
        width = max(map(len, columns))
        for number, row in enumerate(rows):
            if number:
                self._write("")
            for column in columns:
                if row.get(column) is not None:
                    self._write(f"{column:{width}}  {printable(_shown(row[column]))}")

    def statistics(self, stats: Mapping[str, Any]) -> None:
        """Print statistics of a topic: a table of figures, then one for each list or map of objects."""
        if self.as_json:
            self.json(stats)
            return
        self.record({name: value for name, value in stats.items() if not isinstance(value, dict | list)}, absent="")
        for name, columns in _STATISTICS_COLUMNS.items():
            found = stats.get(name) or []
            rows = [{"name": key, **row} for key, row in found.items()] if isinstance(found, dict) else found
            if rows:
                self.table(rows, [column for column in columns if column in rows[0]], title=name)
        for name, partition in (stats.get("partitions") or {}).items():
            self.say(name)
            self.statistics(partition)

    def say(self, message: str, value: object = None) -> None:
        """Print a message; in JSON the value, or nothing without one."""
        if not self.as_json:
            self._write(printable(message, keep="\n\t"))
        elif value is not None:
            self.json(value)

    def json(self, value: object) -> None:
        """Print a value as one line of JSON."""
        self._write(json_text(value, sys.stdout))

    def raw(self, data: bytes) -> None:
        """Print bytes unmodified, followed by a newline."""
        with _until_pipe_closes():
            sys.stdout.buffer.write(data + b"\n")
            sys.stdout.buffer.flush()

    @contextmanager
    def working(self, activity: str) -> Iterator[Callable[[str], None]]:
        """Show an activity indicator on a terminal until the context is left; the yielded function changes its text."""
        if not sys.stderr.isatty():
            yield lambda _: None
            return
        from threading import Timer  # noqa: PLC0415 - not needed without a terminal

        from rich.console import Console  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        status = Console(stderr=True, highlight=False).status(Text(printable(activity)))
        timer = Timer(_SHOW_AFTER_S, status.start)
        timer.start()
        try:
            yield lambda changed: status.update(Text(printable(changed)))
        finally:
            timer.cancel()
            timer.join()
            status.stop()

    def _write(self, line: str) -> None:
        with _until_pipe_closes():
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


@contextmanager
def _until_pipe_closes() -> Iterator[None]:
    """Exit without an error if the reader has closed the pipe."""
    try:
        yield
    except BrokenPipeError:
        silence_stdout()
        raise SystemExit(0) from None


def silence_stdout() -> None:
    """Discard further output after the reader has closed the pipe.

    Otherwise flushing the buffered rest would fail again when the interpreter exits.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _least_width(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> int:
    """Width that a table needs, if long cells are folded to a length that can still be read."""
    cells = (max(len(column), *(len(_shown(row.get(column))) for row in rows)) for column in columns)
    return sum(min(width, _READABLE) + 3 for width in cells) + 1


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
