"""How a task comes to the hot ledgers: through their files, or over the Pulsar protocol.

Which of the two is never guessed from names of hosts: a task that finds the engine's own id in the home shares the
engine's disk, and no other does.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from afterglow.errors import LedgerMissing
from afterglow.hot.local.shared import open_shared, read_instance
from afterglow.hot.pulsar.ledgers import RemoteLedgers
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from afterglow.hot.pulsar.runs import LedgerRange
    from afterglow.offload.task import OpenLedger, Task

_DEADLINE_S: Final = 60.0
"""Longest time without an entry over the protocol. The engine tries a task again that failed; a task that waits keeps a
worker from others."""


class Route(StrEnum):
    """Where a task read entries."""

    FILES = "files"
    PROTOCOL = "protocol"


@dataclass(frozen=True, slots=True)
class RouteBytes:
    """Bytes that tasks have read and uploaded, by where they read them."""

    files: int = 0
    protocol: int = 0

    def plus(self, route: Route | None, size_bytes: int) -> RouteBytes:
        """With further ones; those of no known route are not counted."""
        return self if route is None else replace(self, **{route: getattr(self, route) + size_bytes})


@contextmanager
def reach(task: Task, stretches: Sequence[LedgerRange]) -> Iterator[tuple[OpenLedger, Route]]:
    """What opens a task's ledgers from here, until the block ends, and where it finds them.

    Args:
        task: Says where they are.
        stretches: The entries that the task reads, in their order.

    Raises:
        LedgerMissing: They can be read neither way.
    """
    found = _instance_in(task.home)
    if found == task.instance:
        yield partial(open_shared, Path(task.home)), Route.FILES
        return
    if task.remote is None:
        there = "no hot log that can be read" if found is None else f"hot log {found}"
        raise LedgerMissing(
            f"the ledgers of {task.topic} cannot be read here: {task.home or 'no directory'} holds {there}, not "
            f"{task.instance}; run the workers on the engine's machine, share its disk with them, or let them reach "
            "its port (sparkMaster, advertisedAddress)"
        )
    topic = str(TopicName.from_managed_ledger_name(task.topic))
    with RemoteLedgers(
        task.remote, topic, stretches, deadline_s=_DEADLINE_S, instance=task.instance, offloads=True
    ) as ledgers:
        yield (lambda ledger_id: nullcontext(ledgers.ledger(ledger_id))), Route.PROTOCOL


def _instance_in(home: str) -> str | None:
    """Whose hot log is in a directory; None where it has none that may be read."""
    if not home:
        return None
    try:
        return read_instance(Path(home))
    except OSError:
        return None
