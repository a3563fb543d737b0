"""Deletes what the checker calls orphans and leaks: ours, older than the grace, and named by nothing at that moment.

Per object or upload:

1. Metadata is read again, by :class:`~afterglow.verify.strays.Strays`. *Crash: nothing has happened.*
2. The object is deleted, or the upload aborted. *Crash: the next sweep finds the rest; a second deletion is none.*

No commit can come to need what step 1 did not find named: a UUID is put in metadata before its first byte is uploaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.metadata.paths import STANDALONE
from afterglow.verify.checker import read_naming
from afterglow.verify.state import StateReader
from afterglow.verify.strays import Strays

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from afterglow.metadata.pulsar_cluster import MetadataReader
    from afterglow.storage.store import ObjectStore
    from afterglow.verify.findings import Finding


@dataclass(frozen=True, slots=True)
class Swept:
    """One orphan or leak."""

    finding: Finding
    """An ``orphan_object`` or a ``leaked_upload``."""
    removed: bool
    """Whether it is gone now; False in a dry run."""


def sweep(
    metadata: MetadataReader,
    *,
    tiers: Iterable[ObjectStore],
    instance: str,
    cluster: str = STANDALONE,
    now_ms: int,
    grace_ms: int,
    dry_run: bool = True,
) -> Iterator[Swept]:
    """Delete the orphans and abort the leaked uploads of tiers, one by one as the result is consumed.

    Args:
        metadata: The store; only read.
        tiers: Where to look.
        instance: Our own: nothing without it is touched.
        cluster: Whose records of ours are meant.
        now_ms: The time by the stores' clocks.
        grace_ms: What is not older is left alone.
        dry_run: Only tell.

    Raises:
        FormatError: A value of metadata cannot be read, so that nobody knows what it names. Nothing was deleted.
        StorageError: A store fails; what was swept before stays swept.
        MetadataError: Metadata cannot be read any more; likewise.
    """
    reader = StateReader(metadata, cluster)
    strays = Strays(reader, read_naming(reader), instance=instance, now_ms=now_ms, grace_ms=grace_ms)
    for tier in tiers:
        for stray in strays.find(tier):
            if not stray.finding.kind.is_fault:
                continue
            if dry_run:
                yield Swept(stray.finding, removed=False)
                continue
            if stray.upload is not None:
                tier.abort_upload(stray.upload)
            else:
                assert stray.finding.object is not None
                tier.delete([stray.finding.object])
            yield Swept(stray.finding, removed=True)
