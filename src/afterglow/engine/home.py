"""An engine's home, seen from outside: its metadata opened so that nothing is ever written, made or locked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from afterglow.errors import MetadataUnavailable, NotSupported
from afterglow.metadata.address import open_metadata

if TYPE_CHECKING:
    from pathlib import Path

    from afterglow.metadata.store import MetadataStore

METADATA_FILE: Final = "metadata.db"
"""Where an engine keeps its metadata in its home, unless told otherwise."""
TIER_DIRECTORY: Final = "tier"
"""Where an engine keeps objects in its home, unless told otherwise."""


def read_metadata(home: Path, address: str | None) -> MetadataStore:
    """Open the metadata of a home to read it, whether or not an engine runs there.

    Args:
        home: The directory.
        address: Where the metadata is, if not in the home.

    Raises:
        MetadataUnavailable: There is no such home, it has no metadata, or these cannot be read.
        CorruptMetadata: They are damaged.
        NotSupported: The address names a store that cannot be read yet.
        WrongVersion: A newer release made them.
    """
    if not home.is_dir():
        raise MetadataUnavailable(
            f"source {home}: there is no such directory; give the home that `afterglow serve --home` runs on"
        )
    if address is None:
        file = home / METADATA_FILE
        if not file.is_file():
            raise MetadataUnavailable(
                f"source {home} is no engine's home: it has no {METADATA_FILE}; give the directory that `afterglow "
                "serve --home` runs on, and --metadata sqlite:PATH if its metadata is elsewhere"
            )
        address = f"sqlite:{file.absolute()}"
    if not address.startswith("sqlite:"):
        raise NotSupported(
            f"metadata {address!r}: beside a home only sqlite:PATH can be read in this release; read from where the "
            "engine keeps its metadata in a file"
        )
    return open_metadata(address, read_only=True)
