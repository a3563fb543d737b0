"""Answers of Apache Pulsar's admin API about a topic, as the records that its metadata holds. Pure functions.

Two answers make one list: ``internal-info`` has the metadata but for the offload's state, since its ``isOffloaded``
says only that an offload was begun; ``internalStats`` has that, and how far the open ledger is written. The statistics
are to be asked for first: what they call offloaded has its final UUID in a list that is read later.
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


def ledger_list(internal_info: Json, internal_stats: Json, topic: str) -> ManagedLedgerInfo:
    """A topic's list of ledgers. Where they were offloaded to is not in it, nor which have left BookKeeper.

    Args:
        internal_info: Of the topic.
        internal_stats: Of the topic, a moment before.
        topic: For messages.

    Raises:
        CorruptMetadata: An answer makes no sense.
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
        raise CorruptMetadata(f"{topic}: what the admin API tells of its ledgers makes no sense: {error!r}") from error
    return info


def last_confirmed(internal_stats: Json, topic: str) -> Position:
    """The last entry of a topic that may be read; an entry of -1 where its last ledger has none.

    Raises:
        CorruptMetadata: The answer makes no sense.
    """
    try:
        return parse_position(internal_stats["lastConfirmedEntry"])[0]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptMetadata(f"{topic}: what the admin API tells of its end makes no sense: {error!r}") from error


def schema_versions(answer: Json, topic: str) -> tuple[SchemaVersion, ...]:
    """Every version of a topic's schema, oldest first.

    Raises:
        CorruptMetadata: The answer makes no sense.
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
        raise CorruptMetadata(f"{topic}: what the admin API tells of its schemas makes no sense: {error!r}") from error
    return tuple(sorted(found, key=lambda schema: schema.version))


def _joined(definition: str) -> bytes:
    """A key's and a value's definition as producers send them: each behind its length."""
    both = json.loads(definition)
    data = bytearray()
    for part in ("key", "value"):
        value = both.get(part, "")
        encoded = b"" if value == "" else json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        data += _LENGTH.pack(len(encoded)) + encoded
    return bytes(data)
