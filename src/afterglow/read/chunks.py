"""Chunked messages, assembled at the position of their last chunk.

A producer divides the payload of a large message, after compression, into chunks. Each is an entry; entries of other
producers may come between them. After a reconnect the producer may send chunks again, from any chunk on. So, for each
message: chunk 0 begins it, or restarts it; the next chunk is added; a chunk that was added before is ignored; any other
chunk ends the message, which stays incomplete. Stock consumers do the same.

Chunks before the entries that are read are searched backwards from the origin, which is where reading began, once the
last chunk has been read. Chunks of one message are expected within ``MAX_GAP_BYTES`` and ``MAX_TRACKED`` of each other:
no search goes further.

Memory: payloads of incomplete messages take ``MAX_HELD_BYTES`` at most. Beyond that, the message that began first keeps
only the positions of its chunks, which are read again when its last chunk is read. A complete message takes its stored
bytes and, if compressed, its uncompressed bytes, each ``MAX_UNCOMPRESSED_BYTES`` at most: a larger one is corrupt.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from afterglow.errors import AfterglowError, CorruptEntry, IncompleteMessage
from afterglow.format.compression import MAX_UNCOMPRESSED_BYTES, decompress
from afterglow.format.marks import find_marks
from afterglow.format.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.format.compression import BytesLike
    from afterglow.format.marks import Chunk, Marks
    from afterglow.read.copies import FrameRun, ServedRun
    from afterglow.read.messages import Neighbours


MAX_GAP_BYTES: Final = 1 << 30
"""Bytes of entries between two chunks of a message: five seconds of a topic with 200 MB/s."""

MAX_TRACKED: Final = 1 << 16
"""Incomplete messages at a time, and chunks examined by a backward search: some 30 MB."""

MAX_HELD_BYTES: Final = 32 << 20
"""Bytes of payloads of incomplete messages: six chunks of the usual 5 MiB."""

Key: TypeAlias = tuple[bytes, int | None]
"""Identity of a message: its uuid and its transaction."""


@dataclass(slots=True)
class SeenChunk:
    """A chunk that was read."""

    chunk: Chunk
    position: Position
    at: int
    """Bytes from the origin."""
    payload: bytes | None
    """None: not held in memory."""


@dataclass(slots=True)
class PartialMessage:
    """A message of which the first chunks have been read."""

    chunks: list[SeenChunk]
    """Consecutive chunks, from chunk 0 on."""


def extend_message(message: PartialMessage | None, seen: SeenChunk, max_gap_bytes: int) -> PartialMessage | None:
    """A message after its next chunk in the topic; None: it has not begun, or will not be complete."""
    if seen.chunk.number == 0:
        return PartialMessage([seen])  # begins the message, perhaps again
    if message is None:
        return None
    last, chunk = message.chunks[-1], seen.chunk
    if seen.at - last.at > max_gap_bytes:
        return None
    if (chunk.count, chunk.total_bytes) != (last.chunk.count, last.chunk.total_bytes):
        return None  # another message with the same uuid
    if 0 < chunk.number < len(message.chunks):
        return message  # sent again
    if chunk.number != len(message.chunks):
        return None
    message.chunks.append(seen)
    return message


def seen_chunk(run: FrameRun, chunk: Chunk, run_at: int, *, payload: bool) -> SeenChunk:
    """A chunk of a run that begins ``run_at`` bytes from the origin."""
    offsets = run.frames.offsets
    at = run_at + int(offsets[chunk.entry_id - run.frames.first_entry_id] - offsets[0])
    held = bytes(run.data[chunk.payload_at : chunk.payload_at + chunk.payload_bytes]) if payload else None
    return SeenChunk(chunk, Position(run.ledger_id, chunk.entry_id), at, held)


class ChunkSearch:
    """Backward search for chunks before the origin, only as far as needed. Not thread-safe.

    Args:
        neighbours: The entries before the origin.
        origin: Position at which reading began.
        max_gap_bytes: Limit for bytes of entries between two chunks of a message.
        max_held_bytes: Limit for payloads held of a message.
    """

    def __init__(self, neighbours: Neighbours, origin: Position, max_gap_bytes: int, max_held_bytes: int) -> None:
        self._neighbours = neighbours
        self._origin = origin
        self._max_gap_bytes = max_gap_bytes
        self._max_held_bytes = max_held_bytes
        self._runs: Iterator[ServedRun] | None = None
        self._at = 0
        """Bytes from the origin to where the search is: negative."""
        self._seen = 0
        self._ended = False
        self._failure: AfterglowError | None = None
        self._find_start: dict[Key, list[SeenChunk]] = {}
        """The chunks of each message, newest first, back to its first chunk or to the last chunk of an earlier send."""
        self._settled: set[Key] = set()

    def message(self, key: Key, at: int) -> tuple[PartialMessage | None, bool]:
        """The chunks of a message before the origin; to be called once per message.

        Args:
            key: The message.
            at: Bytes from the origin to its next chunk.

        Returns:
            The message, None if it had not begun or will not be complete; and whether it was complete before.

        Raises:
            AfterglowError: Entries cannot be read.
        """
        held = 0
        while key not in self._settled and not self._ended and self._seen < MAX_TRACKED:
            found = self._find_start.get(key)
            if (found[-1].at if found else at) - self._at > self._max_gap_bytes:
                break
            held = self._step(key, held)
        message: PartialMessage | None = None
        is_complete = False
        for seen in reversed(self._find_start.pop(key, [])):
            message = extend_message(message, seen, self._max_gap_bytes)
            if seen.chunk.number == seen.chunk.count - 1:
                message, is_complete = None, True
        return message, is_complete

    def _step(self, wanted: Key, held: int) -> int:
        """Search one more run; returns the bytes that are held of the wanted message."""
        self._runs = self._runs or self._neighbours.before(self._origin)
        if self._failure is not None:
            raise self._failure  # a generator that has raised ends, which would look like the start of the topic
        try:
            served = next(self._runs, None)
        except AfterglowError as error:
            self._failure = error
            raise
        if served is None:
            self._ended = True
            return held
        run = served.run
        self._at -= run.frame_bytes
        for chunk in reversed(list(find_marks(run.data, run.frames).chunks())):
            key = (chunk.uuid, chunk.transaction)
            self._seen += 1
            if key in self._settled:
                continue
            keep = key == wanted and held + chunk.payload_bytes <= self._max_held_bytes
            held += chunk.payload_bytes if keep else 0
            self._find_start.setdefault(key, []).append(seen_chunk(run, chunk, self._at, payload=keep))
            if chunk.number in {0, chunk.count - 1}:
                self._settled.add(key)
        return held


@dataclass(frozen=True, slots=True)
class CompleteMessage:
    """A message of which all chunks have been read."""

    chunks: tuple[SeenChunk, ...]
    neighbours: Neighbours

    def value(self) -> BytesLike:
        """Its payload, decompressed unless it is encrypted.

        Raises:
            CorruptEntry: It cannot be decompressed, or is too large.
            IncompleteMessage: A chunk does not exist any more.
            AfterglowError: A chunk cannot be read.
        """
        size_bytes = sum(seen.chunk.payload_bytes for seen in self.chunks)
        if size_bytes > MAX_UNCOMPRESSED_BYTES:
            raise CorruptEntry(
                f"its {len(self.chunks)} chunks have {size_bytes} bytes, above the limit of {MAX_UNCOMPRESSED_BYTES}"
            )
        joined = b"".join(self._payload(seen) for seen in self.chunks)
        last = self.chunks[-1].chunk
        return joined if last.encrypted else decompress(last.codec, joined, last.uncompressed_bytes)

    def _payload(self, seen: SeenChunk) -> bytes:
        if seen.payload is not None:
            return seen.payload
        served = next(self.neighbours.after(seen.position), None)
        if served is not None and _start(served.run) == seen.position:
            run = served.run
            for chunk in find_marks(run.data, run.frames.slice(0, 1)).chunks():
                return seen_chunk(run, chunk, 0, payload=True).payload or b""
        raise IncompleteMessage(f"its chunk in entry {seen.position} does not exist any more")


@dataclass(slots=True)
class _Tail:
    """Chunks of a message that may have begun before the origin."""

    chunks: list[SeenChunk]


class ChunkedMessages:
    """Tracks the chunked messages of one topic that is read forwards. Not thread-safe.

    Args:
        neighbours: The entries before those that are read.
        payloads: Whether to hold payloads, to return values.
        max_held_bytes: Limit for payloads of incomplete messages.
        max_gap_bytes: Limit for bytes of entries between two chunks of a message.
    """

    def __init__(
        self,
        neighbours: Neighbours,
        *,
        payloads: bool,
        max_held_bytes: int = MAX_HELD_BYTES,
        max_gap_bytes: int = MAX_GAP_BYTES,
    ) -> None:
        self._neighbours = neighbours
        self._payloads = payloads
        self._max_held_bytes = max_held_bytes
        self._max_gap_bytes = max_gap_bytes
        self._next: Position | None = None
        """Position after the current run."""
        self._at = 0
        """Bytes from the origin to the current run. From the origin on, runs follow each other without a gap."""
        self._run_bytes = 0
        self._messages: OrderedDict[Key, PartialMessage | _Tail] = OrderedDict()
        """Incomplete messages, by the position of their last chunk."""
        self._held: dict[Key, int] = {}
        """Bytes of payloads held per message."""
        self._held_bytes = 0
        """Bytes of payloads held in total."""
        self._chunk_search: ChunkSearch | None = None
        self._may_precede_origin = True
        """Whether a message without a chunk since the origin may have begun before it."""
        self._seen: set[Key] = set()
        """Messages whose state no longer depends on entries before the origin."""
        self._completed: OrderedDict[Key, None] = OrderedDict()
        """Newest complete messages: later chunks of them were sent again."""

    def enter(self, run: FrameRun) -> None:
        """Advance to a run, in the order of the topic. After a gap the run is a new origin.

        Raises:
            AfterglowError: Entries before it cannot be read.
        """
        if self._follows(_start(run)):
            self._at += self._run_bytes
        else:
            self._messages.clear()
            self._held.clear()
            self._seen.clear()
            self._held_bytes = self._at = 0
            self._may_precede_origin = True
            held = self._max_held_bytes if self._payloads else 0
            self._chunk_search = ChunkSearch(self._neighbours, _start(run), self._max_gap_bytes, held)
        self._next = _end(run)
        self._run_bytes = run.frame_bytes
        if self._at > self._max_gap_bytes or len(self._seen) > MAX_TRACKED:
            self._may_precede_origin = False
            self._seen.clear()

    def add(self, run: FrameRun, marks: Marks) -> dict[int, CompleteMessage | IncompleteMessage]:
        """Add the chunks of some entries of the run that was entered last.

        Returns:
            By entry that holds the last chunk of a message: the message, or an error if it is incomplete. Repeated
            chunks of complete messages are omitted.

        Raises:
            AfterglowError: Entries before the run cannot be read.
        """
        found: dict[int, CompleteMessage | IncompleteMessage] = {}
        for chunk in marks.chunks():
            seen = seen_chunk(run, chunk, self._at, payload=self._payloads)
            outcome = self._track((chunk.uuid, chunk.transaction), seen)
            if outcome is not None:
                found[chunk.entry_id] = outcome
        return found

    def incomplete(self) -> Iterator[IncompleteMessage]:
        """The messages whose last chunk has not been read, except those of transactions."""
        for (_, transaction), message in self._messages.items():
            if transaction is None:
                yield _incomplete(message.chunks[-1], message.chunks[-1].chunk.number + 1)

    def _track(self, key: Key, seen: SeenChunk) -> CompleteMessage | IncompleteMessage | None:
        tracked = self._messages.get(key)
        before = 0 if tracked is None else len(tracked.chunks)
        is_last = seen.chunk.number == seen.chunk.count - 1
        message: PartialMessage | None
        if seen.chunk.number and (isinstance(tracked, _Tail) or (tracked is None and self._may_have_begun(key))):
            tail = _Tail([]) if tracked is None else tracked
            tail.chunks.append(seen)
            if not is_last:
                self._store(key, tail, seen)
                return None
            message, before = self._find_start(key, tail)
        else:
            message = extend_message(
                tracked if isinstance(tracked, PartialMessage) else None, seen, self._max_gap_bytes
            )
        if self._may_precede_origin:
            self._seen.add(key)
        if message is None or is_last or message is not tracked:
            self._drop(key)
        if not is_last:
            if message is not None:
                self._store(key, message, seen)
            return None
        if message is None:
            return None if key in self._completed else _incomplete(seen, before)
        self._completed[key] = None
        if len(self._completed) > MAX_TRACKED:
            self._completed.popitem(last=False)
        return CompleteMessage(tuple(message.chunks), self._neighbours)

    def _may_have_begun(self, key: Key) -> bool:
        return self._may_precede_origin and key not in self._seen

    def _find_start(self, key: Key, tail: _Tail) -> tuple[PartialMessage | None, int]:
        """A message with its chunks before the origin, and the number of consecutive chunks before the last."""
        assert self._chunk_search is not None
        message, is_complete = self._chunk_search.message(key, tail.chunks[0].at)
        if is_complete:
            self._completed[key] = None
        consecutive = 0
        for seen in tail.chunks:
            consecutive = consecutive if message is None else len(message.chunks)
            message = extend_message(message, seen, self._max_gap_bytes)
        return message, consecutive

    def _store(self, key: Key, tracked: PartialMessage | _Tail, seen: SeenChunk) -> None:
        """Track an incomplete message, and drop payloads of the oldest above the limit."""
        self._messages[key] = tracked
        self._messages.move_to_end(key)
        if seen.payload and tracked.chunks[-1] is seen:
            self._held[key] = self._held.get(key, 0) + len(seen.payload)
            self._held_bytes += len(seen.payload)
        if len(tracked.chunks) > MAX_TRACKED:
            self._drop(key)
        if len(self._messages) > MAX_TRACKED:
            self._drop(next(iter(self._messages)))
        while self._held_bytes > self._max_held_bytes:
            oldest = next(iter(self._held))
            self._held_bytes -= self._held.pop(oldest)
            for each in self._messages[oldest].chunks:
                each.payload = None

    def _drop(self, key: Key) -> None:
        self._messages.pop(key, None)
        self._held_bytes -= self._held.pop(key, 0)

    def _follows(self, start: Position) -> bool:
        """Whether there is no entry between the last run and a position."""
        if self._next is None or start == self._next or not self._messages:
            return start == self._next
        before = next(self._neighbours.before(start), None)
        return before is not None and _end(before.run) == self._next


def _start(run: FrameRun) -> Position:
    return Position(run.ledger_id, run.frames.first_entry_id)


def _end(run: FrameRun) -> Position:
    return Position(run.ledger_id, run.frames.end_entry_id)


def _incomplete(seen: SeenChunk, number: int) -> IncompleteMessage:
    name = seen.chunk.uuid.decode("utf-8", "replace")
    return IncompleteMessage(
        f"entry {seen.position}: message {name!r} came in {seen.chunk.count} chunks, of which chunk {number} is missing"
    )
