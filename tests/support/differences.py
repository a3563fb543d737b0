"""What two servers answered to one ``pulsar-admin`` command, compared.

Names that each server chooses for itself are made alike first: addresses, moments, and the numbers of ledgers, which
become their order of appearance. Then every part must be equal. Of an error the status counts, not the words.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.admin_tool import Outcome
    from tests.support.http_proxy import Exchange

_MOMENT: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?|\b(?:17[5-9]|18\d|19\d|2[0-4]\d)\d{10}\b"
)
_ADDRESS: Final = re.compile(r"\b(?:127\.0\.0\.1|localhost):\d+")
_POSITION: Final = re.compile(r"(?<![\w:-])(?<!\d\.)(\d+):(-?\d+)")
_WORDS: Final = re.compile(r"(PulsarAdminException\$\w+): .*")
_PAIR: Final = re.compile(r"(\S+) {4}(.*)")
_EPOCH_MS: Final = range(1_750_000_000_000, 2_500_000_000_000)
_ABSENT: Final = "<absent>"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a command."""

    outcome: Outcome
    exchanges: tuple[Exchange, ...]

    @property
    def reads(self) -> bool:
        """Whether it only asked, so that it may be asked again."""
        return all(exchange.method == "GET" for exchange in self.exchanges)

    @property
    def statuses(self) -> str:
        """How each request was answered; repetitions, by which the tool waits, count once."""
        return ", ".join(key for key, _ in groupby(f"{one.method} {_status(one)}" for one in self.exchanges))

    @property
    def content(self) -> Any:
        """What was printed: a JSON value, else the tool's way to print a map, else a list of lines."""
        try:
            return json.loads(self.outcome.output)
        except ValueError:
            lines = self.outcome.output.splitlines()
            pairs = [_PAIR.fullmatch(line) for line in lines]
            return {pair[1]: pair[2] for pair in pairs if pair} if lines and all(pairs) else lines


@dataclass(frozen=True, slots=True)
class Difference:
    """One part that is not the same."""

    command: str
    path: str
    """``code``, ``status`` or a place in what is printed: ``ledgers.0.size``."""
    theirs: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.command}\n    {self.path}: {_shown(self.theirs)} there, {_shown(self.ours)} here"


@dataclass(frozen=True, slots=True)
class Allowed:
    """Differences that are meant, or that say nothing."""

    command: str
    """With ``*`` for anything, as :attr:`path`."""
    path: str
    reason: str

    def covers(self, difference: Difference) -> bool:
        """Whether a difference is one of these."""
        return fnmatchcase(difference.command, self.command) and fnmatchcase(difference.path, self.path)


def allowed_differences(table: str) -> tuple[Allowed, ...]:
    """The rows of tables in Markdown whose columns are the command, the part, and why."""
    rows = [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in table.splitlines() if "|" in line]
    return tuple(Allowed(*row) for row in rows if not row[0].startswith("-") and row[0] != "command")


def compare(command: str, theirs: Answer, ours: Answer) -> Iterator[Difference]:
    """Every difference between two answers."""
    if theirs.outcome.code != ours.outcome.code:
        yield Difference(command, "code", _ended(theirs), _ended(ours))
    elif theirs.statuses != ours.statuses:
        yield Difference(command, "status", f"{theirs.statuses}: {_said(theirs)}", f"{ours.statuses}: {_said(ours)}")
    elif theirs.outcome.code == 0:
        for path, one, other in _parts("", _alike(theirs.content), _alike(ours.content)):
            yield Difference(command, path or "output", one, other)
    elif not _said(ours).strip():
        yield Difference(command, "reason", _said(theirs), _said(ours))


def _status(exchange: Exchange) -> int:
    """The status; Pulsar says 200 for some answers without content, and 204 for others of the same kind."""
    return 204 if exchange.status == 200 and not exchange.body else exchange.status


def _ended(answer: Answer) -> str:
    return f"{answer.outcome.code} ({answer.statuses}: {_said(answer) or answer.outcome.output.strip()[:200]})"


def _said(answer: Answer) -> str:
    return answer.outcome.errors.strip().partition("\n")[0]


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 400 else f"{text[:400]}…"


# --- making alike ---


def _alike(value: Any) -> Any:
    ledgers: dict[str, str] = {}

    def name(ledger: str) -> str:
        return ledgers.setdefault(ledger, f"L{len(ledgers) + 1}")

    def position(found: re.Match[str]) -> str:
        return f"{name(found[1])}:{found[2]}"

    def alike(value: Any, key: str = "") -> Any:
        match value:
            case dict():
                return {_text(inner): alike(part, inner) for inner, part in sorted(value.items())}
            case list():
                parts = [alike(part) for part in sorted(value, key=_ledger)]
                return sorted(parts) if _names(parts) else parts
            case bool() | None:
                return value
            case int() if key == "ledgerId" and value >= 0:
                return name(str(value))
            case int() if value in _EPOCH_MS:
                return "MOMENT"
            case str():
                return _POSITION.sub(position, _text(value))
        return value

    return alike(value)


def _ledger(value: Any) -> int:
    """By which ledgers are listed in order; Pulsar gives them in any."""
    found: int = value.get("ledgerId", 0) if isinstance(value, dict) else 0
    return found


def _text(value: str) -> str:
    return _ADDRESS.sub("ADDRESS", _MOMENT.sub("MOMENT", _WORDS.sub(r"\1", value)))


# --- comparing ---


def _parts(path: str, theirs: Any, ours: Any) -> Iterator[tuple[str, Any, Any]]:
    """The smallest parts that differ."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in theirs | ours:
            yield from _parts(_below(path, key), theirs.get(key, _ABSENT), ours.get(key, _ABSENT))
    elif _names(theirs) and _names(ours):
        if theirs != ours:
            yield path, sorted(set(theirs) - set(ours)), sorted(set(ours) - set(theirs))
    elif isinstance(theirs, list) and isinstance(ours, list):
        for location, (one, other) in enumerate(zip_longest(theirs, ours, fillvalue=_ABSENT)):
            yield from _parts(_below(path, str(location)), one, other)
    elif type(theirs) is not type(ours) or theirs != ours:
        yield path, theirs, ours


def _names(value: Any) -> bool:
    """Whether a value is a list of names, whose order says nothing."""
    return isinstance(value, list) and all(isinstance(part, str) and " " not in part for part in value)


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
