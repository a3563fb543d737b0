"""Deep verification: reads every byte of objects, in portions that can be read anywhere and in any order.

A portion is a byte range of one object, with all that its reader must know. Each portion starts by reading the index
again, which costs little compared with the blocks, so that portions do not depend on each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from afterglow.verify.blocks import ByteRange
from afterglow.verify.findings import Finding, FindingKind
from afterglow.verify.objects import verify_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from afterglow.storage.store import ObjectStore
    from afterglow.verify.objects import CommittedObject, DriverCopies
    from afterglow.verify.topic_metadata import ParsedLocation

PORTION_BYTES: Final = 128 << 20
"""About half a second of work: little to repeat after a failure, and much more than the overhead of a Spark task."""


class ObjectVerifier(Protocol):
    """Verifies objects, in this process or elsewhere."""

    def __call__(self, objects: Sequence[CommittedObject]) -> Iterator[tuple[CommittedObject, tuple[Finding, ...]]]:
        """Yield each object with its findings, in any order, as soon as it is verified.

        Raises:
            StorageError: A store fails.
        """
        ...


@dataclass(frozen=True, slots=True)
class Portion:
    """A byte range of one object."""

    target: CommittedObject
    number: int
    """Among the object's portions, from 0."""
    byte_range: ByteRange
    size_bytes: int
    """Bytes to read, estimated from metadata."""


@dataclass(frozen=True, slots=True)
class PortionResult:
    """Result of verifying a portion."""

    findings: tuple[Finding, ...]
    uncovered_bytes: int
    """Bytes that no checksum covers."""


def portions(target: CommittedObject, portion_bytes: int = PORTION_BYTES) -> tuple[Portion, ...]:
    """Divide an object into portions, ascending. The last one has no end: the object may be longer than recorded."""
    starts = range(0, max(target.size_bytes, 1), portion_bytes)
    return tuple(
        Portion(
            target,
            number,
            ByteRange(start, None if number + 1 == len(starts) else start + portion_bytes),
            min(portion_bytes, target.size_bytes - start),
        )
        for number, start in enumerate(starts)
    )


def verify_portion(store: ObjectStore | DriverCopies, portion: Portion, instance: str) -> PortionResult:
    """Read and verify a portion.

    Raises:
        StorageError: The store fails.
    """
    findings: list[Finding] = []
    verification = verify_object(store, portion.target, instance=instance, byte_range=portion.byte_range)
    while True:
        try:
            findings.append(next(verification))
        except StopIteration as end:
            return PortionResult(tuple(findings), end.value)


def merge_results(target: CommittedObject, results: Iterable[PortionResult]) -> tuple[Finding, ...]:
    """Findings of an object, given the results of all its portions in ascending order."""
    findings: dict[Finding, None] = {}
    uncovered = 0
    for result in results:
        findings |= dict.fromkeys(result.findings)
        uncovered += result.uncovered_bytes
    if uncovered:
        detail = f"no checksum covers {uncovered} bytes of its entries, neither the index's nor one of their own"
        findings[Finding(FindingKind.UNCHECKED, target.topic, target.key, None, detail)] = None
    return tuple(findings)


class LocalVerifier:
    """An :class:`ObjectVerifier` in this process, one object after the other; arguments as of ``verify()``."""

    def __init__(
        self, stores: Callable[[ParsedLocation], ObjectStore | DriverCopies], instance: str, *, deep: bool
    ) -> None:
        self._stores = stores
        self._instance = instance
        self._deep = deep

    def __call__(self, objects: Sequence[CommittedObject]) -> Iterator[tuple[CommittedObject, tuple[Finding, ...]]]:
        """See the protocol."""
        for target in objects:
            store = self._stores(target.location)
            if self._deep:
                results = (verify_portion(store, portion, self._instance) for portion in portions(target))
                yield target, merge_results(target, results)
            else:
                yield target, tuple(verify_object(store, target, instance=self._instance))
