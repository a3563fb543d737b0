"""Identity of offloaded objects: keys, user metadata, and UUIDs in the offload contexts of a managed ledger.

Offload contexts store a UUID as Java does, in two signed 64-bit halves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from afterglow.errors import InvalidName, WrongVersion
from afterglow.format.blocks import Format

if TYPE_CHECKING:
    from collections.abc import Mapping

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo, OffloadContext, OffloadSegment


FORMAT_VERSION_KEY = "s3managedledgeroffloaderformatversion"
FORMAT_VERSION = "1"
"""Version of both layouts: stock Pulsar rejects an object without it. The magic of the index distinguishes them."""

INSTANCE_KEY = "afterglowinstance"
"""Key with the id of the Afterglow instance that wrote an object: a sweep deletes only objects of its own instance."""

INDEX_SUFFIX = "-index"

_KEY = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:-ledger-(0|[1-9][0-9]{0,18}))?(-index)?")


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The parsed key of a data or index object."""

    uuid: UUID
    ledger_id: int | None = None
    """Set in V1, None in V2."""
    index: bool = False
    """Whether it is the key of the index object."""

    @property
    def format(self) -> Format:
        """The layout of the object."""
        return Format.V2 if self.ledger_id is None else Format.V1

    def __str__(self) -> str:
        ledger = "" if self.ledger_id is None else f"-ledger-{self.ledger_id}"
        return f"{self.uuid}{ledger}{INDEX_SUFFIX if self.index else ''}"


def parse_key(key: str) -> ObjectKey:
    """Parse the key of an object.

    Raises:
        InvalidName: It is not the key of an offloaded object.
    """
    match = _KEY.fullmatch(key)
    if match is None:
        raise InvalidName(f"{key!r} is not the key of an offloaded object; the form is <uuid>[-ledger-<id>][-index]")
    uuid, ledger, index = match.groups()
    return ObjectKey(UUID(uuid), None if ledger is None else int(ledger), index is not None)


def user_metadata(
    role: str,
    managed_ledger: str,
    *,
    cluster: str,
    instance: str,
    software_version: str,
    software_git_sha: str = "",
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the user metadata of an object.

    Args:
        role: ``data`` or ``index``.
        managed_ledger: Name of the managed ledger.
        cluster: Name of the cluster.
        instance: Id of the Afterglow instance that writes it.
        software_version: Release that writes it.
        software_git_sha: Commit of that release, if known.
        extra: Further keys; they do not override the others.
    """
    return {
        **(extra or {}),
        FORMAT_VERSION_KEY: FORMAT_VERSION,
        "s3managedledgeroffloadersoftwareversion": software_version,
        "s3managedledgeroffloadersoftwaregitsha": software_git_sha,
        "pulsarclustername": cluster,
        "role": role,
        "ManagedLedgerName": managed_ledger,
        INSTANCE_KEY: instance,
    }


def check_version(key: str, metadata: Mapping[str, str]) -> None:
    """Check that this release reads the object's format version. Objects copied without their metadata pass.

    Raises:
        WrongVersion: The object has another version.
    """
    found = next((value for name, value in metadata.items() if name.lower() == FORMAT_VERSION_KEY), FORMAT_VERSION)
    if found != FORMAT_VERSION:
        raise WrongVersion(
            f"object {key}: format version {found!r} is not {FORMAT_VERSION!r}; a newer release wrote it"
        )


_HALF = 64
_SIGN = 1 << 63


def get_uuid(holder: OffloadContext | OffloadSegment) -> UUID | None:
    """Return the UUID of an attempt or a segment; None if none was assigned."""
    if not holder.HasField("uidMsb"):
        return None
    return UUID(int=(holder.uidMsb % (1 << _HALF) << _HALF) | holder.uidLsb % (1 << _HALF))


def set_uuid(holder: OffloadContext | OffloadSegment, uuid: UUID) -> None:
    """Assign a UUID."""
    holder.uidMsb = _signed(uuid.int >> _HALF)
    holder.uidLsb = _signed(uuid.int % (1 << _HALF))


def ledger_uuid(row: ManagedLedgerInfo.LedgerInfo) -> UUID | None:
    """Return the UUID of a ledger's own object, committed or not; None if it has none, or is in segments.

    A ledger in segments has the UUID of its first segment in this field.
    """
    return None if row.offloadContext.offloadSegment else get_uuid(row.offloadContext)


def named_uuids(info: ManagedLedgerInfo) -> set[UUID]:
    """Return every UUID in a ledger list: of whole ledgers and of segments, complete or not."""
    found = {get_uuid(row.offloadContext) for row in info.ledgerInfo}
    found.update(get_uuid(segment) for row in info.ledgerInfo for segment in row.offloadContext.offloadSegment)
    return {uuid for uuid in found if uuid is not None}


def _signed(half: int) -> int:
    return half - 2 * _SIGN if half & _SIGN else half
