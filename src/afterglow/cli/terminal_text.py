"""Text of others, made safe to print: names, keys, payloads and error messages that a terminal must not obey.

A terminal acts on control characters: it moves the cursor, changes its title, or types an answer on the user's behalf.
Characters that reorder the text around them can make a name look like another one. Both are shown as escapes of Python.
"""

from __future__ import annotations

import json
import logging
from typing import Final, TextIO

_HARMLESS: Final = frozenset("\u00a0\u200c\u200d\u3000")
"""Spaces of other widths, and the joiners inside words and emoji: not printable to Python, and no danger."""


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
