"""Why Spark failed, in one line."""

from __future__ import annotations


def reason(error: BaseException) -> str:
    """Of stacks of Python and Java, the line that tells most: the last one that is not indented."""
    lines = [line for line in str(error).splitlines() if line and not line[0].isspace()]
    return lines[-1] if lines else type(error).__name__
