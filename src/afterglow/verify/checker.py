"""The checker: holds what metadata says against what is in the tiers.

It reads only. It may run beside an engine: a fault is told only if metadata, read again after it was seen, still says
what makes it one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from afterglow.errors import ConfigError, MissingDependency, NotSupported
from afterglow.metadata.paths import STANDALONE
from afterglow.verify.coverage import check_coverage, committed_objects
from afterglow.verify.deep import CheckHere
from afterglow.verify.findings import Finding, Kind
from afterglow.verify.names import add_names
from afterglow.verify.state import StateReader
from afterglow.verify.strays import Strays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from afterglow.metadata.pulsar_cluster import MetadataReader
    from afterglow.storage.store import ObjectStore
    from afterglow.verify.deep import ObjectChecker
    from afterglow.verify.driver_copies import DriverCopies
    from afterglow.verify.names import Naming
    from afterglow.verify.objects import ObjectCheck
    from afterglow.verify.places import Place
    from afterglow.verify.state import TopicState

_SETTLING: Final = 10
"""How often a topic that changes under the checker's eyes is looked at again before it is judged as it is."""
_AT_ONCE: Final = 10_000
"""Objects that are checked together: enough work for many machines, and some megabytes of memory."""


def verify(
    metadata: MetadataReader,
    stores: Callable[[Place], ObjectStore | DriverCopies],
    *,
    tiers: Iterable[ObjectStore],
    instance: str,
    cluster: str = STANDALONE,
    now_ms: int,
    grace_ms: int,
    deep: bool = False,
    hot: Callable[[int], bool] | None = None,
    checker: ObjectChecker | None = None,
) -> Iterator[Finding]:
    """Check all topics, then the tiers for what no topic names. Findings come as they are made.

    Kept in memory are the names of all committed objects, the state of one topic, what metadata says of some thousand
    objects, and one page of a listing.

    Args:
        metadata: The store; only read.
        stores: Gives the store of each place that metadata names, or the external driver that has its objects, as
            often as it is asked. What it cannot give is ``unchecked``.
        tiers: The stores to list for orphans and unfinished uploads; asked for when all topics are checked.
        instance: Our own, as objects carry it.
        cluster: Whose records of ours are meant.
        now_ms: The time by the stores' clocks, epoch milliseconds.
        grace_ms: Orphans and uploads that are not older are ``pending``.
        deep: Read and check every byte of every committed object.
        hot: Whether the hot log has a ledger, by its id; None where nobody can tell.
        checker: Checks objects instead of this process, as deep as it does.

    Raises:
        FormatError: A value of metadata cannot be read, so that nobody knows what it names.
        MetadataError: Metadata cannot be read.
        StorageError: A store fails.
        AfterglowError: What ``stores`` raises.
    """
    reader = StateReader(metadata, cluster)
    naming: Naming = {}
    checker = checker or CheckHere(stores, instance, deep=deep)
    due: dict[ObjectCheck, str] = {}
    for name in reader.names():
        state = reader.topic(name)
        add_names(naming, state)
        yield from _settled_coverage(reader, state, hot)
        checks = committed_objects(state)
        obstacles = {place: _obstacle(place, stores) for place in dict.fromkeys(check.place for check in checks)}
        yield from _unchecked(checks, obstacles)
        due |= {check: name for check in checks if obstacles[check.place] is None}
        if len(due) >= _AT_ONCE:
            yield from _check_objects(reader, checker, due)
            due.clear()
    yield from _check_objects(reader, checker, due)
    strays = Strays(reader, naming, instance=instance, now_ms=now_ms, grace_ms=grace_ms)
    for tier in tiers:
        for stray in strays.find(tier):
            yield stray.finding


def _obstacle(place: Place, stores: Callable[[Place], ObjectStore | DriverCopies]) -> str | None:
    """Why the objects of a place cannot be checked; None where they can."""
    if not place.blocks:
        return f"MapFiles of Pulsar's own file-system driver below {place.bucket}, which are not read here"
    try:
        stores(place)
    except (ConfigError, MissingDependency, NotSupported) as error:
        return str(error)
    return None


def _unchecked(checks: Sequence[ObjectCheck], obstacles: Mapping[Place, str | None]) -> Iterator[Finding]:
    """One finding for all objects of a topic that cannot be checked for the same reason."""
    by_reason: dict[str, list[ObjectCheck]] = {}
    for check in checks:
        if (reason := obstacles[check.place]) is not None:
            by_reason.setdefault(reason, []).append(check)
    for reason, found in by_reason.items():
        more = f" and {len(found) - 1} more objects" if len(found) > 1 else ""
        detail = f"{found[0].key}{more} cannot be checked: {reason}"
        yield Finding(Kind.UNCHECKED, found[0].topic, found[0].key, None, detail)


def read_naming(reader: StateReader) -> Naming:
    """What the metadata of all topics names."""
    naming: Naming = {}
    for name in reader.names():
        add_names(naming, reader.topic(name))
    return naming


def _check_objects(reader: StateReader, checker: ObjectChecker, due: dict[ObjectCheck, str]) -> Iterator[Finding]:
    """Check objects, each with the managed-ledger name of the topic that names it."""
    if not due:
        return
    for check, found in checker(tuple(due)):
        if any(finding.kind.is_fault for finding in found) and check not in committed_objects(reader.topic(due[check])):
            continue  # it was named before and is not any more: its deletion is what we have seen
        yield from found


def _settled_coverage(reader: StateReader, state: TopicState, hot: Callable[[int], bool] | None) -> list[Finding]:
    """Holes and overlaps that are there in a state which did not change while they were looked for."""
    found = list(check_coverage(state, hot))
    for _ in range(_SETTLING):
        if not found:
            break
        now = reader.topic(state.name)
        if now == state:
            break
        state = now
        found = list(check_coverage(state, hot))
    return found
