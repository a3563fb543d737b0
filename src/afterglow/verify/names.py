"""Which keys metadata names, and whether work goes on under them.

Keys are compared by their last component alone, in whatever store they are met: UUIDs are never reused, and an object
that metadata names anywhere is nobody's orphan, also where the same bucket is reached under another address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from afterglow.verify.state import TopicState

INDEX_SUFFIX: Final = "-index"


@dataclass(frozen=True, slots=True)
class Named:
    """What a topic's metadata says under a key."""

    ledger_name: str
    """Managed-ledger name of the topic."""
    working: bool
    """Whether it is being written or deleted, maybe by uploads that metadata does not know."""
    upload_id: str = ""
    """The one upload that it needs, where that is on record."""

    def needs(self, upload_id: str) -> bool:
        """Whether an unfinished upload of the key may be needed: a finished object needs none."""
        return self.working or upload_id == self.upload_id


Naming: TypeAlias = dict[str, Named]
"""By :func:`base_key`."""


def copy_key(uuid: object, ledger_id: int) -> str:
    """Key of a ledger's own object (V1)."""
    return f"{uuid}-ledger-{ledger_id}"


def base_key(key: str) -> str:
    """What :data:`Naming` knows of the key of a data object, of its index, or of an upload."""
    return key.rpartition("/")[2].removesuffix(INDEX_SUFFIX)


def add_names(naming: Naming, state: TopicState) -> None:
    """Add what a topic's metadata names. Whatever is under way takes precedence over what is committed.

    A segment's record alone names nothing: while the segment is on its way its upload's record does, then the list.
    """
    committed, working = Named(state.name, working=False), Named(state.name, working=True)
    for ledgers in state.lists:
        for ledger in ledgers:
            if ledger.copy is not None:
                naming[copy_key(ledger.copy, ledger.ledger_id)] = committed if ledger.complete else working
            for stub in ledger.stubs:
                naming[str(stub.uuid)] = committed if stub.complete else working
    for upload in state.uploads:
        known = Named(state.name, working=False, upload_id=upload.upload_id)
        naming[base_key(upload.key)] = known if upload.upload_id else working
    for delete in state.deletes:
        naming[base_key(delete.key)] = working
