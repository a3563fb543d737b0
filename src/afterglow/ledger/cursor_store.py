"""Storage of durable cursors: the newest state in the hot log's keyed state, snapshots in metadata.

A state costs a share of a group commit and is written often. A snapshot costs a metadata commit; it is written at
creation, at closing, and every ``managedLedgerCursorPositionFlushSeconds``. The newer of the two wins. Both are needed:

* With snapshots alone, ranges that do not fit into a metadata value would be lost, and every acknowledgement would cost
  a metadata commit. Tests, in ``tests/ledger/test_cursor.py``:
  ``test_a_snapshot_that_is_too_large_leaves_the_last_ranges_to_the_state``,
  ``test_states_are_written_at_the_configured_rate_and_the_rest_with_the_next_tick``.
* With states alone, a lost disk would reset every subscription, and a topic that was opened elsewhere would have none:
  metadata says which cursors exist (``test_a_snapshot_is_written_periodically_and_at_closing`` loses the state log and
  keeps the cursor).
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from afterglow.errors import CommitUnknown, CursorMissing, ValueTooLarge, VersionConflict
from afterglow.format.compression import Codec
from afterglow.ledger.cursor_codec import decode_snapshot, decode_state, encode_snapshot, encode_state
from afterglow.metadata.store import FIRST_VERSION, MUST_NOT_EXIST

if TYPE_CHECKING:
    from afterglow.hot.log import Completion
    from afterglow.ledger.cursor_codec import CursorRecord
    from afterglow.ledger.environment import Environment
    from afterglow.ledger.topic_metadata import TopicMetadata

_MAX_ATTEMPTS: Final = 64
"""Attempts in a row that end in a conflict or with an unknown outcome."""


class CursorStore:
    """State and snapshot of one cursor. Thread-safe.

    Args:
        path: Path of its metadata.
        environment: Metadata store, states, compression.
        topic: Checks the ownership of the topic after a conflict.
    """

    def __init__(self, path: str, environment: Environment, topic: TopicMetadata) -> None:
        self._path = path
        self._metadata = environment.metadata
        self._states = environment.cursor_states
        self._codec = Codec[environment.config.managed_cursor_info_compression_type.name]
        self._threshold_bytes = environment.config.managed_cursor_info_compression_threshold_in_bytes
        self._topic = topic
        self._lock = threading.Lock()
        self._version = MUST_NOT_EXIST

    def create(self, record: CursorRecord) -> None:
        """Write the first snapshot.

        *Crash before: no cursor. Crash after: the cursor exists.*

        Raises:
            VersionConflict: The cursor exists already.
            MetadataError: The store failed; the cursor may exist.
        """
        with self._lock:
            for _ in range(_MAX_ATTEMPTS):
                try:
                    self._put(record)
                except VersionConflict:
                    if self._metadata.get(self._path) is not None:
                        raise
                else:
                    return
            raise VersionConflict(f"{self._path} was not created: the store reports conflicts with a missing node")

    def load(self) -> CursorRecord:
        """The newer of snapshot and state.

        Raises:
            CursorMissing: The cursor does not exist.
            CorruptMetadata: A value does not parse.
        """
        with self._lock:
            found = self._metadata.get(self._path)
            if found is None:
                raise CursorMissing(f"no cursor found at {self._path}")
            self._version = found.version
        snapshot = decode_snapshot(found.value)
        value = self._states.get(self._path)
        state = None if value is None else decode_state(value)
        if state is None or state.cursor_id != snapshot.cursor_id or state.sequence < snapshot.sequence:
            return snapshot
        return replace(state, properties=snapshot.properties)

    def put_state(self, record: CursorRecord, done: Completion) -> None:
        """Write the newest state; ``done`` is called once it is durable or has failed."""
        self._states.put(self._path, encode_state(record), done)

    def put_snapshot(self, record: CursorRecord) -> None:
        """Write a snapshot; if it is too large for the store, without the last ranges.

        Raises:
            Fenced: Another process owns the topic.
            CursorMissing: The cursor was deleted.
            MetadataError: The store failed; the snapshot may have been written.
        """
        with self._lock:
            for _ in range(_MAX_ATTEMPTS):
                try:
                    self._put(record)
                except VersionConflict:
                    # It was written by the owner before, or by a newer one, in which case this process is fenced.
                    self._topic.check_owner()
                    found = self._metadata.get(self._path)
                    if found is None:
                        raise CursorMissing(f"the cursor at {self._path} was deleted") from None
                    self._version = found.version
                except ValueTooLarge:
                    if not record.ranges and not record.batches:
                        raise
                    record = replace(
                        record,
                        ranges=record.ranges[: len(record.ranges) // 2],
                        batches=record.batches[: len(record.batches) // 2],
                    )
                else:
                    return
            raise VersionConflict(f"{self._path} was not changed: {_MAX_ATTEMPTS} conflicts in a row")

    def delete(self) -> None:
        """Delete the cursor; a missing cursor is not an error.

        1. Delete the snapshot. *Crash: the cursor is gone; its state is left, and matches no other cursor's id.*
        2. Remove the state.

        Raises:
            Fenced: Another process owns the topic.
            MetadataError: The store failed; the cursor may be gone.
        """
        with self._lock:
            if self._version == MUST_NOT_EXIST:
                found = self._metadata.get(self._path)
                self._version = MUST_NOT_EXIST if found is None else found.version
            for _ in range(_MAX_ATTEMPTS if self._version != MUST_NOT_EXIST else 0):
                try:
                    self._metadata.delete(self._path, self._version)
                except (VersionConflict, CommitUnknown):
                    found = self._metadata.get(self._path)
                    if found is None:
                        break
                    if found.version != self._version:
                        self._topic.check_owner()
                        self._version = found.version
                else:
                    break
            else:
                raise VersionConflict(f"{self._path} was not deleted: {_MAX_ATTEMPTS} conflicts in a row")
        self._states.put(self._path, None, _ignore)

    def _put(self, record: CursorRecord) -> None:
        value = encode_snapshot(record, self._codec, self._threshold_bytes)
        for _ in range(_MAX_ATTEMPTS):
            following = FIRST_VERSION if self._version == MUST_NOT_EXIST else self._version + 1
            try:
                self._version = self._metadata.put(self._path, value, self._version)
            except CommitUnknown:
                found = self._metadata.get(self._path)
                if found is not None and found.value == value and found.version == following:
                    self._version = found.version
                    return
                if (MUST_NOT_EXIST if found is None else found.version) != self._version:
                    raise VersionConflict(f"{self._path} was changed by another writer") from None
            else:
                return
        raise CommitUnknown(f"{self._path} was not changed: {_MAX_ATTEMPTS} attempts in a row had an unknown outcome")


def _ignore(_error: object) -> None:
    """A state that could not be removed is harmless; the next start sweeps it."""
