"""Objects of external offload drivers: only the driver knows their bytes, so that entries are read through it.

What comes is held against metadata as it is: every entry that metadata says is there, in order, and each against the
checksum of its own. Whether the driver stores anything that metadata does not name cannot be told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from afterglow.errors import FormatError, ObjectMissing
from afterglow.verify.entries import EntryChecks
from afterglow.verify.findings import Finding, Kind, position_text

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from afterglow.verify.blocks import Share
    from afterglow.verify.objects import ObjectCheck


@runtime_checkable
class DriverCopies(Protocol):
    """Objects of one place of an external driver. Picklable: deep checks read them in other processes."""

    @property
    def url(self) -> str:
        """The place, for messages."""
        ...

    def entries(self, key: str, ledger_id: int, first: int, last: int) -> Iterator[tuple[int, memoryview]]:
        """Id and data of the entries ``first`` to ``last``, both inclusive, as the driver gives them.

        Raises:
            ObjectMissing: The driver has no such object.
            FormatError: The driver finds it damaged.
            AfterglowError: The driver cannot be asked.
        """
        ...


def check_copies(copies: DriverCopies, check: ObjectCheck, share: Share | None) -> Generator[Finding, None, int]:
    """Check one object through its driver.

    Args:
        copies: Reads it.
        check: What metadata says.
        share: The part of its bytes whose entries are to be read, by the size that metadata says; None: only the first
            and the last entry of each ledger are.

    Returns:
        Bytes of entries that no checksum of their own covers, among those that were read.

    Raises:
        AfterglowError: The driver cannot be asked. That is no finding: nothing is known about the object.
    """
    uncovered_bytes = 0
    for ledger_id, first, last in _ranges(check, share):
        expected, checks = first, EntryChecks()
        try:
            for entry_id, data in copies.entries(check.key, ledger_id, first, last):
                if entry_id != expected:
                    break
                checks.whole(entry_id, data)
                expected += 1
        except ObjectMissing as error:
            yield _finding(check, Kind.MISSING_OBJECT, ledger_id, expected, f"{copies.url} has no such object: {error}")
            break
        except FormatError as error:
            yield _finding(check, Kind.DAMAGED_BLOCK, ledger_id, expected, f"{copies.url}: {error}")
            continue
        if expected <= last:
            detail = f"{copies.url} gives the entries {first} to {expected - 1}, where it holds {first} to {last}"
            yield _finding(check, Kind.HOLE, ledger_id, expected, detail)
        for told, problem in ((checks.wrong, "does not match its checksum"), (checks.torn, "is torn")):
            if told.count:
                yield _finding(check, Kind.DAMAGED_BLOCK, ledger_id, told.first, f"{copies.url}: {told} {problem}")
        uncovered_bytes += checks.uncovered_bytes
    return 0 if share is None else uncovered_bytes


def _ranges(check: ObjectCheck, share: Share | None) -> Iterator[tuple[int, int, int]]:
    """What is to be read: ledger, first and last entry, both inclusive."""
    known = [(held.ledger_id, held.first, held.first if held.last is None else held.last) for held in check.stretches]
    if share is None:
        for ledger_id, first, last in known:
            yield ledger_id, first, first
            if last > first:
                yield ledger_id, last, last
        return
    total = sum(last - first + 1 for _, first, last in known)
    size = max(check.size_bytes, 1)
    low, high = total * share.start // size, total if share.end is None else total * share.end // size
    before = 0
    for ledger_id, first, last in known:
        begin, end = max(low - before, 0), min(high - before, last - first + 1)
        if begin < end:
            yield ledger_id, first + begin, first + end - 1
        before += last - first + 1


def _finding(check: ObjectCheck, kind: Kind, ledger_id: int, entry_id: int, detail: str) -> Finding:
    return Finding(kind, check.topic, check.key, position_text(ledger_id, entry_id), detail)
