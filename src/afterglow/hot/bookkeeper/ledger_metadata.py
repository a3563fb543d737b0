"""Metadata of a BookKeeper ledger: its encoding, its path, and the bookies that hold an entry.

Entries are striped: entry ``e`` is on Qw consecutive bookies of its ensemble, beginning with ``ensemble[e % E]``. The
ensembles of a ledger change: a writer replaces a failed bookie from some entry on, and re-replication replaces a lost
one in entries that were written before, also of closed ledgers.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from afterglow.errors import CorruptMetadata
from afterglow.format.proto.bookkeeper_pb2 import LedgerMetadataFormat
from afterglow.hot.bookkeeper.entries import DigestType

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAGIC: Final = b"BookieMetadataFormatVersion\t"
_TEXT_LINES: Final = 1
_TEXT_PROTO: Final = 2
_BINARY_PROTO: Final = 3
_IN_RECOVERY: Final = -102
"""Last entry in line format while the ledger is recovered."""
_SHORT_IDS: Final = (1 << 31) - 1
"""The default layout has short paths for ledger ids below."""


class LedgerState(Enum):
    """State of a ledger."""

    OPEN = 1
    IN_RECOVERY = 2
    """A new owner determines the last entry."""
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Fragment:
    """Entries of a ledger with one ensemble; they end where the next fragment begins."""

    first: int
    ensemble: tuple[str, ...]
    """Ids of the bookies, which need not be addresses."""


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """Metadata of one ledger at one time."""

    ensemble_size: int
    write_quorum: int
    """Number of replicas of each entry."""
    ack_quorum: int
    """Number of replicas after which an entry may be confirmed."""
    state: LedgerState
    last_entry: int
    """Last entry of a closed ledger, -1 if it is empty; -1 in other states, where it is not known."""
    length: int
    """Bytes of all payloads of a closed ledger; 0 in other states."""
    fragments: tuple[Fragment, ...]
    """In order; the first begins with entry 0."""
    digest: DigestType | None
    """None: not recorded."""
    password: bytes = field(default=b"", repr=False)

    @property
    def is_closed(self) -> bool:
        """Whether the last entry is final."""
        return self.state == LedgerState.CLOSED

    def fragment_at(self, entry_id: int) -> tuple[Fragment, int | None]:
        """Return the fragment of an entry, and the first entry of the next one or None."""
        at = bisect_right(self.fragments, entry_id, key=lambda fragment: fragment.first)
        end = self.fragments[at].first if at < len(self.fragments) else None
        return self.fragments[max(at - 1, 0)], end

    def replicas(self, entry_id: int) -> tuple[str, ...]:
        """Return the bookies that hold an entry."""
        return self.holders(entry_id, 1)

    def holders(self, first: int, count: int) -> tuple[str, ...]:
        """Return the bookies that hold all of ``count`` entries of one fragment.

        With E = Qw that is each bookie of the ensemble, with E > Qw a single one for Qw entries, and none for more.
        """
        ensemble, _ = self.fragment_at(first)
        members, size = ensemble.ensemble, self.ensemble_size
        if size == self.write_quorum:
            return tuple(members[(first + i) % size] for i in range(size))
        return tuple(members[(first + i) % size] for i in range(count - 1, self.write_quorum))


def decode_ledger_metadata(stored: bytes) -> LedgerMetadata:
    """Decode the value of a ledger's node, in any version of the encoding.

    Raises:
        CorruptMetadata: It is not the metadata of a ledger.
    """
    head, newline, rest = stored.partition(b"\n")
    version = head.removeprefix(_MAGIC)
    if not newline or not head.startswith(_MAGIC) or not version.isdigit():
        raise CorruptMetadata(f"not the metadata of a BookKeeper ledger: {stored[:40]!r}")
    try:
        if int(version) == _TEXT_LINES:
            return _checked(_decode_lines(rest.decode()))
        if int(version) == _TEXT_PROTO:
            message = text_format.Parse(rest.decode(), LedgerMetadataFormat(), allow_unknown_field=True)
            return _checked(_from_message(message))
        if int(version) == _BINARY_PROTO:
            return _checked(_from_message(LedgerMetadataFormat.FromString(_delimited(rest))))
    except (DecodeError, text_format.ParseError, ValueError, IndexError, struct.error) as error:
        raise CorruptMetadata(f"invalid metadata of a BookKeeper ledger: {error}") from error
    raise CorruptMetadata(f"unknown version {int(version)} of a BookKeeper ledger's metadata; use a newer Afterglow")


def ledger_path(root: str, layout: str, ledger_id: int) -> str:
    """Return the path of a ledger's node.

    Args:
        root: Root of all ledgers, such as ``/ledgers``.
        layout: Class name of the cluster's layout, with or without its package; empty: the default.
        ledger_id: The ledger.

    Raises:
        CorruptMetadata: The layout is not known.
    """
    name = layout.rpartition(".")[2]
    if name == "FlatLedgerManagerFactory":
        return f"{root}/L{ledger_id:010d}"
    if name == "LegacyHierarchicalLedgerManagerFactory":
        return _hierarchical(root, f"{ledger_id:010d}", (2, 4))
    if name == "LongHierarchicalLedgerManagerFactory" or ledger_id >= _SHORT_IDS:
        return _hierarchical(root, f"{ledger_id:019d}", (3, 4, 4, 4))
    if name in {"", "HierarchicalLedgerManagerFactory"}:
        return _hierarchical(root, f"{ledger_id:010d}", (2, 4))
    raise CorruptMetadata(f"unknown layout of BookKeeper's ledgers below {root}: {layout}; use a newer Afterglow")


def _hierarchical(root: str, digits: str, sizes: Sequence[int]) -> str:
    parts, at = [root], 0
    for size in sizes:
        parts.append(digits[at : at + size])
        at += size
    return "/".join([*parts, f"L{digits[at:]}"])


def _delimited(data: bytes) -> bytes:
    """Return the message behind its varint length."""
    size = shift = at = 0
    while True:
        byte = data[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    if at + size > len(data):
        raise ValueError(f"{at + size} bytes are announced and {len(data)} stored")
    return data[at : at + size]


def _from_message(message: LedgerMetadataFormat) -> LedgerMetadata:
    closed = message.state == LedgerMetadataFormat.CLOSED
    return LedgerMetadata(
        ensemble_size=message.ensembleSize,
        write_quorum=message.quorumSize,
        ack_quorum=message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
        state=LedgerState(message.state),
        last_entry=message.lastEntryId if closed else -1,
        length=message.length if closed else 0,
        fragments=tuple(Fragment(each.firstEntryId, tuple(each.ensembleMember)) for each in message.segment),
        # BookKeeper records the digest together with the password, which may be empty.
        digest=DigestType(message.digestType) if message.HasField("password") else None,
        password=message.password,
    )


def _decode_lines(text: str) -> LedgerMetadata:
    write_quorum, ensemble_size, length, *lines = text.removesuffix("\n").split("\n")
    state, last_entry, fragments = LedgerState.OPEN, -1, []
    for line in lines:
        number, *members = line.split("\t")
        if members == ["CLOSED"]:
            recovering = int(number) == _IN_RECOVERY
            state = LedgerState.IN_RECOVERY if recovering else LedgerState.CLOSED
            last_entry = -1 if recovering else int(number)
        else:
            fragments.append(Fragment(int(number), tuple(members)))
    return LedgerMetadata(
        ensemble_size=int(ensemble_size),
        write_quorum=int(write_quorum),
        ack_quorum=int(write_quorum),
        state=state,
        last_entry=last_entry,
        length=int(length) if state == LedgerState.CLOSED else 0,
        fragments=tuple(fragments),
        digest=None,
    )


def _checked(metadata: LedgerMetadata) -> LedgerMetadata:
    firsts = [fragment.first for fragment in metadata.fragments]
    if not firsts or firsts[0] != 0 or firsts != sorted(set(firsts)):
        raise ValueError(f"its fragments begin at {firsts}")
    if not 1 <= metadata.write_quorum <= metadata.ensemble_size:
        raise ValueError(f"its quorum of {metadata.write_quorum} does not fit ensembles of {metadata.ensemble_size}")
    if any(len(fragment.ensemble) != metadata.ensemble_size for fragment in metadata.fragments):
        raise ValueError(f"not every ensemble has {metadata.ensemble_size} bookies")
    return metadata
