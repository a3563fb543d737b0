"""Read-only view of a BookKeeper cluster in its ZooKeeper: metadata of ledgers, and addresses of bookies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from afterglow.errors import CorruptMetadata, HotLogUnavailable, MetadataUnavailable
from afterglow.format.proto.bookkeeper_pb2 import BookieServiceInfoFormat
from afterglow.hot.bookkeeper.ledger_metadata import decode_ledger_metadata, ledger_path

if TYPE_CHECKING:
    from afterglow.hot.bookkeeper.ledger_metadata import LedgerMetadata
    from afterglow.metadata.pulsar_cluster import MetadataReader

_ADDRESS: Final = re.compile(r"(?P<host>[^:]+):(?P<port>\d{1,5})")
_READ_PROTOCOL: Final = "bookie-rpc"


class BookKeeperCluster:
    """The metadata of one cluster. Thread-safe; caches only the layout, which never changes.

    Args:
        store: The metadata store of the cluster; the caller closes it.
        root: Root of all ledgers (``zkLedgersRootPath``).
    """

    def __init__(self, store: MetadataReader, root: str = "/ledgers") -> None:
        self._store = store
        self._root = root
        self._layout: str | None = None

    def ledger_metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """Return the metadata of a ledger; None if it was deleted or never existed.

        Raises:
            CorruptMetadata: The stored value is invalid, or of a newer release.
            MetadataUnavailable: The store cannot be reached.
        """
        if self._layout is None:
            self._layout = self._read_layout()
        stored = self._store.get(ledger_path(self._root, self._layout, ledger_id))
        return None if stored is None else decode_ledger_metadata(stored.value)

    def bookies(self) -> tuple[str, ...]:
        """Return the ids of all bookies that exist, running or not.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        return self._store.children(f"{self._root}/cookies")

    def address(self, bookie_id: str) -> tuple[str, int]:
        """Return the present host and port of a bookie, which may be read-only.

        Raises:
            HotLogUnavailable: It is not running, or its registration is invalid, and its id is not an address; or the
                store cannot be reached.
        """
        try:
            for parent in ("available", "available/readonly"):
                stored = self._store.get(f"{self._root}/{parent}/{bookie_id}")
                if stored is not None and stored.value:
                    return _registered_address(bookie_id, stored.value)
        except MetadataUnavailable as error:
            raise HotLogUnavailable(f"the address of bookie {bookie_id} cannot be read: {error}") from error
        # Bookies before 4.12 register no addresses, and one that has just lost its session may still answer.
        if match := _ADDRESS.fullmatch(bookie_id):
            return match["host"], int(match["port"])
        raise HotLogUnavailable(
            f"bookie {bookie_id} is not registered below {self._root}/available; check that it runs"
        )

    def _read_layout(self) -> str:
        """Return the class name of the layout; empty if the node is missing, as where Pulsar formatted the cluster."""
        stored = self._store.get(f"{self._root}/LAYOUT")
        if stored is None or not stored.value:
            return ""
        lines = stored.value.decode(errors="replace").split("\n")
        if len(lines) < 2:
            raise CorruptMetadata(f"invalid layout of BookKeeper's ledgers: {stored.value[:80]!r}")
        return lines[1].partition(":")[0]


def _registered_address(bookie_id: str, stored: bytes) -> tuple[str, int]:
    try:
        endpoints = BookieServiceInfoFormat.FromString(stored).endpoints
    except DecodeError as error:
        raise HotLogUnavailable(f"the registration of bookie {bookie_id} is invalid: {error}") from error
    for endpoint in endpoints:
        if endpoint.protocol == _READ_PROTOCOL:
            return endpoint.host, endpoint.port
    raise HotLogUnavailable(f"bookie {bookie_id} registers no endpoint for {_READ_PROTOCOL}; read through a broker")
