"""The same ``pulsar-admin`` commands against two servers at once, an Apache Pulsar and ours."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tests.support.differences import Answer, Difference, compare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tests.support.admin_tool import AdminTool
    from tests.support.differences import Allowed
    from tests.support.http_proxy import Recorder
    from tests.support.scenario import Step

_TIMEOUT_S: Final = 10.0
"""What a policy of a topic takes to be in force in Pulsar, which keeps them in a topic that it reads itself."""
_POLL_S: Final = 0.2


@dataclass(slots=True)
class Side:
    """One of the two servers, with a tool for it."""

    service_url: str
    tool: AdminTool
    recorder: Recorder
    """What the tool goes through."""
    known: dict[str, Any] = field(default_factory=dict)
    """What later commands may use."""

    def run(self, step: Step) -> Answer:
        """Run a command.

        Raises:
            KeyError: It uses what no command before it gave.
        """
        words = step.words(self.known)
        self.recorder.taken()
        answer = Answer(self.tool.run(*words), self.recorder.taken())
        if step.keeps is not None:
            self.known[step.keeps] = answer.content
        return answer


Deed: TypeAlias = "Callable[..., None]"
"""Takes a side and the words behind its name."""


@dataclass(slots=True)
class Comparison:
    """What came of running a scenario on both sides."""

    compared: int = 0
    """Commands."""
    differences: list[Difference] = field(default_factory=list)
    """Those that nothing allows."""
    used: set[Allowed] = field(default_factory=set)

    def __str__(self) -> str:
        return "\n".join(
            [f"{len(self.differences)} differences in {self.compared} commands:", *map(str, self.differences)]
        )


class SideBySide:
    """Runs scenarios.

    Args:
        theirs: The Apache Pulsar.
        ours: Afterglow.
        deeds: What steps other than commands do, by name.
        allowed: Differences that are no fault.
    """

    def __init__(self, theirs: Side, ours: Side, deeds: Mapping[str, Deed], allowed: Sequence[Allowed]) -> None:
        self._sides = (theirs, ours)
        self._deeds = deeds
        self._allowed = allowed

    def run(self, steps: Iterable[Step]) -> Comparison:
        """Run steps in order, each on both sides at once."""
        result = Comparison()
        with ThreadPoolExecutor(2, "side") as pool:
            for step in steps:
                if step.deed:
                    theirs, ours = pool.map(partial(self._do, step), self._sides)
                    result.differences += [Difference(step.text, "deed", theirs, ours)] if theirs or ours else []
                    continue
                result.compared += 1
                result.differences += self._settled(step, pool, result.used)
        return result

    def _do(self, step: Step, side: Side) -> str:
        """Carry out an action that is not a command; returns what went wrong."""
        try:
            name, *words = step.words(side.known)
            self._deeds[name](side, *words)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other side and the next steps go on
            return repr(error)
        return ""

    def _settled(self, step: Step, pool: ThreadPoolExecutor, used: set[Allowed]) -> list[Difference]:
        """The differences of one command: where it only asks, those that stay."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                theirs, ours = pool.map(methodcaller("run", step), self._sides)
            except KeyError as error:
                return [Difference(step.text, "not run", "", f"nothing gave {error}")]
            found = list(compare(step.text, theirs, ours))
            if step.fails is (theirs.outcome.code == 0):
                meant = "fails" if step.fails else "succeeds"
                found.append(Difference(step.text, f"{meant}, the scenario says", theirs.outcome.errors[:1000], ""))
            left = []
            for difference in found:
                by = [allowed for allowed in self._allowed if allowed.covers(difference)]
                used.update(by)
                left += [] if by else [difference]
            if not left or not (theirs.reads and ours.reads) or time.monotonic() >= deadline:
                return left
            time.sleep(_POLL_S)
