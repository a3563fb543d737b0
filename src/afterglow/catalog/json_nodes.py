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


MAX_GIVEN_BYTES: Final = 64 << 10
"""Of all properties that people give one topic or subscription. They share a node of the metadata store, about 1 MB,
with the list of ledgers: where they fill it, the topic cannot go on in a new ledger."""


def check_given(properties: Mapping[str, str]) -> None:
    """Check that properties which people give, all together, leave room for what they share a node with.

    Raises:
        ValueTooLarge: They do not.
    """
    size_bytes = sum(len(key.encode()) + len(value.encode()) for key, value in properties.items())
    if size_bytes > MAX_GIVEN_BYTES:
        raise ValueTooLarge(
            f"the properties have {size_bytes} bytes together, and at most {MAX_GIVEN_BYTES} are kept: remove some, or "
            "keep what is large elsewhere and give its address"
        )


class JsonNodes:
    """The nodes of a store; ``what`` names an object in messages."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    def read(self, path: str, what: str) -> tuple[Json, int]:
        """A node's object and its version.

        Raises:
            NotFound: There is no such node.
            CorruptMetadata: It does not parse.
        """
        stored = self._metadata.get(path)
        if stored is None or not stored.value:
            # An empty value is a parent that some child brought into being.
            raise NotFound(f"{what} does not exist")
        return parse(stored.value, what), stored.version

    def create(self, path: str, value: Json, what: str) -> None:
        """Make a node.

        Raises:
            AlreadyExists: There is one.
        """
        stored = self._metadata.get(path)
        if stored is not None and stored.value:
            raise AlreadyExists(f"{what} exists already")
        try:
            self._metadata.put(path, dump(value), MUST_NOT_EXIST if stored is None else stored.version)
        except VersionConflict as error:
            raise AlreadyExists(f"{what} exists already") from error

    def update(self, path: str, change: Callable[[Json], Json], what: str) -> None:
        """Change a node's object; changes at the same time are made in turn.

        Raises:
            NotFound: There is no such node.
            CorruptMetadata: It does not parse.
        """
        while True:
            value, version = self.read(path, what)
            try:
                self._metadata.put(path, dump(change(value)), version)
            except VersionConflict:
                continue
            return

    def delete(self, path: str, what: str) -> None:
        """Remove a node.

        Raises:
            NotFound: There is no such node.
        """
        while True:
            _, version = self.read(path, what)
            try:
                self._metadata.delete(path, version)
            except VersionConflict:
                continue
            return


def parse(value: bytes, what: str) -> Json:
    """A node's object.

    Raises:
        CorruptMetadata: It does not parse.
    """
    try:
        parsed = json.loads(value)
    except ValueError as error:
        raise CorruptMetadata(f"{what}: its metadata is no JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise CorruptMetadata(f"{what}: its metadata is no JSON object")
    return parsed


def dump(value: Json) -> bytes:
    """The bytes of a node."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
