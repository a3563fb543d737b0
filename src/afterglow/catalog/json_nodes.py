"""Nodes of the metadata store that hold one JSON object each, changed by compare-and-set."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from afterglow.errors import AlreadyExists, CorruptMetadata, NotFound, ValueTooLarge, VersionConflict
from afterglow.metadata.store import MUST_NOT_EXIST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.metadata.store import MetadataStore

    Json = dict[str, Any]


MAX_PROPERTIES_BYTES: Final = 64 << 10
"""Of all properties that users set on one topic or subscription. They share a node of the metadata store, about 1 MB,
with the ledger list: if they filled it, the topic could not roll over to a new ledger."""


def check_properties_size(properties: Mapping[str, str]) -> None:
    """Check that the properties of a topic or subscription leave space in their node.

    Raises:
        ValueTooLarge: They exceed :data:`MAX_PROPERTIES_BYTES`.
    """
    size_bytes = sum(len(key.encode()) + len(value.encode()) for key, value in properties.items())
    if size_bytes > MAX_PROPERTIES_BYTES:
        raise ValueTooLarge(
            f"properties of {size_bytes} bytes exceed the limit of {MAX_PROPERTIES_BYTES}: remove some, or store large "
            "values elsewhere and refer to them"
        )


class JsonNode:
    """One node of the metadata store.

    Args:
        metadata: The store.
        path: Path of the node.
        name: Name of its object in error messages.
    """

    def __init__(self, metadata: MetadataStore, path: str, name: str) -> None:
        self._metadata = metadata
        self._path = path
        self._name = name

    def exists(self) -> bool:
        """Whether the node has an object. A node that exists only as the parent of others has an empty value."""
        stored = self._metadata.get(self._path)
        return stored is not None and bool(stored.value)

    def read(self) -> Json:
        """The node's object.

        Raises:
            NotFound: The node does not exist.
            CorruptMetadata: It does not parse.
        """
        return self._read_version()[0]

    def read_optional(self) -> Json | None:
        """The node's object; None if the node does not exist.

        Raises:
            CorruptMetadata: It does not parse.
        """
        stored = self._metadata.get(self._path)
        return self._parse(stored.value) if stored is not None and stored.value else None

    def create(self, value: Json) -> None:
        """Create the node.

        Raises:
            AlreadyExists: It exists.
        """
        stored = self._metadata.get(self._path)
        if stored is not None and stored.value:
            raise AlreadyExists(f"{self._name} exists already")
        try:
            self._metadata.put(self._path, _dump(value), MUST_NOT_EXIST if stored is None else stored.version)
        except VersionConflict as error:
            raise AlreadyExists(f"{self._name} exists already") from error

    def update(self, change: Callable[[Json], Json]) -> None:
        """Change the node's object; concurrent changes are applied one after the other.

        Raises:
            NotFound: The node does not exist.
            CorruptMetadata: It does not parse.
        """
        while True:
            value, version = self._read_version()
            try:
                self._metadata.put(self._path, _dump(change(value)), version)
            except VersionConflict:
                continue
            return

    def update_optional(self, change: Callable[[Json], Json]) -> None:
        """Change the node's object; a node that does not exist has an empty object, which is never stored.

        Raises:
            CorruptMetadata: It does not parse.
        """
        while True:
            stored = self._metadata.get(self._path)
            version = MUST_NOT_EXIST if stored is None else stored.version
            changed = change(self._parse(stored.value) if stored is not None and stored.value else {})
            try:
                if changed:
                    self._metadata.put(self._path, _dump(changed), version)
                elif stored is not None:
                    self._metadata.delete(self._path, version)
            except VersionConflict:
                continue
            return

    def delete(self) -> None:
        """Delete the node.

        Raises:
            NotFound: It does not exist.
        """
        while True:
            _, version = self._read_version()
            try:
                self._metadata.delete(self._path, version)
            except VersionConflict:
                continue
            return

    def _read_version(self) -> tuple[Json, int]:
        stored = self._metadata.get(self._path)
        if stored is None or not stored.value:
            raise NotFound(f"{self._name} does not exist")
        return self._parse(stored.value), stored.version

    def _parse(self, value: bytes) -> Json:
        try:
            parsed = json.loads(value)
        except ValueError as error:
            raise CorruptMetadata(f"metadata of {self._name} is not valid JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise CorruptMetadata(f"metadata of {self._name} is not a JSON object")
        return parsed


def _dump(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
