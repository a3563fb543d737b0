"""Which keys metadata names, and whether work goes on under them.

Keys are compared by their last component alone, in whatever store they are met: UUIDs are never reused, and an object
that metadata names anywhere is nobody's orphan, also where the same bucket is reached under another address.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from afterglow.verify.state import TopicState

INDEX_SUFFIX: Final = "-index"


class Use(Enum):
    """What a named key is used for."""

    COMMITTED = "committed"
    """A finished object: it needs no upload any more."""
    WORKING = "working"
    """Being written or deleted, by uploads that metadata does not know."""


Naming: TypeAlias = dict[str, Use | str]
"""Last component of each named data key; where the one upload that it needs is on record, its id stands for the use."""


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
    for ledgers in state.lists:
        for ledger in ledgers:
            if ledger.copy is not None:
                use = Use.COMMITTED if ledger.complete else Use.WORKING
                naming[copy_key(ledger.copy, ledger.ledger_id)] = use
            for stub in ledger.stubs:
                naming[str(stub.uuid)] = Use.COMMITTED if stub.complete else Use.WORKING
    for segment in state.segments:
        if (use_now := naming.get(str(segment.uuid))) is not None:
            naming[base_key(segment.key)] = use_now
    for upload in state.uploads:
        naming[base_key(upload.key)] = upload.upload_id or Use.WORKING
    for delete in state.deletes:
        naming[base_key(delete.key)] = Use.WORKING
