"""Choice between bookies and brokers for the entries of an attached cluster, made once at the start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from afterglow.config.choices import EntryPath
from afterglow.errors import AccessDenied, ConfigError, HotLogUnavailable
from afterglow.hot.pulsar.broker_connection import Deadline
from afterglow.hot.pulsar.lookup import Dialer, find_broker

if TYPE_CHECKING:
    from afterglow.attach.cluster import AttachedCluster
    from afterglow.hot.bookkeeper import BookKeeperClient, BookKeeperCluster
    from afterglow.hot.pulsar.address import PulsarAddress
    from afterglow.metadata.cluster_credentials import ClusterCredentials

_PROBE_S: Final = 10.0
"""Longest wait for a broker."""
_MAX_PROBED: Final = 10
"""Bookies that are asked: each may take five seconds to time out."""
_ANY_LEDGER: Final = 0
"""Ledger for the probe of a bookie: whether it has the entry does not matter, only whether it answers."""


@dataclass(frozen=True, slots=True)
class ChosenPath:
    """Where entries are read."""

    entries: EntryPath
    """Never ``AUTO``."""
    reason: str

    def __str__(self) -> str:
        source = "brokers" if self.entries is EntryPath.BROKER else "bookies"
        return f"entries from {source} ({self.reason})"


def choose_path(
    wanted: EntryPath,
    cluster: AttachedCluster,
    bookies: BookKeeperCluster,
    client: BookKeeperClient,
    brokers: PulsarAddress,
) -> ChosenPath:
    """Probe bookies, and brokers if these are to be used.

    Args:
        wanted: What ``--entries`` says.
        cluster: The cluster.
        bookies: Its bookies.
        client: Reads them.
        brokers: Its brokers.

    Raises:
        ConfigError: No bookie is registered, and entries are to be read from bookies.
        HotLogUnavailable: What is to be used cannot be reached.
        AccessDenied: It requires other authentication.
        MetadataUnavailable: The metadata of the cluster cannot be read.
    """
    problem = "as --entries says"
    if wanted is not EntryPath.BROKER:
        try:
            reason = _probe_bookies(bookies, client)
        except (AccessDenied, ConfigError, HotLogUnavailable) as error:
            if wanted is EntryPath.BOOKKEEPER:
                raise
            problem = str(error)
        else:
            return ChosenPath(EntryPath.BOOKKEEPER, reason)
    _probe_brokers(cluster, brokers)
    return ChosenPath(EntryPath.BROKER, problem)


def _probe_bookies(bookies: BookKeeperCluster, client: BookKeeperClient) -> str:
    """Ask bookies for an entry until one answers; returns which one. Others may be down."""
    failed: HotLogUnavailable | None = None
    for bookie_id in bookies.bookies()[:_MAX_PROBED]:
        try:
            client.bookie(bookie_id).can_batch(_ANY_LEDGER, 0)
        except HotLogUnavailable as error:
            failed = error
        else:
            return f"bookie {bookie_id} answers"
    if failed is None:
        raise ConfigError("the cluster has no registered bookies")
    raise failed


def _probe_brokers(cluster: AttachedCluster, brokers: PulsarAddress) -> None:
    """Look up the broker of a topic, and connect to it."""
    topic = cluster.topics()[0]
    deadline = Deadline(f"connecting to the broker of {topic}", _PROBE_S, _PROBE_S)
    find_broker(Dialer(brokers), topic, deadline).close()


def trusted_certificates(credentials: ClusterCredentials) -> str | None:
    """The trusted certificates themselves, so that workers on other machines need no file; None: those of the system.

    Raises:
        ConfigError: The file cannot be read.
    """
    if credentials.ca_file is None:
        return None
    try:
        return Path(credentials.ca_file).read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--ca-file {credentials.ca_file} cannot be read: {error}") from error
