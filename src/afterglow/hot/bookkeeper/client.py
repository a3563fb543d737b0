"""A read-only client of the bookies of one cluster."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from afterglow.errors import AfterglowError, HotLogUnavailable, LedgerMissing
from afterglow.hot.bookkeeper.bookie import Bookie, access_denied
from afterglow.hot.bookkeeper.connection import ReadLimits
from afterglow.hot.bookkeeper.ledger import BookKeeperLedger
from afterglow.hot.bookkeeper.protocol import LAST_ENTRY, ReturnCode
from afterglow.hot.bookkeeper.replicas import LedgerReplicas
from afterglow.pacing import TokenBucket

if TYPE_CHECKING:
    from afterglow.hot.bookkeeper.cluster_view import BookKeeperCluster
    from afterglow.hot.bookkeeper.ledger_metadata import LedgerMetadata

_DEFAULT_LIMITS = ReadLimits()


class BookKeeperClient:
    """Opens ledgers for reading. Thread-safe; one connection for each bookie that holds entries of them.

    Args:
        cluster: The metadata of the cluster.
        limits: Limits of the load on the bookies, and of waits.

    Raises:
        ConfigError: A rate is not above 0.
    """

    def __init__(self, cluster: BookKeeperCluster, limits: ReadLimits = _DEFAULT_LIMITS) -> None:
        self._cluster = cluster
        self._limits = limits
        self._total = None if limits.bytes_per_s is None else TokenBucket(limits.bytes_per_s)
        self._lock = threading.Lock()
        self._bookies: dict[str, Bookie] = {}
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; reads in progress fail."""
        with self._lock:
            self._is_closed = True
            bookies = list(self._bookies.values())
        for bookie in bookies:
            bookie.close()

    def open(self, ledger_id: int, confirmed: int = -1) -> BookKeeperLedger:
        """Open a ledger, with one read of its metadata. Its writer, if there is one, does not notice.

        Args:
            ledger_id: The ledger.
            confirmed: Last entry that its writer has confirmed, such as ``lastConfirmedEntry`` of a broker. It is not
                needed for a closed ledger, whose metadata has its last entry.

        Raises:
            LedgerMissing: The ledger was deleted or never existed.
            CorruptMetadata: Its metadata is invalid.
            MetadataUnavailable: The metadata store cannot be reached.
        """
        return BookKeeperLedger(self._replicas(ledger_id, self._metadata(ledger_id)), confirmed)

    def confirmed_by_bookies(self, ledger_id: int) -> int:
        """Return an entry up to which a ledger may be read without a broker: the end of a closed ledger.

        For an open ledger this is a lower bound: the largest LAC in the last entries of its bookies. It lags behind the
        end by everything that was in flight. Entries before the last fragment are confirmed too.

        Returns:
            An entry id; -1 if no entry is known to be confirmed, as in a ledger that no entry has reached yet.

        Raises:
            LedgerMissing: The ledger was deleted or never existed.
            CorruptMetadata: Its metadata is invalid.
            MetadataUnavailable: The metadata store cannot be reached.
            HotLogUnavailable: No bookie of an open ledger answers.
            AccessDenied: Likewise, because they require authentication.
        """
        metadata = self._metadata(ledger_id)
        if metadata.is_closed:
            return metadata.last_entry
        replicas = self._replicas(ledger_id, metadata)
        fragment = metadata.fragments[-1]
        confirmed, answered = fragment.first - 1, False
        problem: AfterglowError | None = None
        for bookie_id in fragment.ensemble:
            try:
                response = self.bookie(bookie_id).connection().read(ledger_id, LAST_ENTRY)
                if response.code == ReturnCode.UNAUTHORIZED:
                    raise access_denied(bookie_id)
                if response.code == ReturnCode.OK:
                    entry = replicas.decoder(response.body).decode(response.body, None)
                    confirmed = max(confirmed, entry.last_confirmed)
                elif response.code not in {ReturnCode.NO_LEDGER, ReturnCode.NO_ENTRY}:
                    raise HotLogUnavailable(f"bookie {bookie_id} answers a read of {ledger_id} with {response.code}")
                answered = True
            except AfterglowError as error:  # the others may answer
                problem = error
        if problem is not None and not answered:
            raise problem
        return confirmed

    def has_bookies(self) -> bool:
        """Whether the metadata is that of a cluster with bookies, running or not.

        Raises:
            MetadataUnavailable: The metadata store cannot be reached.
        """
        return bool(self._cluster.bookies())

    def bookie(self, bookie_id: str) -> Bookie:
        """Return a bookie, which connects on demand.

        Raises:
            HotLogUnavailable: The client was closed.
        """
        with self._lock:
            if self._is_closed:
                raise HotLogUnavailable(f"bookie {bookie_id} cannot be read: the client was closed; open another")
            bookie = self._bookies.get(bookie_id)
            if bookie is None:
                bookie = self._bookies[bookie_id] = Bookie(bookie_id, self._cluster.address, self._limits, self._total)
            return bookie

    def _metadata(self, ledger_id: int) -> LedgerMetadata:
        metadata = self._cluster.ledger_metadata(ledger_id)
        if metadata is None:
            raise LedgerMissing(f"ledger {ledger_id} does not exist in BookKeeper: it was deleted, or never existed")
        return metadata

    def _replicas(self, ledger_id: int, metadata: LedgerMetadata) -> LedgerReplicas:
        return LedgerReplicas(ledger_id, metadata, self._cluster.ledger_metadata, self.bookie, self._limits)
