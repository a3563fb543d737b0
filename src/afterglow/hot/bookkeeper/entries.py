"""Entries as bookies store them: verification, and conversion to frames.

An entry is ``ledger id:int64 · entry id:int64 · LAC:int64 · length:int64 · digest · payload``. The digest covers the
first 32 bytes and the payload. ``length`` counts the payloads of all entries up to this one, so that one entry has the
size of the ledger up to it. The LAC is the last confirmed entry when this one was sent: it is checked, and not used as
the end of the ledger, behind which it lags by all entries in flight.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from afterglow.errors import CorruptBlock
from afterglow.format.frames import FRAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Verify: TypeAlias = Callable[[memoryview, memoryview, memoryview], bool]
    """Whether a digest is that of a head and a payload."""

_HEAD: Final = struct.Struct(">qqqq")
_SIZE: Final = struct.Struct(">i")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")


class DigestType(IntEnum):
    """Digests of entries, with BookKeeper's numbers."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4
    """None: only ids and lengths can be checked."""


_DIGEST_BYTES: Final = {DigestType.CRC32: 8, DigestType.HMAC: 20, DigestType.CRC32C: 4, DigestType.DUMMY: 0}


class StoredEntry(NamedTuple):
    """A verified entry."""

    entry_id: int
    last_confirmed: int
    """Last confirmed entry when this one was sent; a lower bound of the ledger's end."""
    length: int
    """Bytes of the payloads of all entries from 0 to this one."""
    payload: memoryview

    @property
    def length_before(self) -> int:
        """Bytes of the payloads of all entries before this one."""
        return self.length - len(self.payload)


class EntryDecoder:
    """Decodes and verifies the entries of one ledger. Thread-safe.

    Args:
        ledger_id: The ledger.
        digest: Its digest.
        password: Its password; only the digest ``HMAC`` depends on it.
    """

    def __init__(self, ledger_id: int, digest: DigestType, password: bytes = b"") -> None:
        self._ledger_id = ledger_id
        self._digest = digest
        self._head_bytes = _HEAD.size + _DIGEST_BYTES[digest]
        self._verify = _verifier(digest, password)

    @property
    def overhead_bytes(self) -> int:
        """Bytes of a stored entry beside its payload, in a batch."""
        return _SIZE.size + self._head_bytes

    def decode(self, stored: memoryview, entry_id: int | None) -> StoredEntry:
        """Decode an entry.

        Args:
            stored: The entry as a bookie sent it.
            entry_id: Its id; None: any.

        Raises:
            CorruptBlock: It is not the entry that was requested, or is damaged.
        """
        if len(stored) < self._head_bytes:
            raise self._corrupt(entry_id, f"it has only {len(stored)} bytes")
        ledger_id, found_id, last_confirmed, length = _HEAD.unpack_from(stored)
        payload = stored[self._head_bytes :]
        if not self._verify(stored[: _HEAD.size], payload, stored[_HEAD.size : self._head_bytes]):
            raise self._corrupt(entry_id, f"its {self._digest.name} digest differs")
        if ledger_id != self._ledger_id or (found_id != entry_id and entry_id is not None) or found_id < 0:
            raise self._corrupt(entry_id, f"it says that it is {ledger_id}:{found_id}")
        if not -1 <= last_confirmed < found_id:
            raise self._corrupt(entry_id, f"it says that entry {last_confirmed} was confirmed before it")
        if length < len(payload):
            raise self._corrupt(entry_id, f"its {len(payload)} bytes exceed the ledger's length of {length}")
        return StoredEntry(found_id, last_confirmed, length, payload)

    def _corrupt(self, entry_id: int | None, problem: str) -> CorruptBlock:
        return _corrupt(self._ledger_id, entry_id, problem)


def split_batch(ledger_id: int, body: memoryview, first: int) -> list[memoryview]:
    """Split the body of a batch response, which begins with entry ``first``, into stored entries; at least one.

    Raises:
        CorruptBlock: The sizes do not fit the body.
    """
    entries: list[memoryview] = []
    at = 0
    while at < len(body) or not entries:
        size = int(_SIZE.unpack_from(body, at)[0]) if at + _SIZE.size <= len(body) else -1
        at += _SIZE.size
        if size < 0 or at + size > len(body):
            raise _corrupt(ledger_id, first + len(entries), "its size does not fit the response")
        entries.append(body[at : at + size])
        at += size
    return entries


def append_frame(frames: bytearray, ledger_id: int, entry: StoredEntry, length_before: int | None) -> None:
    """Append an entry to contiguous frames.

    Args:
        frames: Frames of the entries before it.
        ledger_id: The ledger.
        entry: The entry.
        length_before: Bytes of all payloads before it; None if they are not known.

    Raises:
        CorruptBlock: Its length contradicts that of the entry before; nothing was appended.
    """
    if length_before is not None and entry.length_before != length_before:
        problem = f"{entry.length_before} bytes precede it by its length, {length_before} by that of the one before"
        raise _corrupt(ledger_id, entry.entry_id, problem)
    frames += FRAME.pack(len(entry.payload), entry.entry_id)
    frames += entry.payload


def _corrupt(ledger_id: int, entry_id: int | None, problem: str) -> CorruptBlock:
    name = "last entry" if entry_id is None else f"entry {entry_id}"
    return CorruptBlock(f"{name} of ledger {ledger_id} is damaged: {problem}; read another replica")


def detect_decoder(ledger_id: int, stored: memoryview) -> EntryDecoder | None:
    """Return the decoder that fits an entry of a ledger whose metadata does not name the digest; None: none fits."""
    for digest in (DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC):
        decoder = EntryDecoder(ledger_id, digest)
        try:
            decoder.decode(stored, None)
        except CorruptBlock:
            continue
        return decoder
    return None


def _verifier(digest: DigestType, password: bytes) -> Verify:
    if digest == DigestType.CRC32C:
        return lambda head, payload, found: crc32c(payload, crc32c(head)) == _U32.unpack(found)[0]
    if digest == DigestType.CRC32:
        return lambda head, payload, found: zlib.crc32(payload, zlib.crc32(head)) == _U64.unpack(found)[0]
    if digest == DigestType.DUMMY:
        return lambda _head, _payload, _found: True
    keyed = hmac.new(hashlib.sha1(b"mac" + password, usedforsecurity=False).digest(), digestmod=hashlib.sha1)

    def verify_hmac(head: memoryview, payload: memoryview, found: memoryview) -> bool:
        fresh = keyed.copy()
        fresh.update(head)
        fresh.update(payload)
        return fresh.digest() == found

    return verify_hmac
