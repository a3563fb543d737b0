"""The checkpoint: the state from which a start replays the journals.

It holds the first journal file to replay, the ledgers that were not durably closed with their durable ends, the next
ledger id, and the keyed state. A ledger below the next id that it does not list is durably closed, or deleted. The next
id is stored so that ids are never reused, even when all ledgers are deleted.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crc32c import crc32c

from afterglow.errors import HotLogError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from afterglow.hot.local.disk import Disk
    from afterglow.hot.local.paths import HotLogPaths

FIRST_LEDGER_ID = 1

_MAGIC = b"AGLOWC1\n"
_HEAD = struct.Struct(">8sIqqqq")
_LEDGER = struct.Struct(">qqq")
_STATE = struct.Struct(">II")
_UNCHECKED = 12


@dataclass(frozen=True, slots=True)
class DurableEnd:
    """End of the part of an open ledger that is durable in its own files."""

    entries: int
    """Number of entries; -1: its creation was in progress, and is valid only if the journal has it."""

    frame_bytes: int
    """Bytes of their frames."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint."""

    journal: int = 0
    """Number of the first journal file to replay; 0: all files."""

    next_ledger_id: int = FIRST_LEDGER_ID
    """Greater than every id ever used."""

    ledgers: Mapping[int, DurableEnd] = field(default_factory=dict)
    """Ledgers that were not durably closed."""

    state: Mapping[bytes, bytes] = field(default_factory=dict)
    """The keyed state."""

    def encode(self) -> bytes:
        """The stored bytes."""
        out = bytearray(_HEAD.pack(_MAGIC, 0, self.journal, self.next_ledger_id, len(self.ledgers), len(self.state)))
        for ledger_id, durable in self.ledgers.items():
            out += _LEDGER.pack(ledger_id, durable.entries, durable.frame_bytes)
        for key, value in self.state.items():
            out += _STATE.pack(len(key), len(value))
            out += key
            out += value
        out[8:_UNCHECKED] = crc32c(memoryview(out)[_UNCHECKED:]).to_bytes(4, "big")
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint | None:
        """The checkpoint in a file's bytes; None if they are damaged."""
        if len(data) < _HEAD.size:
            return None
        magic, crc, journal, next_ledger_id, ledger_count, state_count = _HEAD.unpack_from(data)
        if magic != _MAGIC or crc != crc32c(memoryview(data)[_UNCHECKED:]):
            return None
        at = _HEAD.size
        ledgers = {}
        for _ in range(ledger_count):
            ledger_id, entries, frame_bytes = _LEDGER.unpack_from(data, at)
            ledgers[ledger_id] = DurableEnd(entries, frame_bytes)
            at += _LEDGER.size
        state = {}
        for _ in range(state_count):
            key_bytes, value_bytes = _STATE.unpack_from(data, at)
            at += _STATE.size
            state[data[at : at + key_bytes]] = data[at + key_bytes : at + key_bytes + value_bytes]
            at += key_bytes + value_bytes
        return cls(journal, next_ledger_id, ledgers, state)


def load_checkpoint(disk: Disk, paths: HotLogPaths) -> Checkpoint:
    """The last checkpoint; an empty one if none was made yet.

    Raises:
        HotLogError: The checkpoint is damaged.
    """
    try:
        with disk.opened(paths.checkpoint) as file:
            data = disk.read(file, disk.size(file), 0)
    except FileNotFoundError:
        return Checkpoint()
    checkpoint = Checkpoint.decode(data)
    if checkpoint is None:
        raise HotLogError(
            f"{paths.checkpoint} is damaged, or was written by another release; restore it from a copy, or start the "
            "release that wrote it"
        )
    return checkpoint


def store_checkpoint(disk: Disk, paths: HotLogPaths, checkpoint: Checkpoint) -> None:
    """Replace the last checkpoint, durably.

    1. Write and sync it under another name. *Crash: the old one is valid; the file is overwritten next time.*
    2. Rename it, sync the directory. *Crash between: the old or the new one is valid; the journals of the old one still
       exist.*

    Raises:
        OSError: The old or the new one is valid: journals that the old one needs must stay.
    """
    draft = paths.checkpoint.with_suffix(".new")
    with disk.opened(draft, write=True, create=True, empty=True) as file:
        disk.write(file, checkpoint.encode(), 0)
        disk.sync(file)
    disk.rename(draft, paths.checkpoint)
    disk.sync_directory(paths.root)
