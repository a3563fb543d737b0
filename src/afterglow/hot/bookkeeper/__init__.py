"""Ledgers of BookKeeper, read from their bookies without fencing them.

Entry points: :class:`BookKeeperClient` opens ledgers, :class:`BookKeeperCluster` is its view of the metadata, and
:func:`shared_client` the client of an address that travels with tasks.
"""

from __future__ import annotations

from afterglow.hot.bookkeeper.address import BookKeeperAddress, shared_client
from afterglow.hot.bookkeeper.client import BookKeeperClient
from afterglow.hot.bookkeeper.cluster_view import BookKeeperCluster
from afterglow.hot.bookkeeper.connection import ReadLimits
from afterglow.hot.bookkeeper.ledger import BookKeeperLedger

__all__ = [
    "BookKeeperAddress",
    "BookKeeperClient",
    "BookKeeperCluster",
    "BookKeeperLedger",
    "ReadLimits",
    "shared_client",
]
