"""One try to offload one ledger, in the memory of the process that makes it. What survives a crash is in metadata."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

    from afterglow.errors import AfterglowError
    from afterglow.offload.blocks import BlockCopy, CopyOrder
    from afterglow.offload.offloader import LedgerOffloader
    from afterglow.offload.task import PartResult, Task


class Stage(Enum):
    """How far an attempt has come."""

    CLAIMED = auto()
    """No other attempt may begin; nothing was changed yet, or nothing but metadata."""
    COPYING = auto()
    """Its tasks wait or run."""
    ENDING = auto()
    """No task of it runs any more; the object is being finished and committed."""
    COMMITTING = auto()
    """The object is whole; its commit failed or had no known outcome, and is tried again."""


@dataclass(slots=True, eq=False)
class Attempt:
    """A ledger on its way. Guarded by the lock of whoever keeps it, but for what only its topic's lane touches."""

    order: CopyOrder
    size_bytes: int
    """Bytes of the ledger's entries."""
    replaces: UUID | None
    """UUID of an earlier attempt that failed."""
    offloader: LedgerOffloader
    progress_s: float
    """When it last came further, by the clock that only passes."""
    stage: Stage = Stage.CLAIMED
    copy: BlockCopy | None = None
    """Of our own drivers."""
    tasks: tuple[Task, ...] = ()
    handed_out: int = 0
    """How many of the tasks, in their order."""
    results: dict[str, PartResult] = field(default_factory=dict)
    """By task."""
    cancelled: bool = False
    """The ledger leaves the list, or the topic is no longer ours: nothing is committed."""
    stalled: bool = False
    """Whether it was named as stalled."""
    tries: int = 0
    """Failed commits."""
    next_try_ms: int = 0
    """When the commit is tried again, epoch milliseconds."""

    @property
    def ledger_id(self) -> int:
        """The ledger."""
        return self.order.ledger_id

    @property
    def uuid(self) -> UUID:
        """Of this attempt alone."""
        return self.order.uuid

    @property
    def failure(self) -> AfterglowError | None:
        """Of the first task, in their order, that failed."""
        found = (self.results[task.task_id].error for task in self.tasks if task.task_id in self.results)
        return next((error for error in found if error is not None), None)

    @property
    def running(self) -> int:
        """Tasks that were handed out and have not ended."""
        return self.handed_out - len(self.results)

    @property
    def wants_more(self) -> bool:
        """Whether it has tasks to hand out, and they are of use."""
        return (
            self.stage is Stage.COPYING
            and self.handed_out < len(self.tasks)
            and not self.cancelled
            and self.failure is None
        )

    @property
    def ended(self) -> bool:
        """Whether no task runs, and none will."""
        return self.stage is Stage.COPYING and not self.running and not self.wants_more
