"""Reading every byte of many objects: the portions that an object is read in, and what comes of them together.

A portion is some blocks of one object, and all that whoever reads it must know. Each begins with the index anew, which
costs little beside the blocks, so that portions need nothing of each other and may be read anywhere, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from afterglow.verify.blocks import Share
from afterglow.verify.findings import Finding, Kind
from afterglow.verify.objects import check_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from afterglow.storage.store import ObjectStore
    from afterglow.verify.objects import DriverCopies, ObjectCheck
    from afterglow.verify.topic_metadata import ParsedLocation

PORTION_BYTES: Final = 128 << 20
"""About half a second of reading and checking: little to do over, and much beside what a task costs."""


class ObjectChecker(Protocol):
    """Checks objects, here or elsewhere."""

    def __call__(self, checks: Sequence[ObjectCheck]) -> Iterator[tuple[ObjectCheck, tuple[Finding, ...]]]:
        """Give each object with what was found, in any order, as soon as it is known.

        Raises:
            StorageError: A store fails.
        """
        ...


@dataclass(frozen=True, slots=True)
class Portion:
    """Some blocks of one object."""

    check: ObjectCheck
    number: int
    """Among the object's portions, from 0."""
    share: Share
    size_bytes: int
    """About how much there is to read, by metadata."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What reading a portion has brought."""

    findings: tuple[Finding, ...]
    uncovered_bytes: int
    """That no checksum covers."""


def portions(check: ObjectCheck, portion_bytes: int = PORTION_BYTES) -> tuple[Portion, ...]:
    """What to read of an object, in its order. The last portion holds whatever metadata did not expect."""
    starts = range(0, max(check.size_bytes, 1), portion_bytes)
    return tuple(
        Portion(
            check,
            number,
            Share(start, None if number + 1 == len(starts) else start + portion_bytes),
            min(portion_bytes, check.size_bytes - start),
        )
        for number, start in enumerate(starts)
    )


def read_portion(store: ObjectStore | DriverCopies, portion: Portion, instance: str) -> Reading:
    """Read and check a portion.

    Raises:
        StorageError: The store fails.
    """
    findings: list[Finding] = []
    reading = check_object(store, portion.check, instance=instance, share=portion.share)
    while True:
        try:
            findings.append(next(reading))
        except StopIteration as end:
            return Reading(tuple(findings), end.value)


def merge(check: ObjectCheck, readings: Iterable[Reading]) -> tuple[Finding, ...]:
    """What is to be told of an object, given the readings of all its portions in their order."""
    held = tuple(readings)
    findings = dict.fromkeys(finding for reading in held for finding in reading.findings)
    uncovered = sum(reading.uncovered_bytes for reading in held)
    if uncovered:
        detail = f"no checksum covers {uncovered} bytes of its entries, neither the index's nor one of their own"
        findings[Finding(Kind.UNCHECKED, check.topic, check.key, None, detail)] = None
    return tuple(findings)


class CheckHere:
    """An :class:`ObjectChecker` in this process, one object after the other.

    Args:
        stores: Gives the store of a place.
        instance: Our own.
        deep: Read every byte.
    """

    def __init__(
        self, stores: Callable[[ParsedLocation], ObjectStore | DriverCopies], instance: str, *, deep: bool
    ) -> None:
        self._stores = stores
        self._instance = instance
        self._deep = deep

    def __call__(self, checks: Sequence[ObjectCheck]) -> Iterator[tuple[ObjectCheck, tuple[Finding, ...]]]:
        """See the protocol."""
        for check in checks:
            store = self._stores(check.location)
            if self._deep:
                yield check, merge(check, (read_portion(store, part, self._instance) for part in portions(check)))
            else:
                yield check, tuple(check_object(store, check, instance=self._instance))
