"""One-line summaries of errors that Spark reports as stacks of Python and Java."""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = re.compile(r"(?:Caused by: )?(?:\S+: )?afterglow\.errors\.\w+: (.+)")
_ERROR: Final = re.compile(r"(?:Caused by: )?[\w.]*(?:Error|Exception|Interrupt): .+")
_STREAM: Final = re.compile(r"\[STREAM_FAILED\] .* terminated with exception: (.+?)(?: SQLSTATE: \w+)?")
"""The first line of the error of a stream, which its plan and its state follow."""


def summarize(error: BaseException) -> str:
    """The most specific line of an error.

    That is the message of an error of ours, else the last line that names an error, else the cause that a stream
    reports, else the last line that is not indented.
    """
    lines = [line for line in str(error).splitlines() if line and not line[0].isspace()]
    for line in reversed(lines):
        if found := _OURS.fullmatch(line):
            return found[1]
    named = [line for line in lines if _ERROR.fullmatch(line)]
    causes = [found[1] for line in lines if (found := _STREAM.fullmatch(line))]
    return (named or causes or lines or [type(error).__name__])[-1]
