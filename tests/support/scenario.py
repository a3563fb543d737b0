"""A list of commands for ``pulsar-admin``, as a text that people read.

One step per line. ``topics stats acme/a/t`` is a command. ``! topics stats acme/a/absent`` is one that fails.
``last = topics last-message-id acme/a/t`` keeps the JSON that is printed, and ``{last.ledgerId}`` in a later line is a
part of it. ``> produce acme/a/t 10`` is an action of the runner, not of the tool. A line that begins with
``#`` is a remark.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEPT: Final = re.compile(r"(\w+) = (.*)")
_LOCATION: Final = re.compile(r"\{(\w+(?:\.\w+)*)\}")


@dataclass(frozen=True, slots=True)
class Step:
    """One line."""

    number: int
    text: str
    """As written, without the marks in front."""
    deed: bool = False
    fails: bool = False
    keeps: str | None = None
    """A name for what is printed."""

    def words(self, known: Mapping[str, Any]) -> list[str]:
        """The command's arguments, with what is known put into its places.

        Raises:
            KeyError: Something is not known.
        """

        def fill(location: re.Match[str]) -> str:
            value: Any = known
            for part in location[1].split("."):
                value = value[int(part)] if isinstance(value, list) else value[part]
            return str(value)

        return [_LOCATION.sub(fill, word) for word in shlex.split(self.text)]


def parse_scenario(text: str) -> tuple[Step, ...]:
    """The steps of a scenario."""
    return tuple(_step(number, line) for number, line in enumerate(map(str.strip, text.splitlines()), 1) if _says(line))


def _says(line: str) -> bool:
    return bool(line) and not line.startswith("#")


def _step(number: int, line: str) -> Step:
    if line.startswith(">"):
        return Step(number, line[1:].strip(), deed=True)
    if line.startswith("!"):
        return Step(number, line[1:].strip(), fails=True)
    if kept := _KEPT.fullmatch(line):
        return Step(number, kept[2], keeps=kept[1])
    return Step(number, line)
