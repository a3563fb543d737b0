"""Conversion of Apache Pulsar's admin API responses to metadata records. Pure functions.

A ledger list needs two responses: ``internal-info`` has the metadata except the state of offloads, since its
``isOffloaded`` is already true when an offload begins; ``internalStats`` has that state, and the last confirmed entry.
Request the statistics first: a ledger that they report as offloaded has its final UUID in an ``internal-info`` read
later.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from afterglow.errors import CorruptMetadata
from afterglow.format.objects import set_uuid
from afterglow.format.position import parse_position
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.format.schema import SchemaVersion

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    from afterglow.format.position import Position

    Json: TypeAlias = Mapping[str, Any]

_LENGTH: Final = struct.Struct(">i")
_KEY_VALUE: Final = "KEY_VALUE"
_OTHER_STORES: Final = frozenset({"oxia", "etcd", "rocksdb", "memory"})
_LEDGERS: Final = "/ledgers"
"""Root of all ledgers, below the chroot of the cluster's metadata."""


def ledger_list(internal_info: Json, internal_stats: Json, topic: str) -> ManagedLedgerInfo:
    """Return a topic's ledger list, without tier locations and without ``bookkeeperDeleted``.

    Args:
        internal_info: Response to ``internal-info``.
        internal_stats: Response to ``internalStats``, requested before.
        topic: Name of the topic, for messages.

    Raises:
        CorruptMetadata: A response is invalid.
    """
    info = ManagedLedgerInfo()
    try:
        offloaded = {row["ledgerId"] for row in internal_stats["ledgers"] if row.get("offloaded")}
        for given in internal_info["ledgers"]:
            row = info.ledgerInfo.add(ledgerId=given["ledgerId"], timestamp=given.get("timestamp") or 0)
            if given.get("entries") is not None:
                row.entries, row.size = given["entries"], given.get("size") or 0
            uuid = given.get("offloadedContextUuid")
            if uuid is not None:
                set_uuid(row.offloadContext, UUID(uuid))
                row.offloadContext.complete = row.ledgerId in offloaded and row.HasField("entries")
        for key, value in (internal_info.get("properties") or {}).items():
            info.properties.add(key=key, value=value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptMetadata(f"{topic}: invalid ledger list in the admin API's response: {error!r}") from error
    return info


def last_confirmed(internal_stats: Json, topic: str) -> Position:
    """Return the last confirmed entry of a topic; its entry id is -1 if the last ledger is empty.

    Raises:
        CorruptMetadata: The response is invalid.
    """
    try:
        return parse_position(internal_stats["lastConfirmedEntry"])[0]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptMetadata(f"{topic}: invalid lastConfirmedEntry in the admin API's response: {error!r}") from error


def zookeeper_address(configuration: Json) -> str | None:
    """Return the metadata store of a cluster as ``zk:…``; another store as it is, and None if none is reported.

    Args:
        configuration: Runtime configuration of a broker.
    """
    address = str(configuration.get("metadataStoreUrl") or configuration.get("zookeeperServers") or "")
    if not address:
        return None
    is_zookeeper = not ("://" in address or address.partition(":")[0] in _OTHER_STORES) or address.startswith("zk:")
    return f"zk:{address.removeprefix('zk:')}" if is_zookeeper else address


def ledgers_address(configuration: Json) -> tuple[str, str] | None:
    """Return the metadata store of a cluster's bookies and the root of all ledgers in it; None if not in ZooKeeper.

    Args:
        configuration: Runtime configuration of a broker.
    """
    given = str(configuration.get("bookkeeperMetadataServiceUri") or "").removeprefix("metadata-store:")
    if given:
        scheme, _, rest = given.partition(":")
        hosts, slash, root = rest.removeprefix("//").partition("/")
        # BookKeeper separates hosts by semicolons, and its scheme may name the layout: zk+hierarchical.
        return (f"zk://{hosts.replace(';', ',')}", slash + root) if scheme.partition("+")[0] == "zk" and root else None
    address = zookeeper_address(configuration)
    return (address, _LEDGERS) if address is not None and address.startswith("zk:") else None


def schema_versions(answer: Json, topic: str) -> tuple[SchemaVersion, ...]:
    """Return every version of a topic's schema, oldest first.

    Raises:
        CorruptMetadata: The response is invalid.
    """
    try:
        found = [
            SchemaVersion(
                int(row["version"]).to_bytes(8, "big"),
                str(row["type"]),
                _joined(row["data"]) if row["type"] == _KEY_VALUE else row["data"].encode(),
                dict(row.get("properties") or {}),
            )
            for row in answer["getSchemaResponses"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CorruptMetadata(f"{topic}: invalid schemas in the admin API's response: {error!r}") from error
    return tuple(sorted(found, key=lambda schema: schema.version))


def _joined(definition: str) -> bytes:
    """Encode the definitions of key and value as producers send them: each with its length before it."""
    both = json.loads(definition)
    data = bytearray()
    for part in ("key", "value"):
        value = both.get(part, "")
        encoded = b"" if value == "" else json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        data += _LENGTH.pack(len(encoded)) + encoded
    return bytes(data)
