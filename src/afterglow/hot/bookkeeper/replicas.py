"""The replicas of one ledger: present metadata, bookies that serve it now, and the complete search for one entry."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from afterglow.errors import (
    AccessDenied,
    CorruptBlock,
    EntriesMissing,
    HotLogTimeout,
    HotLogUnavailable,
    LedgerMissing,
    MetadataError,
)
from afterglow.hot.bookkeeper.bookie import access_denied
from afterglow.hot.bookkeeper.entries import EntryDecoder, detect_decoder
from afterglow.hot.bookkeeper.protocol import ReturnCode
from afterglow.pacing import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from afterglow.errors import AfterglowError
    from afterglow.hot.bookkeeper.bookie import Bookie
    from afterglow.hot.bookkeeper.connection import ReadLimits
    from afterglow.hot.bookkeeper.entries import StoredEntry
    from afterglow.hot.bookkeeper.ledger_metadata import LedgerMetadata
    from afterglow.hot.bookkeeper.protocol import Response

REJECTION_BACKOFF_S: Final = Backoff(0.05, 5.0)
"""After rejections because of too many requests."""

_AVOID_S: Final = 10.0
"""Time for which a bookie without an entry of a ledger is not asked first."""
_REREAD_S: Final = 1.0
"""Shortest time between two reads of the metadata because of a failed bookie, while others serve the ledger."""
_UNREACHABLE_S: Final = 30.0
"""The same while the metadata store does not answer, for which each read waits."""


class LedgerReplicas:
    """Access to the bookies of one ledger. Thread-safe.

    Args:
        ledger_id: The ledger.
        metadata: Its metadata.
        read_metadata: Reads the metadata again; None if the ledger was deleted.
        bookie: Returns a bookie of the cluster by its id.
        limits: Limits of waits.
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        read_metadata: Callable[[int], LedgerMetadata | None],
        bookie: Callable[[str], Bookie],
        limits: ReadLimits,
    ) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        """As read last. The bookies of a deleted ledger serve it for minutes, by the metadata before."""
        self.limits = limits
        self._read_metadata = read_metadata
        self._bookie = bookie
        self._lock = threading.Lock()
        self._decoder = None if metadata.digest is None else EntryDecoder(ledger_id, metadata.digest, metadata.password)
        self._avoided: dict[str, float] = {}
        self._is_stale = False
        self._reread_at = 0.0

    def decoder(self, stored: memoryview) -> EntryDecoder:
        """Return the decoder of the ledger's entries; metadata of old releases need an entry to determine the digest.

        Raises:
            CorruptBlock: The entry fits no digest.
        """
        if self._decoder is None:
            self._decoder = detect_decoder(self.ledger_id, stored)
            if self._decoder is None:
                raise CorruptBlock(f"an entry of ledger {self.ledger_id} fits no digest; read another replica")
        return self._decoder

    @property
    def overhead_bytes(self) -> int:
        """Bytes of a stored entry beside its payload, in a batch."""
        return 0 if self._decoder is None else self._decoder.overhead_bytes

    def good_holders(self, first: int, count: int) -> list[Bookie]:
        """Bookies that hold ``count`` entries from ``first`` on and have not failed or missed an entry just now.

        Readers of different ledgers prefer different bookies, and one reader stays with a bookie, which reads ahead.
        """
        return [bookie for bookie in self._spread(self.metadata.holders(first, count)) if self._is_good(bookie)]

    def usable_holders(self, entry_id: int) -> list[Bookie]:
        """Bookies that hold an entry and have not failed just now; those that missed an entry last."""
        return [bookie for bookie in self._in_order(self.metadata.replicas(entry_id)) if bookie.is_usable]

    def refresh_if_stale(self) -> None:
        """Read the metadata again if a bookie has failed; an unreachable metadata store is not an error here."""
        if not self._is_stale or time.monotonic() < self._reread_at:
            return
        self._is_stale = False
        self._reread_at = time.monotonic() + _REREAD_S
        try:
            self.refresh()
        except MetadataError:
            self._is_stale = True
            self._reread_at = time.monotonic() + _UNREACHABLE_S

    def refresh(self) -> bool:
        """Read the metadata again; returns whether the ledger still exists.

        Raises:
            CorruptMetadata: The stored value is invalid.
            MetadataUnavailable: The metadata store cannot be reached.
        """
        found = self._read_metadata(self.ledger_id)
        if found is None:
            return False
        with self._lock:
            if found != self.metadata:
                self.metadata = found
                self._avoided.clear()
        return True

    def read_entry(self, entry_id: int) -> StoredEntry:
        """Read one entry from whichever bookie has it.

        All replicas are asked, and once more after the metadata was read again.

        Raises:
            AccessDenied: A bookie requires authentication, and no other has the entry.
            HotLogUnavailable: A bookie does not answer, and no other has the entry.
            CorruptBlock: The entry is damaged in every replica that exists.
            EntriesMissing: Every bookie of the ensemble says that it does not have the entry.
            LedgerMissing: Likewise, and the ledger was deleted.
        """
        exists = True
        problems: dict[str, AfterglowError] = {}
        for is_last in (False, True):
            if is_last:
                try:
                    exists = self.refresh()
                except MetadataError as error:
                    raise HotLogUnavailable(
                        f"entry {entry_id} of ledger {self.ledger_id} cannot be read: {_join(problems)}; its metadata "
                        f"cannot be read again: {error}"
                    ) from error
            problems = {}
            for bookie in self._in_order(self.metadata.replicas(entry_id)):
                try:
                    return self._read_from(bookie, entry_id)
                except (HotLogUnavailable, EntriesMissing, CorruptBlock, AccessDenied) as error:
                    problems[bookie.bookie_id] = error
                    self.on_failure(bookie.bookie_id)
        raise self._verdict(entry_id, problems, exists=exists)

    def on_failure(self, bookie_id: str) -> None:
        """Account for a failure of a bookie: others are preferred for a while, and the metadata is read again soon.

        Re-replication may have replaced a bookie that does not answer, and a new fragment one without an entry.
        """
        self._avoided[bookie_id] = time.monotonic() + _AVOID_S
        self._is_stale = True

    def check(self, bookie_id: str, response: Response) -> None:
        """Check the code of a response; ``TOO_MANY_REQUESTS`` is the caller's to handle.

        Raises:
            EntriesMissing: The bookie does not have the entry.
            AccessDenied: The bookie requires authentication.
            HotLogUnavailable: The bookie cannot serve the entry now.
        """
        if response.code == ReturnCode.OK:
            return
        if response.code in {ReturnCode.NO_LEDGER, ReturnCode.NO_ENTRY}:
            raise EntriesMissing(f"bookie {bookie_id} does not have {self.ledger_id}:{response.entry_id}")
        if response.code == ReturnCode.UNAUTHORIZED:
            raise access_denied(bookie_id)
        raise HotLogUnavailable(f"bookie {bookie_id} answers {self.ledger_id}:{response.entry_id} with {response.code}")

    def _read_from(self, bookie: Bookie, entry_id: int) -> StoredEntry:
        end = time.monotonic() + self.limits.deadline_s
        rejections = 0
        while (response := bookie.connection().read(self.ledger_id, entry_id)).code == ReturnCode.TOO_MANY_REQUESTS:
            rejections += 1
            pause_rejected(rejections, end, f"entry {entry_id} of ledger {self.ledger_id}")
        self.check(bookie.bookie_id, response)
        return self.decoder(response.body).decode(response.body, entry_id)

    def _in_order(self, bookie_ids: Iterable[str]) -> list[Bookie]:
        return sorted(self._spread(bookie_ids), key=lambda bookie: not self._is_good(bookie))

    def _spread(self, bookie_ids: Iterable[str]) -> list[Bookie]:
        members = sorted(bookie_ids) if self.metadata.ensemble_size == self.metadata.write_quorum else list(bookie_ids)
        start = self.ledger_id % len(members) if self.metadata.ensemble_size == self.metadata.write_quorum else 0
        return [self._bookie(bookie_id) for bookie_id in (*members[start:], *members[:start])]

    def _is_good(self, bookie: Bookie) -> bool:
        return bookie.is_usable and time.monotonic() >= self._avoided.get(bookie.bookie_id, 0.0)

    def _verdict(self, entry_id: int, problems: dict[str, AfterglowError], *, exists: bool) -> AfterglowError:
        what = f"entry {entry_id} of ledger {self.ledger_id}"
        for kind in (AccessDenied, HotLogUnavailable, CorruptBlock):
            if any(isinstance(error, kind) for error in problems.values()):
                return kind(f"{what} cannot be read: {_join(problems)}")
        if not exists:
            return LedgerMissing(f"ledger {self.ledger_id} was deleted, and {what} is on no bookie any more")
        return EntriesMissing(f"{what} is on none of its bookies: {_join(problems)}")


def pause_rejected(rejections: int, end: float, what: str) -> None:
    """Wait after so many consecutive rejections; half of the delay is random.

    Raises:
        HotLogTimeout: ``end``, by the monotonic clock, would pass during the pause.
    """
    pause = (REJECTION_BACKOFF_S.delay(rejections) + REJECTION_BACKOFF_S.jittered(rejections)) / 2
    if time.monotonic() + pause >= end:
        raise HotLogTimeout(f"{what} cannot be read: the bookie has too many requests; read with a lower rate")
    time.sleep(pause)


def _join(problems: dict[str, AfterglowError]) -> str:
    return "; ".join(str(error) for error in problems.values())
