"""Hot log of an Apache Pulsar cluster: the choice between its bookies and its brokers."""

from __future__ import annotations

import logging
from threading import Lock
from typing import TYPE_CHECKING

from afterglow.config.choices import EntryPath
from afterglow.errors import AccessDenied, AfterglowError, ConfigError, HotLogUnavailable, MetadataUnavailable
from afterglow.hot.bookkeeper import BookKeeperAddress
from afterglow.metadata.admin_responses import ledgers_address
from afterglow.read.hot_readers import HotLocation
from afterglow.source.directory import SourceSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.metadata.admin_client import AdminClient
    from afterglow.metadata.cluster_credentials import ClusterCredentials
    from afterglow.metadata.names import TopicName

_log = logging.getLogger(__name__)


class ClusterHot:
    """The hot log of all topics of a cluster. Thread-safe.

    Args:
        path: Where entries are read.
        find_bookies: Returns the address of the bookies; None: not known. Called once, and again after an error.
        credentials: Credentials for brokers.
    """

    def __init__(
        self, path: EntryPath, find_bookies: Callable[[], BookKeeperAddress | None], credentials: ClusterCredentials
    ) -> None:
        self._path = path
        self._find_bookies = find_bookies
        self._credentials = credentials
        self._lock = Lock()
        self._is_known = path is EntryPath.BROKER
        self._bookies: BookKeeperAddress | None = None

    def snapshot(
        self,
        topic: TopicName,
        info: ManagedLedgerInfo,
        open_entries: Mapping[int, int],
        service_url: str | None,
        *,
        without: str,
        has_bookies: bool = True,
    ) -> SourceSnapshot:
        """A snapshot of a topic.

        Args:
            topic: The topic.
            info: Its ledger list.
            open_entries: Number of confirmed entries of ledgers that are not closed in the list, as far as known.
            service_url: Address of the brokers; None: none is known.
            without: The reason why entries cannot be read if neither bookies nor brokers are known.
            has_bookies: Whether the cluster is one of Apache Pulsar.

        Raises:
            HotLogUnavailable: Bookies are required, and their address is not known.
        """
        bookies = self._address() if has_bookies else None
        if has_bookies and self._path is EntryPath.BOOKKEEPER:
            service_url, without = None, "entries=auto would read from a broker"
        location = HotLocation("", str(topic), service_url or "", credentials=self._credentials, bookies=bookies)
        known = {ledger.ledgerId: ledger.entries for ledger in info.ledgerInfo if ledger.HasField("entries")}
        newest = max((ledger.ledgerId for ledger in info.ledgerInfo if not ledger.HasField("entries")), default=None)
        hot = location.reader({**known, **open_entries}, newest, without=without)
        return SourceSnapshot(info, hot, location if service_url or bookies else None)

    def _address(self) -> BookKeeperAddress | None:
        with self._lock:
            if self._is_known:
                return self._bookies
            try:
                self._bookies = self._find_bookies()
            except AfterglowError as error:
                if self._path is EntryPath.BOOKKEEPER:
                    raise HotLogUnavailable(
                        f"the bookies of the cluster cannot be found: {error}; give the cluster's metadata as source, "
                        "zk://HOST:2181, or entries=auto"
                    ) from error
                _log.info("the bookies of the cluster cannot be found, reading from a broker: %s", error)
                if isinstance(error, MetadataUnavailable):
                    return None
            self._is_known = True
            return self._bookies


def bookies_of(api: AdminClient) -> BookKeeperAddress:
    """Address of the bookies of a cluster, by the settings of one of its brokers.

    Raises:
        AccessDenied: The role may not read them.
        ConfigError: They are not in ZooKeeper, or the broker does not report it.
        MetadataUnavailable: The API does not respond.
    """
    try:
        configuration = api.runtime_configuration() or {}
    except AccessDenied as error:
        raise AccessDenied(f"the role may not read the settings of brokers: {error}") from error
    found = ledgers_address(configuration)
    if found is None:
        raise ConfigError(f"{api.url} does not report that its metadata is in ZooKeeper")
    return BookKeeperAddress(*found)
