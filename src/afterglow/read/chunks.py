"""Chunked messages, assembled at the position of their last chunk.

A producer cuts the payload of a large message, after compression, into chunks that are entries of their own, one after
the other, with those of other producers between them. After a reconnect it may send them again, from any chunk on. So,
for each message: chunk 0 begins it, also anew; the chunk that follows is taken; one that was taken before is ignored;
any other ends it, and it will not be complete. Stock consumers do the same.

Chunks before the entries that are read are searched for backwards from where reading begins, when the last chunk has
come. Chunks of one message are expected within ``REACH_BYTES`` and ``MOST_CHUNKS`` of each other: no search goes
further.

Memory: payloads of incomplete messages take ``HELD_BYTES`` at most. Beyond that, the message that began first keeps
only the positions of its chunks, which are read again when its last one comes. A complete message takes its stored
bytes and, where it was compressed, its own, each ``MAX_UNCOMPRESSED_BYTES`` at most: a larger one is corrupt.
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


REACH_BYTES: Final = 1 << 30
"""Of entries between a chunk and the next of its message: five seconds of a topic that takes 200 MB/s."""

MOST_CHUNKS: Final = 1 << 16
"""Messages that are not whole at a time, and chunks that are looked at when going back: some 30 MB."""

Key: TypeAlias = tuple[bytes, int | None]
"""Of a message: its uuid and its transaction."""


@dataclass(slots=True)
class Part:
    """A chunk as it was seen."""

    chunk: Chunk
    position: Position
    at: int
    """Where it stands, in bytes from where reading began."""
    payload: bytes | None
    """None: it is not held."""


@dataclass(slots=True)
class OpenMessage:
    """A message that is not whole."""

    parts: list[Part]
    """Its chunks, from the first on."""

    def next(self, part: Part, reach_bytes: int) -> OpenMessage | None:
        """The message with a chunk that follows in the topic; None: it will not be whole."""
        last = self.parts[-1]
        if part.at - last.at > reach_bytes or not _alike(part.chunk, last.chunk):
            return None
        if 0 < part.chunk.number < len(self.parts):
            return self  # sent again
        if part.chunk.number != len(self.parts):
            return None
        self.parts.append(part)
        return self


def follow(message: OpenMessage | None, part: Part, reach_bytes: int) -> OpenMessage | None:
    """A message, None where none has begun, after another chunk of it: chunk 0 begins it, also anew."""
    if part.chunk.number == 0:
        return OpenMessage([part])
    return None if message is None else message.next(part, reach_bytes)


def part_of(run: FrameRun, chunk: Chunk, run_at: int, *, payload: bool) -> Part:
    """A chunk of a run that begins ``run_at`` bytes from where reading began."""
    offsets = run.frames.offsets
    at = run_at + int(offsets[chunk.entry_id - run.frames.first_entry_id] - offsets[0])
    held = bytes(run.data[chunk.payload_at : chunk.payload_at + chunk.payload_bytes]) if payload else None
    return Part(chunk, Position(run.ledger_id, chunk.entry_id), at, held)


class ChunkSearch:
    """Goes back from where reading began, only as far as it is asked to. Not thread-safe.

    Args:
        around: The entries before.
        origin: Where reading began.
        reach_bytes: Of entries between a chunk and the next of its message.
        held_bytes: Of payloads that are kept of a message that is looked for.
    """

    def __init__(self, around: Neighbours, origin: Position, reach_bytes: int, held_bytes: int) -> None:
        self._around = around
        self._origin = origin
        self._reach = reach_bytes
        self._held_most = held_bytes
        self._runs: Iterator[ServedRun] | None = None
        self._at = 0
        """How far it has gone, in bytes from the origin: negative."""
        self._seen = 0
        self._ended = False
        self._failure: AfterglowError | None = None
        self._found: dict[Key, list[Part]] = {}
        """The chunks of each message, newest first, back to one that makes those before it of no account."""
        self._settled: set[Key] = set()

    def message(self, key: Key, at: int) -> tuple[OpenMessage | None, bool]:
        """A message as far as it had come at the origin; to be asked once for each.

        Args:
            key: The message.
            at: Where its next chunk stands, in bytes from the origin.

        Returns:
            The message, None where it had not begun or will not be whole; and whether it was whole already.

        Raises:
            AfterglowError: Entries cannot be read.
        """
        held = 0
        while key not in self._settled and not self._ended and self._seen < MOST_CHUNKS:
            found = self._found.get(key)
            if (found[-1].at if found else at) - self._at > self._reach:
                break
            held = self._step(key, held)
        message: OpenMessage | None = None
        whole = False
        for part in reversed(self._found.pop(key, [])):
            message = follow(message, part, self._reach)
            if part.chunk.number == part.chunk.count - 1:
                message, whole = None, True
        return message, whole

    def _step(self, wanted: Key, held: int) -> int:
        """Go back by a run; returns the bytes that are held of a message after it."""
        self._runs = self._runs or self._around.before(self._origin)
        if self._failure is not None:
            raise self._failure  # the runs would say that the topic begins there
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
            keep = key == wanted and held + chunk.payload_bytes <= self._held_most
            held += chunk.payload_bytes if keep else 0
            self._found.setdefault(key, []).append(part_of(run, chunk, self._at, payload=keep))
            if chunk.number in {0, chunk.count - 1}:
                self._settled.add(key)
        return held


def _alike(one: Chunk, other: Chunk) -> bool:
    """Whether two chunks of one name say the same of their message."""
    return (one.count, one.total_bytes) == (other.count, other.total_bytes)


HELD_BYTES: Final = 32 << 20
"""Of payloads of messages that are not whole: six chunks of the usual 5 MiB."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A message of which all chunks are there."""

    parts: tuple[Part, ...]
    around: Neighbours

    def value(self) -> BytesLike:
        """Its payload, expanded; of an encrypted one, as its chunks are stored.

        Raises:
            CorruptEntry: It does not expand, or is too large.
            IncompleteMessage: A chunk is not there any more.
            AfterglowError: A chunk cannot be read.
        """
        size_bytes = sum(part.chunk.payload_bytes for part in self.parts)
        if size_bytes > MAX_UNCOMPRESSED_BYTES:
            raise CorruptEntry(
                f"its {len(self.parts)} chunks take {size_bytes} bytes, above the limit of {MAX_UNCOMPRESSED_BYTES}"
            )
        joined = b"".join(self._payload(part) for part in self.parts)
        last = self.parts[-1].chunk
        return joined if last.encrypted else decompress(last.codec, joined, last.uncompressed_bytes)

    def _payload(self, part: Part) -> bytes:
        if part.payload is not None:
            return part.payload
        served = next(self.around.after(part.position), None)
        if served is not None and _start(served.run) == part.position:
            run = served.run
            for chunk in find_marks(run.data, run.frames.part(0, 1)).chunks():
                return part_of(run, chunk, 0, payload=True).payload or b""
        raise IncompleteMessage(f"its chunk in entry {part.position} is not there any more")


@dataclass(slots=True)
class _Tail:
    """Chunks of a message that may have begun before the entries that are read."""

    parts: list[Part]


class ChunkedMessages:
    """Follows the chunks of one topic that is read forwards. Not thread-safe.

    Args:
        around: The entries before what is read.
        payloads: Whether values are wanted: without, nothing of them is held.
        held_bytes: Of payloads of messages that are not whole.
        reach_bytes: Of entries between a chunk and the next of its message.
    """

    def __init__(
        self, around: Neighbours, *, payloads: bool, held_bytes: int = HELD_BYTES, reach_bytes: int = REACH_BYTES
    ) -> None:
        self._around = around
        self._payloads = payloads
        self._held_most = held_bytes
        self._reach = reach_bytes
        self._next: Position | None = None
        """Behind the run that is read."""
        self._at = 0
        """Where that run begins, in bytes from the origin: from there all runs follow each other."""
        self._run_bytes = 0
        self._open: OrderedDict[Key, OpenMessage | _Tail] = OrderedDict()
        """By the positions of their last chunks."""
        self._held: dict[Key, int] = {}
        """Bytes of payloads that are held of each of them, where any are."""
        self._held_bytes = 0
        """Of all together."""
        self._before: ChunkSearch | None = None
        self._near = True
        """Whether messages may have begun before the origin of which no chunk has come since."""
        self._seen: set[Key] = set()
        """Messages that are known to have begun, or not to have, whatever stands before the origin."""
        self._whole: OrderedDict[Key, None] = OrderedDict()
        """Of which all chunks have come, the newest: chunks of theirs that follow were sent again."""

    def enter(self, run: FrameRun) -> None:
        """Go on to a run, in the order of the topic. What was left out before it is noticed.

        Raises:
            AfterglowError: Entries before it cannot be read.
        """
        if self._follows(_start(run)):
            self._at += self._run_bytes
        else:
            self._open.clear()
            self._held.clear()
            self._seen.clear()
            self._held_bytes = self._at = 0
            self._near = True
            held = self._held_most if self._payloads else 0
            self._before = ChunkSearch(self._around, _start(run), self._reach, held)
        self._next = _end(run)
        self._run_bytes = run.frame_bytes
        if self._at > self._reach or len(self._seen) > MOST_CHUNKS:
            self._near = False
            self._seen.clear()

    def take(self, run: FrameRun, marks: Marks) -> dict[int, Whole | IncompleteMessage]:
        """Take the chunks of some entries of the run that was entered last.

        Returns:
            For each entry that holds the last chunk of a message the message, or why there is none. Other chunks, and
            those of messages that came whole before, are not in it.

        Raises:
            AfterglowError: Entries before it cannot be read.
        """
        found: dict[int, Whole | IncompleteMessage] = {}
        for chunk in marks.chunks():
            part = part_of(run, chunk, self._at, payload=self._payloads)
            outcome = self._take((chunk.uuid, chunk.transaction), part)
            if outcome is not None:
                found[chunk.entry_id] = outcome
        return found

    def left_open(self) -> Iterator[IncompleteMessage]:
        """The messages of which the last chunk has not come, but for those of transactions."""
        for (_, transaction), message in self._open.items():
            if transaction is None:
                yield _incomplete(message.parts[-1], message.parts[-1].chunk.number + 1)

    def _take(self, key: Key, part: Part) -> Whole | IncompleteMessage | None:
        followed = self._open.get(key)
        before = 0 if followed is None else len(followed.parts)
        is_last = part.chunk.number == part.chunk.count - 1
        message: OpenMessage | None
        if part.chunk.number and (isinstance(followed, _Tail) or (followed is None and self._may_have_begun(key))):
            tail = _Tail([]) if followed is None else followed
            tail.parts.append(part)
            if not is_last:
                self._hold(key, tail, part)
                return None
            message, before = self._found(key, tail)
        else:
            message = follow(followed if isinstance(followed, OpenMessage) else None, part, self._reach)
        if self._near:
            self._seen.add(key)
        if message is None or is_last or message is not followed:
            self._drop(key)
        if not is_last:
            if message is not None:
                self._hold(key, message, part)
            return None
        if message is None:
            return None if key in self._whole else _incomplete(part, before)
        self._whole[key] = None
        if len(self._whole) > MOST_CHUNKS:
            self._whole.popitem(last=False)
        return Whole(tuple(message.parts), self._around)

    def _may_have_begun(self, key: Key) -> bool:
        return self._near and key not in self._seen

    def _found(self, key: Key, tail: _Tail) -> tuple[OpenMessage | None, int]:
        """A message with what came of it before the origin, and how many of its chunks were there in a row."""
        assert self._before is not None
        message, whole = self._before.message(key, tail.parts[0].at)
        if whole:
            self._whole[key] = None
        row = 0
        for part in tail.parts:
            row = row if message is None else len(message.parts)
            message = follow(message, part, self._reach)
        return message, row

    def _hold(self, key: Key, followed: OpenMessage | _Tail, part: Part) -> None:
        """Keep what has come of a message, within what may be held: what began first goes first."""
        self._open[key] = followed
        self._open.move_to_end(key)
        if part.payload and followed.parts[-1] is part:
            self._held[key] = self._held.get(key, 0) + len(part.payload)
            self._held_bytes += len(part.payload)
        if len(followed.parts) > MOST_CHUNKS:
            self._drop(key)
        if len(self._open) > MOST_CHUNKS:
            self._drop(next(iter(self._open)))
        while self._held_bytes > self._held_most:
            oldest = next(iter(self._held))
            self._held_bytes -= self._held.pop(oldest)
            for each in self._open[oldest].parts:
                each.payload = None

    def _drop(self, key: Key) -> None:
        self._open.pop(key, None)
        self._held_bytes -= self._held.pop(key, 0)

    def _follows(self, start: Position) -> bool:
        """Whether no entry stands between the last run and a position."""
        if self._next is None or start == self._next or not self._open:
            return start == self._next
        before = next(self._around.before(start), None)
        return before is not None and _end(before.run) == self._next


def _start(run: FrameRun) -> Position:
    return Position(run.ledger_id, run.frames.first_entry_id)


def _end(run: FrameRun) -> Position:
    return Position(run.ledger_id, run.frames.end_entry_id)


def _incomplete(part: Part, number: int) -> IncompleteMessage:
    name = part.chunk.uuid.decode("utf-8", "replace")
    return IncompleteMessage(
        f"entry {part.position}: message {name!r} came in {part.chunk.count} chunks, of which chunk {number} is missing"
    )
