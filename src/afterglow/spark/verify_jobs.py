"""Objects read and checked byte by byte in a Spark job: a task for some hundred megabytes.

What metadata says of objects travels to the tasks, and findings travel back as each task ends; bytes of objects do not.
A task that dies is tried again, and nothing is told twice. A store that fails is told once everything else has been
read: no other object is the worse for it.
"""

from __future__ import annotations

import pickle
import queue
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from uuid import uuid4

from afterglow.errors import AfterglowError, NotSupported
from afterglow.spark.reasons import reason
from afterglow.verify.deep import merge, portions, read_portion
from afterglow.verify.findings import Kind
from afterglow.verify.objects import DriverCopies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

    from afterglow.storage.store import ObjectStore
    from afterglow.verify import Finding, ObjectCheck, ParsedLocation
    from afterglow.verify.deep import Portion, Reading

    Landed: TypeAlias = tuple["Placed", Reading | AfterglowError]
    """A portion, and what came of it."""

_GROUP_BYTES: Final = 64 << 20
_GROUP_PORTIONS: Final = 64
"""Of portions that Spark runs as one task: some milliseconds each are what a task costs."""


class Progress(Protocol):
    """Is told how far things have come."""

    def __call__(self, done_bytes: int, due_bytes: int, objects: int, /) -> None:
        """So much of what is due is read, and so many objects with it. More may become due."""
        ...


@dataclass(frozen=True, slots=True)
class Placed:
    """A portion of one of the job's objects."""

    object: int
    """The object's number."""
    portion: Portion


class SparkChecker:
    """An :class:`~afterglow.verify.deep.ObjectChecker` that reads every byte, in Spark jobs.

    Args:
        session: Runs them.
        stores: Gives the store of a place.
        instance: Our own.
        progress: Is told when a portion is read.
    """

    def __init__(
        self,
        session: SparkSession,
        stores: Callable[[ParsedLocation], ObjectStore | DriverCopies],
        instance: str,
        progress: Progress | None = None,
    ) -> None:
        self._context: Any = session.sparkContext
        self._stores = stores
        self._instance = instance
        self._progress = progress or _tell_nobody
        self._done_bytes = self._due_bytes = self._objects = 0
        self._job: _Job | None = None

    def __call__(self, checks: Sequence[ObjectCheck]) -> Iterator[tuple[ObjectCheck, tuple[Finding, ...]]]:
        """Check objects as one job; what the tasks find comes when all portions of an object are read.

        Raises:
            NotSupported: Objects are in the memory of this process, which tasks do not see.
            AfterglowError: A store fails, the tasks do not see the tier, or Spark failed.
        """
        stores = {
            location: _shareable(self._stores(location))
            for location in dict.fromkeys(check.location for check in checks)
        }
        placed = [Placed(number, portion) for number, check in enumerate(checks) for portion in portions(check)]
        self._due_bytes += sum(item.portion.size_bytes for item in placed)
        objects = [_Object() for _ in checks]
        for item in placed:
            objects[item.object].left += 1
        errors: list[AfterglowError] = []
        self._job = _Job(self._context, stores, self._instance)
        for item, outcome in self._job.run(placed):
            whole = objects[item.object].take(item.portion.number, outcome)
            self._done_bytes += item.portion.size_bytes
            self._objects += whole is not None
            self._progress(self._done_bytes, self._due_bytes, self._objects)
            if isinstance(whole, AfterglowError):
                errors.append(whole)
            elif whole is not None:
                check = checks[item.object]
                found = merge(check, whole)
                _insist_on_the_same_tier(found, stores[check.location])
                yield check, found
        if errors:
            raise _joined(errors)

    def cancel(self) -> None:
        """End the job that runs, from any thread; whoever waits for it gets an error. One that is to come runs."""
        if self._job is not None:
            self._job.cancel()


class _Object:
    """What came of an object's portions so far."""

    def __init__(self) -> None:
        self.left = 0
        """Portions that nothing was heard of yet."""
        self._read: dict[int, Reading] = {}
        self._error: AfterglowError | None = None

    def take(self, number: int, outcome: Reading | AfterglowError) -> Sequence[Reading] | AfterglowError | None:
        """Take what came of a portion; gives what came of all once it is the last, in their order or as an error."""
        self.left -= 1
        if isinstance(outcome, AfterglowError):
            self._error = self._error or outcome
        else:
            self._read[number] = outcome
        if self.left:
            return None
        readings, self._read = self._read, {}
        return self._error or [readings[number] for number in sorted(readings)]


class _Job:
    """One Spark job, on a thread of its own, so that Ctrl-C ends the job and not the talk with the JVM amid a word."""

    def __init__(
        self, context: Any, stores: Mapping[ParsedLocation, ObjectStore | DriverCopies], instance: str
    ) -> None:
        self._context = context
        self._stores = {location: pickle.dumps(store) for location, store in stores.items()}
        self._instance = instance
        self._landed: queue.SimpleQueue[Landed | None] = queue.SimpleQueue()
        self._group = f"verify-{uuid4()}"

    def run(self, placed: Sequence[Placed]) -> Iterator[Landed]:
        """Read portions; each with what came of it, as the task ends that read it.

        Raises:
            AfterglowError: Spark failed.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="verify-job") as thread:
            future = thread.submit(self._work_off, placed)
            future.add_done_callback(lambda _: self._landed.put(None))
            try:
                while (landed := self._landed.get()) is not None:
                    yield landed
                self._insist_on_success(future)
            finally:
                if not future.done():
                    self.cancel()

    def cancel(self) -> None:
        """Have Spark end the job; its tasks end where they are."""
        self._context.cancelJobGroup(self._group)

    def _work_off(self, placed: Sequence[Placed]) -> None:
        from afterglow.spark.handover import Handover  # noqa: PLC0415 - imports Spark

        groups = group_portions(placed)
        results = self._context.accumulator((), Handover(self._landed.put))
        work = _Work(self._stores, self._instance, results)
        self._context.setJobGroup(self._group, f"check {len(placed)} portions of objects, byte by byte")
        self._context.parallelize(groups, max(len(groups), 1)).foreach(work)

    @staticmethod
    def _insist_on_success(future: Future[None]) -> None:
        error = future.exception()
        if error is not None:
            # A worker that died again and again, the end of the JVM: Spark has no one error for them.
            raise AfterglowError(f"the Spark job that checks objects failed: {reason(error)}") from error


@dataclass(frozen=True, slots=True)
class _Work:
    """What a task does with its portions."""

    stores: Mapping[ParsedLocation, bytes]
    """Pickled, so that a worker opens each once."""
    instance: str
    results: Accumulator[tuple[Landed, ...]]

    def __call__(self, group: Sequence[Placed]) -> None:
        """Read portions.

        An error of a store is a result: raised, Spark would try four times in vain and then end the job for all.
        """
        for item in group:
            outcome: Reading | AfterglowError
            try:
                outcome = read_portion(_opened(self.stores[item.portion.check.location]), item.portion, self.instance)
            except AfterglowError as error:
                outcome = error
            self.results.add(((item, outcome),))


def group_portions(placed: Sequence[Placed]) -> list[list[Placed]]:
    """Neighbours put together, as far as they are small."""
    groups: list[list[Placed]] = []
    room = 0
    for item in placed:
        if not groups or item.portion.size_bytes > room or len(groups[-1]) == _GROUP_PORTIONS:
            groups.append([])
            room = _GROUP_BYTES
        groups[-1].append(item)
        room -= item.portion.size_bytes
    return groups


def _tell_nobody(_done_bytes: int, _due_bytes: int, _objects: int) -> None:
    """A :class:`Progress` that nobody watches."""


def _shareable(store: ObjectStore | DriverCopies) -> ObjectStore | DriverCopies:
    if store.url.startswith("memory:"):
        raise NotSupported(f"the tier {store.url} is in this process, where Spark's tasks cannot read it")
    return store


def _insist_on_the_same_tier(found: Sequence[Finding], store: ObjectStore | DriverCopies) -> None:
    """Tell objects that are gone from those that are on this machine alone.

    Raises:
        AfterglowError: A task did not find what is there.
    """
    if isinstance(store, DriverCopies):
        return
    for finding in found:
        if finding.kind in {Kind.MISSING_OBJECT, Kind.MISSING_INDEX} and _sees(store, finding.object or ""):
            raise AfterglowError(
                f"a Spark task did not find {finding.object} in {store.url}, though it is there: the tier must be the "
                "same directory on every machine where tasks run (--master)"
            )


def _sees(store: ObjectStore, key: str) -> bool:
    try:
        store.head(key)
    except FileNotFoundError:
        return False
    return True


def _joined(errors: Sequence[AfterglowError]) -> AfterglowError:
    first = errors[0]
    if len(errors) == 1:
        return first
    return AfterglowError(f"{len(errors)} objects could not be checked; the first: {first}")


@cache
def _opened(pickled: bytes) -> ObjectStore | DriverCopies:
    """One for all tasks of a worker, which is used again: its connections stay."""
    store: ObjectStore | DriverCopies = pickle.loads(pickled)  # noqa: S301 - the driver's own
    return store
