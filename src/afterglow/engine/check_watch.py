"""Watching a check at work: what it looks at, how far it has come, and a way to end it at its next step.

A step is a request to a tier or to metadata. Both are wrapped for it, so that the checker itself knows nothing of being
watched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from afterglow.errors import AfterglowError
from afterglow.storage.wrapper import StoreWrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from afterglow.metadata.pulsar_cluster import MetadataReader
    from afterglow.metadata.store import Versioned
    from afterglow.storage import ObjectStore
    from afterglow.storage.wrapper import Call
    from afterglow.verify import Finding, ObjectCheck, ObjectChecker

T = TypeVar("T")


class CheckCancelled(AfterglowError):
    """Somebody wanted the check to end."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a check has come."""

    looking_at: str = ""
    """The object, the listing or the node of metadata that it asked for last."""
    objects_done: int = 0
    objects_due: int = 0
    """Known so far; more may become due."""
    bytes_done: int = 0
    """Read and checked, by a deep check alone."""
    bytes_due: int = 0


class Watch:
    """What a check tells while it runs, and how it is ended. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._progress = Progress()
        self._cancelled = False
        self._interrupts: list[Callable[[], None]] = []

    @property
    def progress(self) -> Progress:
        """How far it has come."""
        return self._progress

    @property
    def cancelled(self) -> bool:
        """Whether it was told to end."""
        return self._cancelled

    def step(self, looking_at: str = "", *, objects_done: int = 0, objects_due: int = 0) -> None:
        """Tell that the check goes on.

        Args:
            looking_at: What it will ask for; empty: the same.
            objects_done: So many more are checked.
            objects_due: So many more are to be checked.

        Raises:
            CheckCancelled: It was told to end.
        """
        with self._lock:
            known = self._progress
            self._progress = replace(
                known,
                looking_at=looking_at or known.looking_at,
                objects_done=known.objects_done + objects_done,
                objects_due=known.objects_due + objects_due,
            )
        if self._cancelled:
            raise CheckCancelled("the check was cancelled")

    def read_bytes(self, done_bytes: int, due_bytes: int, _objects: int) -> None:
        """Tell how much a deep check has read; see :class:`~afterglow.spark.verify_jobs.Progress`.

        Raises:
            CheckCancelled: It was told to end.
        """
        with self._lock:
            self._progress = replace(self._progress, bytes_done=done_bytes, bytes_due=due_bytes)
        self.step()

    def on_cancel(self, interrupt: Callable[[], None]) -> None:
        """Have something called when the check is told to end, for what waits between two steps."""
        self._interrupts.append(interrupt)

    def cancel(self) -> None:
        """Tell the check to end. It does at its next step; a second call may hasten it, and else does nothing."""
        self._cancelled = True
        for interrupt in tuple(self._interrupts):
            interrupt()


class WatchedStore(StoreWrapper):
    """A store whose requests are steps. A pickled copy is the store itself: tasks elsewhere are not watched."""

    def __init__(self, inner: ObjectStore, watch: Watch) -> None:
        super().__init__(inner)
        self._watch = watch

    def __reduce__(self) -> tuple[object, ...]:
        return _itself, (self.inner,)

    def _call(self, call: Call, perform: Callable[[], T]) -> T:
        self._watch.step(call.key or f"{call.operation} of {self.url}")
        return perform()


class WatchedMetadata:
    """The reading half of a metadata store, whose requests are steps."""

    def __init__(self, inner: MetadataReader, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    def get(self, path: str) -> Versioned | None:
        """A node; None where there is none."""
        self._watch.step(path)
        return self._inner.get(path)

    def children(self, path: str) -> tuple[str, ...]:
        """Names of the nodes below a node."""
        self._watch.step(path)
        return self._inner.children(path)


class WatchedChecker:
    """An :class:`~afterglow.verify.ObjectChecker` that counts the objects that another has checked."""

    def __init__(self, inner: ObjectChecker, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    def __call__(self, checks: Sequence[ObjectCheck]) -> Iterator[tuple[ObjectCheck, tuple[Finding, ...]]]:
        """See the protocol.

        Raises:
            CheckCancelled: The check was told to end.
        """
        self._watch.step(f"{len(checks)} objects", objects_due=len(checks))
        for checked in self._inner(checks):
            self._watch.step(objects_done=1)
            yield checked


def _itself(store: ObjectStore) -> ObjectStore:
    return store
