"""Address of the bookies of a cluster, and the client that a process keeps for further reads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from afterglow.hot.bookkeeper.client import BookKeeperClient
from afterglow.hot.bookkeeper.cluster_view import BookKeeperCluster
from afterglow.hot.bookkeeper.connection import ReadLimits
from afterglow.metadata.address import open_metadata

if TYPE_CHECKING:
    from afterglow.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class BookKeeperAddress:
    """Address of the bookies of a cluster; serialisable, for tasks on other machines."""

    metadata: str
    """Metadata of the cluster, ``zk://host:2181[/chroot]``; it is only read."""
    root: str = "/ledgers"
    """Root of all ledgers in it (``zkLedgersRootPath``)."""
    limits: ReadLimits = field(default_factory=ReadLimits)
    """Limits of the load on the bookies, for each process that reads."""


_MAX_CLIENTS: Final = 4
"""A process reads few clusters at a time; a client holds connections and threads."""

_clients: OrderedDict[BookKeeperAddress, tuple[MetadataStore, BookKeeperClient]] = OrderedDict()
_lock = threading.Lock()


def shared_client(address: BookKeeperAddress) -> BookKeeperClient:
    """A client; the same for the same address, until others evict it.

    Raises:
        ConfigError: The address or a limit is invalid.
        MissingDependency: kazoo is not installed.
        MetadataUnavailable: The metadata cannot be reached.
    """
    with _lock:
        known = _clients.pop(address, None)
        if known is None:
            store = open_metadata(address.metadata)
            try:
                known = store, BookKeeperClient(BookKeeperCluster(store, address.root), address.limits)
            except BaseException:
                store.close()
                raise
        _clients[address] = known
        evicted = [_clients.popitem(last=False)[1] for _ in range(len(_clients) - _MAX_CLIENTS)]
    for store, client in evicted:
        client.close()
        store.close()
    return known[1]
