"""Objects that Apache Pulsar itself wrote, with what its own reader saw in them.

A case is a directory: ``objects/`` (those over a megabyte gzipped), ``objects.json``, and, depending on how the case
was made, ``case.json``, ``read-cold.jsonl`` (messages, read by the Java client from tiered storage) or
``entries.jsonl`` (digests of raw entries). Some small cases are in the repository's ``tests/golden``; the full set is
looked for in ``$AFTERGLOW_GOLDEN``, then in ``../shared/golden`` beside the repository.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from afterglow.format.objects import set_uuid
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

ENVIRONMENT = "AFTERGLOW_GOLDEN"
"""Names the directory of the full set."""

INLINE_BYTES = 64 * 1024
"""Payloads above this are given by size and digest alone."""

_REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class GoldenObject:
    """One line of ``objects.json``."""

    key: str
    size_bytes: int
    """Of the object, unpacked."""
    sha256: str
    """Of the same bytes, in hex."""
    user_metadata: dict[str, str]
    """As the store gave it back: keys in lower case."""


@dataclass(frozen=True)
class GoldenCase:
    """One case, read on demand."""

    path: Path

    @property
    def name(self) -> str:
        """Name of the case."""
        return self.path.name

    @cached_property
    def about(self) -> dict[str, Any]:
        """``case.json``: how it was made; empty if the file is missing."""
        path = self.path / "case.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    @cached_property
    def listing(self) -> tuple[GoldenObject, ...]:
        """``objects.json``: what the store said of each object."""
        items = json.loads((self.path / "objects.json").read_text())
        return tuple(GoldenObject(item["key"], item["size"], item["sha256"], _user_metadata(item)) for item in items)

    @cached_property
    def objects(self) -> dict[str, bytes]:
        """Every object's bytes, unpacked, by key."""
        return {item.key: self._bytes(item.key) for item in self.listing}

    def unpack(self, directory: Path) -> None:
        """Write the objects into a directory as a local tier holds them, without their user metadata."""
        for key, data in self.objects.items():
            target = directory / key
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

    def messages(self) -> list[dict[str, Any]] | None:
        """``read-cold.jsonl``: one item per message, in order; None where the case has no such file."""
        return self._lines("read-cold.jsonl")

    def seen(self) -> list[dict[str, Any]]:
        """What Pulsar's own reader saw, message by message, in the words of :func:`as_manifest`."""
        return [
            {key: value for key, value in item.items() if key not in _CLIENTS_OWN} for item in self.messages() or ()
        ]

    def sent(self) -> list[dict[str, Any]] | None:
        """``sent.jsonl``: what the producer knows of each message; None where the case has no such file."""
        return self._lines("sent.jsonl")

    def entries(self) -> list[dict[str, Any]] | None:
        """``entries.jsonl``: ledger, entry, size and digest of each raw entry; None where there is no such file."""
        return self._lines("entries.jsonl")

    def stored_list(self) -> bytes:
        """The topic's list as the cluster stored it; a segment, which no broker ever names, is put into one."""
        stored = self.path / "mlinfo.bin"
        if stored.exists():
            return stored.read_bytes()
        info = ManagedLedgerInfo()
        (uuid,) = {key.removesuffix("-index") for key in self.objects}
        known = self.entries()
        assert known is not None
        for ledger_id in sorted({entry["ledgerId"] for entry in known}):
            last = max(entry["entryId"] for entry in known if entry["ledgerId"] == ledger_id)
            row = info.ledgerInfo.add(ledgerId=ledger_id, entries=last + 1, size=1, timestamp=1)
            set_uuid(row.offloadContext.offloadSegment.add(complete=True, endEntryId=last), UUID(uuid))
        return info.SerializeToString()

    def _lines(self, name: str) -> list[dict[str, Any]] | None:
        plain, packed = self.path / name, self.path / f"{name}.gz"
        if plain.exists():
            text = plain.read_text()
        elif packed.exists():
            text = gzip.decompress(packed.read_bytes()).decode()
        else:
            return None
        return [json.loads(line) for line in text.splitlines() if line]

    def _bytes(self, key: str) -> bytes:
        plain, packed = self.path / "objects" / key, self.path / "objects" / f"{key}.gz"
        return plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())


def _user_metadata(item: dict[str, Any]) -> dict[str, str]:
    if "userMetadata" in item:
        return dict(item["userMetadata"])
    # Where jclouds kept the object, its metadata is a Java map turned to text: {a=1, b=2}.
    text = item.get("userMetadata_as_returned_by_jclouds", "{}").strip("{}")
    return dict(pair.split("=", 1) for pair in text.split(", ") if pair)


_CLIENTS_OWN = frozenset(
    {"n", "batchSize", "partition", "key", "hasBase64EncodedKey"},
)
"""What ``read-cold.jsonl`` tells beside what is in a message."""


def as_manifest(row: dict[str, Any]) -> dict[str, Any]:
    """A row of messages, with its times in microseconds, in the words of ``read-cold.jsonl``."""
    value = row["value"] if row["value"] is not None else b""
    found = {
        "ledgerId": row["ledger_id"],
        "entryId": row["entry_id"],
        "batchIndex": row["batch_index"],
        "producerName": row["producer"],
        "sequenceId": row["sequence_id"],
        "publishTime": row["publish_time"] // 1000,
        "eventTime": (row["event_time"] or 0) // 1000,
        "hasKey": row["key"] is not None,
        "orderingKeyB64": _base64(row["ordering_key"]),
        "properties": dict(row["properties"]),
        "schemaVersionB64": _base64(row["schema_version"]),
        "brokerPublishTime": None if row["broker_time"] is None else row["broker_time"] // 1000,
        "index": row["index"],
        "encrypted": row["encrypted"],
        "nullValue": row["value"] is None,
        "replicatedFrom": row["replicated_from"],
        "size": len(value),
        "sha256": hashlib.sha256(value).hexdigest(),
    }
    if row["key"] is not None:
        found["keyBytesB64"] = _base64(row["key"])
    if len(value) <= INLINE_BYTES:
        found["payloadB64"] = _base64(value)
    return found


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def full_set() -> Path | None:
    """The directory of the full set, or None where it is not at hand."""
    named = os.environ.get(ENVIRONMENT)
    path = Path(named) if named else _REPOSITORY.parent / "shared" / "golden"
    return path if path.is_dir() else None


def cases() -> dict[str, GoldenCase]:
    """All cases at hand by name: the full set, or the small ones of the repository."""
    found = {case.name: case for case in _cases_in(_REPOSITORY / "tests" / "golden")}
    directory = full_set()
    if directory is not None:
        found |= {case.name: case for case in _cases_in(directory)}
    return dict(sorted(found.items()))


def _cases_in(directory: Path) -> Iterator[GoldenCase]:
    for path in sorted(directory.glob("*/objects.json")):
        yield GoldenCase(path.parent)
