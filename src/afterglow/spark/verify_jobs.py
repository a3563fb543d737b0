"""Deep verification of objects in Spark jobs, with a task for some hundred megabytes.

Tasks receive the metadata of objects, and findings return as each task ends; the bytes of objects stay in the workers.
Spark retries tasks that die, and each result is delivered once. A store that fails is reported after all other objects
are verified.
"""

from __future__ import annotations

import pickle
import queue
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from uuid import uuid4

from afterglow.errors import AfterglowError, NotSupported
from afterglow.spark.errors import summarize
from afterglow.spark.jvm import require_driver
from afterglow.verify.deep import merge_results, portions, verify_portion
from afterglow.verify.findings import FindingKind
from afterglow.verify.objects import DriverCopies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

    from afterglow.storage.store import ObjectStore
    from afterglow.verify import CommittedObject, Finding, ParsedLocation
    from afterglow.verify.deep import Portion, PortionResult

    Verified: TypeAlias = tuple["ObjectPortion", PortionResult | AfterglowError]
    """A portion and its result."""

_GROUP_BYTES: Final = 64 << 20
_GROUP_PORTIONS: Final = 64
"""Most portions of one Spark task. A task costs some milliseconds, so small portions share one."""


class ByteProgress(Protocol):
    """Callback for the progress of a deep verification."""

    def __call__(self, done_bytes: int, due_bytes: int, objects: int, /) -> None:
        """Report bytes read, bytes due (which may grow) and objects verified."""
        ...


@dataclass(frozen=True, slots=True)
class ObjectPortion:
    """A portion of one of a job's objects."""

    object: int
    """The object's number in the job."""
    portion: Portion


class SparkVerifier:
    """An :class:`~afterglow.verify.deep.ObjectVerifier` that reads every byte, in Spark jobs.

    It calls ``progress`` when a portion is verified.

    Raises:
        NotSupported: The session is one of Spark Connect.
    """

    def __init__(
        self,
        session: SparkSession,
        stores: Callable[[ParsedLocation], ObjectStore | DriverCopies],
        instance: str,
        progress: ByteProgress | None = None,
    ) -> None:
        require_driver(session, "a verification")
        self._context: Any = session.sparkContext
        self._stores = stores
        self._instance = instance
        self._progress = progress
        self._done_bytes = self._due_bytes = self._objects = 0
        self._job: _VerifyJob | None = None

    def __call__(self, objects: Sequence[CommittedObject]) -> Iterator[tuple[CommittedObject, tuple[Finding, ...]]]:
        """Verify objects in one job; each is yielded when all its portions are verified.

        Raises:
            NotSupported: The objects are in the memory of this process, which tasks cannot read.
            AfterglowError: A store fails, the tasks do not see the tier, or Spark failed.
        """
        stores = {
            location: _require_shared(self._stores(location))
            for location in dict.fromkeys(target.location for target in objects)
        }
        due = [ObjectPortion(number, portion) for number, target in enumerate(objects) for portion in portions(target)]
        self._due_bytes += sum(item.portion.size_bytes for item in due)
        portion_counts = Counter(item.object for item in due)
        pending: dict[int, dict[int, PortionResult]] = {}
        errors: dict[int, AfterglowError] = {}  # the first of each object
        self._job = _VerifyJob(self._context, stores, self._instance)
        for item, outcome in self._job.run(due):
            number = item.object
            portion_counts[number] -= 1
            if isinstance(outcome, AfterglowError):
                errors.setdefault(number, outcome)
            else:
                pending.setdefault(number, {})[item.portion.number] = outcome
            self._done_bytes += item.portion.size_bytes
            self._objects += not portion_counts[number]
            if self._progress is not None:
                self._progress(self._done_bytes, self._due_bytes, self._objects)
            if portion_counts[number]:
                continue
            results = pending.pop(number, {})
            if number not in errors:
                target = objects[number]
                findings = merge_results(target, (results[portion] for portion in sorted(results)))
                _require_same_tier(findings, stores[target.location])
                yield target, findings
        if errors:
            first = next(iter(errors.values()))
            if len(errors) == 1:
                raise first
            raise AfterglowError(f"{len(errors)} objects could not be verified; the first: {first}")

    def cancel(self) -> None:
        """Cancel the running job, from any thread; the thread that waits for it gets an error. Later jobs run."""
        if self._job is not None:
            self._job.cancel()


class _VerifyJob:
    """One Spark job, on a thread of its own: Ctrl-C then ends the job and does not interrupt a call to the JVM."""

    def __init__(
        self, context: Any, stores: Mapping[ParsedLocation, ObjectStore | DriverCopies], instance: str
    ) -> None:
        self._context = context
        self._stores = {location: pickle.dumps(store) for location, store in stores.items()}
        self._instance = instance
        self._verified: queue.SimpleQueue[Verified | None] = queue.SimpleQueue()
        self._group = f"verify-{uuid4()}"

    def run(self, due: Sequence[ObjectPortion]) -> Iterator[Verified]:
        """Verify portions; each is yielded with its result when its task ends.

        Raises:
            AfterglowError: Spark failed.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="verify-job") as thread:
            future = thread.submit(self._submit, due)
            future.add_done_callback(lambda _: self._verified.put(None))
            try:
                while (verified := self._verified.get()) is not None:
                    yield verified
                error = future.exception()
                if error is not None:
                    # A worker that died repeatedly, or the end of the JVM: Spark has no common error type.
                    raise AfterglowError(f"the Spark job of the verification failed: {summarize(error)}") from error
            finally:
                if not future.done():
                    self.cancel()

    def cancel(self) -> None:
        """Have Spark cancel the job; running tasks are interrupted."""
        self._context.cancelJobGroup(self._group)

    def _submit(self, due: Sequence[ObjectPortion]) -> None:
        from afterglow.spark.result_channel import ResultChannel  # noqa: PLC0415 - imports Spark

        groups = group_portions(due)
        results = self._context.accumulator((), ResultChannel(self._verified.put))
        function = _VerifyFunction(self._stores, self._instance, results)
        self._context.setJobGroup(self._group, f"verify {len(due)} portions of objects")
        self._context.parallelize(groups, max(len(groups), 1)).foreach(function)


@dataclass(frozen=True, slots=True)
class _VerifyFunction:
    """The function that a task applies to a group of portions."""

    stores: Mapping[ParsedLocation, bytes]
    """Pickled, so that a worker opens each once."""
    instance: str
    results: Accumulator[tuple[Verified, ...]]

    def __call__(self, group: Sequence[ObjectPortion]) -> None:
        """Verify portions.

        An error of a store is a result: if it were raised, Spark would retry in vain and then fail the whole job.
        """
        for item in group:
            outcome: PortionResult | AfterglowError
            try:
                store = _open_store(self.stores[item.portion.target.location])
                outcome = verify_portion(store, item.portion, self.instance)
            except AfterglowError as error:
                outcome = error
            self.results.add(((item, outcome),))


def group_portions(due: Sequence[ObjectPortion]) -> list[list[ObjectPortion]]:
    """Group neighbouring portions up to the limits of a Spark task."""
    groups: list[list[ObjectPortion]] = []
    left_bytes = 0
    for item in due:
        if not groups or item.portion.size_bytes > left_bytes or len(groups[-1]) == _GROUP_PORTIONS:
            groups.append([])
            left_bytes = _GROUP_BYTES
        groups[-1].append(item)
        left_bytes -= item.portion.size_bytes
    return groups


def _require_shared(store: ObjectStore | DriverCopies) -> ObjectStore | DriverCopies:
    if store.url.startswith("memory:"):
        raise NotSupported(f"the tier {store.url} is in the memory of this process, which Spark tasks cannot read")
    return store


def _require_same_tier(findings: Sequence[Finding], store: ObjectStore | DriverCopies) -> None:
    """Distinguish missing objects from those that only this machine can see.

    Raises:
        AfterglowError: A task did not find an object that exists.
    """
    if isinstance(store, DriverCopies):
        return
    for finding in findings:
        if finding.kind not in {FindingKind.MISSING_OBJECT, FindingKind.MISSING_INDEX}:
            continue
        try:
            store.head(finding.object or "")
        except FileNotFoundError:
            continue
        raise AfterglowError(
            f"a Spark task did not find {finding.object} in {store.url}, though it exists: the tier must be the "
            "same directory on every machine where tasks run (--master)"
        )


@cache
def _open_store(pickled: bytes) -> ObjectStore | DriverCopies:
    """One store for all tasks of a worker, which Spark reuses: its connections stay open."""
    store: ObjectStore | DriverCopies = pickle.loads(pickled)  # noqa: S301 - pickled by the driver
    return store
