"""Offload handle of the built-in drivers: entries are offered in order, and become one segment in the tier.

It serves sources of unknown size; for hot ledgers, tasks upload planned parts (``docs/decisions/0009``). Blocks and
parts have the boundaries of :func:`~afterglow.offload.segments.part_planner.plan_parts`, so that the same entries give
the same bytes. Threads of the handle upload parts while further entries are offered; :meth:`BlockHandle.result` uploads
the last part and the index.

A handle changes no metadata: until its result is committed, no reader sees the segment. It does not survive a crash.
Objects left by a crash are found by the UUID, which must be recorded before the handle is created.
"""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from afterglow.errors import CorruptBlock, HandleClosed, InvalidPosition, ObjectExists, StorageError, WrongLength
from afterglow.format.frames import FRAME, FRAME_BYTES, check_whole, scan_frames
from afterglow.format.index import encode_index
from afterglow.format.objects import INSTANCE_KEY
from afterglow.format.position import Position
from afterglow.offload.block_assembler import BlockAssembler
from afterglow.offload.block_offloader import put_index
from afterglow.offload.offloader import OffloadHandle, OffloadResult, check_follows
from afterglow.offload.segments.records import segment_index

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future
    from types import TracebackType
    from uuid import UUID

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from afterglow.offload.segments.part_planner import Sizes
    from afterglow.storage.store import ObjectStore, Part, Upload


_UPLOADS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLimits:
    """Limits of a segment and of the memory of its handle."""

    sizes: Sizes
    """Sizes of blocks and parts."""
    max_bytes: int
    """Maximum bytes of frames in the segment; a single entry may be larger."""
    buffer_bytes: int
    """Memory for entries that are not uploaded; exceeded only if a part or a single entry is larger."""
    uploads: int = _UPLOADS
    """Number of parts that are uploaded at a time."""


class BlockHandle(OffloadHandle):
    """Handle of one segment; a context manager that aborts unless :meth:`result` has succeeded. One call at a time.

    Args:
        store: The store.
        uuid: Names the segment and its object; must be unique.
        limits: Limits of the segment and of memory.
        data_metadata: User metadata of its data object.
        index_metadata: User metadata of its index.
    """

    def __init__(
        self,
        store: ObjectStore,
        uuid: UUID,
        *,
        limits: SegmentLimits,
        data_metadata: Mapping[str, str],
        index_metadata: Mapping[str, str],
    ) -> None:
        self._store = store
        self._uuid = uuid
        self._limits = limits
        self._data_metadata = data_metadata
        self._index_metadata = index_metadata
        self._assembler = BlockAssembler(limits.sizes.block_bytes, limits.sizes.part_bytes)
        self._begin: Position | None = None
        self._last: Position | None = None
        self._frame_bytes = 0
        self._threads = ThreadPoolExecutor(limits.uploads, thread_name_prefix=f"offload-{str(uuid)[:8]}")
        self._parts: list[tuple[int, Future[Part]]] = []  # size in bytes, and the stored part
        self._creating = threading.Lock()
        self._upload: Upload | None = None
        self._closed = False
        self._result: OffloadResult | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._result is None:
            self.abort()

    # --- offering -----------------------------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """Key of its data object."""
        return str(self._uuid)

    def last_offered(self) -> Position | None:
        """The last entry that was accepted; None: none."""
        return self._last

    def can_offer(self, size: int) -> bool:
        """Whether an entry of ``size`` bytes would be accepted now: by an open segment and by its buffer."""
        return not self._closed and self.can_hold(size) and self._can_buffer(size + FRAME_BYTES)

    def can_hold(self, size: int) -> bool:
        """Whether an entry of ``size`` bytes fits into this segment; if not, it begins the next one."""
        return not self._frame_bytes or self._frame_bytes + size + FRAME_BYTES <= self._limits.max_bytes

    def offer_entry(self, ledger_id: int, entry_id: int, data: Buffer) -> bool:
        """Offer the next entry; see :class:`OffloadHandle`.

        Returns:
            Whether it was accepted. If not, and the segment cannot hold it (:meth:`can_hold`), call :meth:`result`. If
            the buffer is full, :meth:`wait`, and offer it again.
        """
        view = memoryview(data).cast("B")
        position = Position(ledger_id, entry_id)
        self._check(position)
        frame = FRAME.pack(view.nbytes, entry_id) + view
        return self._take(position, memoryview(frame), np.array([0, len(frame)])) == 1

    def offer_range(self, buffer: Buffer, first_id: Position, count: int) -> int:
        """Offer framed consecutive entries of one ledger; see :class:`OffloadHandle`.

        Returns:
            Number of accepted entries, from the first on. For the others see :meth:`offer_entry`.
        """
        view = memoryview(buffer).cast("B")
        self._check(first_id)
        frames = scan_frames(view, first_id.entry_id)
        check_whole(frames, f"the range offered from entry {first_id} on")
        if len(frames) != count:
            raise CorruptBlock(f"the range offered from entry {first_id} on has {len(frames)} entries, not {count}")
        return self._take(first_id, view, frames.offsets)

    def wait(self) -> bool:
        """Wait until one more part is uploaded, or has failed; False if none is being uploaded."""
        uploading = [part for _, part in self._uploading()]
        wait(uploading, return_when=FIRST_COMPLETED)
        return bool(uploading)

    # --- ending -------------------------------------------------------------------------------------------------------

    def result(self) -> OffloadResult:
        """End the segment with the last accepted entry, and wait until it is durable; see :class:`OffloadHandle`.

        Raises:
            HandleClosed: It was aborted, or failed before.
            InvalidPosition: No entry was accepted; a segment cannot be empty.
            WrongLength: The object does not have the length of the uploaded data.
            StorageError: The store failed; the handle must be aborted.
        """
        if self._result is not None:
            return self._result
        self._check_open()
        if self._begin is None or self._last is None:
            raise InvalidPosition(f"segment {self._uuid} has no entry: offer one, or abort it")
        self._closed = True
        last_part = self._assembler.close()
        if not self._parts:
            with suppress(ObjectExists):  # of another attempt, if length and instance match below
                self._store.put(self.key, last_part, metadata=self._data_metadata, if_absent=True)
        else:
            if last_part:
                self._send(last_part)
            parts = [part.result() for _, part in self._parts]
            assert self._upload is not None
            self._store.complete_upload(self._upload, parts)
        self._threads.shutdown()
        found, sent = self._store.head(self.key), self._assembler.size_bytes
        if found.size_bytes != sent:
            raise WrongLength(f"object {self.key} in {self._store.url} has {found.size_bytes} bytes, {sent} were sent")
        if found.metadata.get(INSTANCE_KEY) != self._data_metadata.get(INSTANCE_KEY):
            raise ObjectExists(f"object {self.key} in {self._store.url} was written by another instance")
        index = encode_index(segment_index(self._assembler.ledgers()))
        put_index(self._store, self.key, index, self._index_metadata)
        self._result = OffloadResult(self._uuid, self._begin, self._last)
        return self._result

    def abort(self) -> None:
        """Abort this attempt and its unfinished upload, also after a failure.

        Objects are kept: another attempt with the same UUID may have written them.
        """
        self._closed = True
        self._threads.shutdown(cancel_futures=True)
        if self._result is None and self._upload is not None:
            with suppress(StorageError):
                self._store.abort_upload(self._upload)

    def _check_open(self) -> None:
        if self._closed:
            raise HandleClosed(f"segment {self._uuid} accepts no more entries: it has ended, or was aborted")

    def _check(self, position: Position) -> None:
        """Check that the handle is open, that no upload has failed, and that an entry follows the last one."""
        self._check_open()
        for _, part in self._parts:
            if part.done() and (error := part.exception()) is not None:
                self._closed = True
                raise error
        check_follows(self._uuid, self._last, position)

    def _take(self, first: Position, frames: memoryview, offsets: NDArray[np.int64]) -> int:
        """Accept entries in steps of about a block, while they fit; returns their number."""
        count, taken = offsets.size - 1, 0
        step_bytes = self._limits.sizes.block_bytes
        while taken < count:
            start = int(offsets[taken])
            free_bytes = min(step_bytes, self._limits.max_bytes - self._frame_bytes)
            stop = max(int(offsets.searchsorted(start + free_bytes, side="right")) - 1, taken + 1)
            size = int(offsets[stop]) - start
            if not (self.can_hold(size - FRAME_BYTES) and self._can_buffer(size)):
                break
            for part in self._assembler.add(first.ledger_id, first.entry_id + taken, frames, offsets[taken : stop + 1]):
                self._send(part)
            self._frame_bytes += size
            self._begin = self._begin or first
            self._last = Position(first.ledger_id, first.entry_id + stop - 1)
            taken = stop
        return taken

    def _can_buffer(self, size: int) -> bool:
        """Whether the buffer can hold ``size`` more bytes; always if no upload is in progress that would free some."""
        uploading_bytes = sum(part_bytes for part_bytes, _ in self._uploading())
        return not uploading_bytes or uploading_bytes + self._assembler.held_bytes + size <= self._limits.buffer_bytes

    def _uploading(self) -> list[tuple[int, Future[Part]]]:
        return [(size, part) for size, part in self._parts if not part.done()]

    def _send(self, data: bytearray) -> None:
        self._parts.append((len(data), self._threads.submit(self._upload_part, len(self._parts) + 1, data)))

    def _upload_part(self, number: int, data: bytearray) -> Part:
        with self._creating:
            if self._upload is None:
                self._upload = self._store.create_upload(self.key, metadata=self._data_metadata)
        return self._store.upload_part(self._upload, number, data)
