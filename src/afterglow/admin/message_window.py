"""Windows of messages for the console: a bounded number of messages before or after any position of a topic.

A window reads entries with the reader that serves consumers, so it has the same copies, read priority and fallback. It
ends when it has enough messages or when its :class:`Budget` is spent, whichever is first, and states the range that it
has examined: the caller continues there. Runs on a thread.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final

from afterglow.format.position import LATEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from afterglow.admin.message_decoding import Message, MessageDecoder, UndecodedMessage
    from afterglow.format.position import Position
    from afterglow.ledger.reader import EntryReader, ReadOrigin, ReadResult, StoredEntry

_READ_ENTRIES: Final = 100
_READ_BYTES: Final = 256 << 10
"""Bytes of one read, after which the budget is compared again. Blocks in tiers have 1 MiB, and are cached."""


@dataclass(frozen=True, slots=True, order=True)
class MessagePosition:
    """A position between messages: before the message with a batch index, or before a whole entry."""

    position: Position
    batch_index: int = 0

    def __str__(self) -> str:
        return f"{self.position}:{self.batch_index}" if self.batch_index > 0 else str(self.position)


@dataclass(frozen=True, slots=True)
class WindowRequest:
    """A wanted window."""

    start: MessagePosition | None = None
    """The first message, inclusive; None: the messages before ``end``."""
    end: MessagePosition = field(default_factory=lambda: MessagePosition(LATEST))
    """The message after the last one."""
    limit: int = 50
    """Maximum number of messages."""
    search: str = ""
    """Text that a message must contain, in any case; empty: every message."""


@dataclass(frozen=True, slots=True)
class Window:
    """The messages that were found."""

    messages: tuple[Message, ...]
    """In the order of the topic."""
    begin: MessagePosition
    """Begin of the examined range."""
    end: MessagePosition
    """End of the examined range, exclusive."""
    has_older: bool
    """Whether the topic has entries before the range."""
    has_newer: bool
    """Whether the topic has entries after the range."""
    examined: int
    """Number of messages that were decoded to find these."""
    read_bytes: int
    """Stored bytes of the entries that were read."""
    problems: tuple[str, ...]
    """Entries of the range that are damaged in every copy."""


@dataclass(slots=True)
class Budget:
    """Limits of one window, which always gets one read and one entry."""

    read_bytes: int = 8 << 20
    """Stored bytes of entries."""
    expanded_bytes: int = 16 << 20
    """Bytes of payloads after decompression."""
    shown_bytes: int = 1 << 20
    """Bytes of texts in the answer."""
    time_s: float = 0.3
    """Time from now on; a read that waits for a tier is not interrupted."""
    monotonic: Callable[[], float] = time.monotonic
    """Seconds from any origin."""
    spent_bytes: int = field(default=0, init=False)
    """Stored bytes that were read."""
    _deadline_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._deadline_s = self.monotonic() + self.time_s

    @property
    def is_spent(self) -> bool:
        """Whether the window has to end."""
        return (
            self.spent_bytes >= self.read_bytes
            or self.expanded_bytes <= 0
            or self.shown_bytes <= 0
            or self.monotonic() >= self._deadline_s
        )


def read_window(reader: EntryReader, decoder: MessageDecoder, request: WindowRequest, budget: Budget) -> Window:
    """Read a window of messages; may wait for a disk or a tier.

    Args:
        reader: Reads the topic.
        decoder: Decodes its messages.
        request: The wanted window.
        budget: Limits; it is spent by this call.

    Raises:
        AfterglowError: Entries cannot be read.
    """
    reading = _Reading(reader, decoder, request, budget)
    return reading.backward() if request.start is None else reading.forward(request.start)


class _Reading:
    """One window that is being read."""

    def __init__(self, reader: EntryReader, decoder: MessageDecoder, request: WindowRequest, budget: Budget) -> None:
        self._reader = reader
        self._decoder = decoder
        self._request = request
        self._budget = budget
        self._search = request.search.casefold()
        self._found: deque[Message] = deque()
        self._examined = 0
        self._problems: list[str] = []

    def forward(self, start: MessagePosition) -> Window:
        """Messages from a position on."""
        first = self._reader.layout.at_or_after(start.position)
        if first is not None and first > start.position:
            start = MessagePosition(first)
        at = start
        while not self._is_full:
            result = self._read(at.position, _READ_ENTRIES)
            if result.end is None:
                break
            following = MessagePosition(result.end)
            messages: list[UndecodedMessage] = []
            for entry, origin in _with_origins(result):
                messages += [message for message in self._split(entry, origin) if _position_of(message) >= at]
                if self._are_enough(messages):
                    following = MessagePosition(entry.position.next())
                    break
            positions = [*map(_position_of, messages[1:]), following]
            taken = self._take(messages, self._found.append)
            at = positions[taken - 1] if taken < len(messages) else following
            if self._budget.is_spent:
                break
        return self._window(start, at)

    def backward(self) -> Window:
        """The last messages before a position."""
        layout = self._reader.layout
        begin = end = min(self._request.end, MessagePosition(layout.last.next()))
        rank = layout.rank(end.position.previous())
        if end.batch_index > 0 and layout.contains(end.position):
            rank += 1
        step = _READ_ENTRIES if self._search else min(self._request.limit, _READ_ENTRIES)
        while rank and not self._is_full:
            count = min(step, rank)
            first, last = layout.at_rank(rank - count), layout.at_rank(rank - 1)
            result = self._read(first, count)
            if count > 1 and (result.end is None or result.end <= last):
                step = max(count // 4, 1)  # the bytes of one read end before the newest of these entries
                continue
            reached = MessagePosition(first)
            messages = []
            for entry, origin in reversed(list(_with_origins(result))):
                if entry.position > last:  # earlier ones were trimmed meanwhile
                    continue
                messages += [message for message in reversed(self._split(entry, origin)) if _position_of(message) < end]
                if self._are_enough(messages):
                    reached = MessagePosition(entry.position)
                    break
            taken = self._take(messages, self._found.appendleft)
            begin = _position_of(messages[taken - 1]) if taken < len(messages) else reached
            rank = layout.rank(begin.position.previous())
            if self._budget.is_spent:
                break
        return self._window(begin, end)

    @property
    def _is_full(self) -> bool:
        return len(self._found) >= self._request.limit

    def _are_enough(self, messages: list[UndecodedMessage]) -> bool:
        """Whether no more entries of a read have to be split: without a search every message counts."""
        is_full = not self._search and len(self._found) + len(messages) >= self._request.limit
        return is_full or self._budget.expanded_bytes <= 0

    def _take(self, messages: list[UndecodedMessage], add: Callable[[Message], None]) -> int:
        """Add messages that match to the window, until it is full; returns the number of messages that were examined.

        At least one is, unless there are none.
        """
        wanted = messages if self._search else messages[: self._request.limit - len(self._found)]
        for number, message in enumerate(self._decoder.decode(wanted), 1):
            self._examined += 1
            if not self._search or message.contains(self._search):
                add(message)
                self._budget.shown_bytes -= message.shown_bytes
            if self._is_full or self._budget.shown_bytes <= 0:
                return number
        return len(wanted)

    def _read(self, position: Position, max_entries: int) -> ReadResult:
        result = self._reader.read_with_gaps(position, max_entries, _READ_BYTES)
        self._budget.spent_bytes += sum(len(entry.data) for entry in result.entries)
        for skipped in result.skipped:
            problem = f"entries {skipped} are damaged in every copy"
            if problem not in self._problems:
                self._problems.append(problem)
        return result

    def _split(self, entry: StoredEntry, origin: ReadOrigin) -> list[UndecodedMessage]:
        time.sleep(0)  # yields the GIL: the event loop would wait five milliseconds for it otherwise
        messages, expanded_bytes = self._decoder.split(entry, origin)
        self._budget.expanded_bytes -= expanded_bytes
        return messages

    def _window(self, begin: MessagePosition, end: MessagePosition) -> Window:
        layout = self._reader.layout
        return Window(
            tuple(self._found),
            begin,
            end,
            has_older=begin > MessagePosition(layout.first) and layout.total_entries > 0,
            has_newer=layout.at_or_after(end.position) is not None,
            examined=self._examined,
            read_bytes=self._budget.spent_bytes,
            problems=tuple(self._problems),
        )


def _position_of(message: UndecodedMessage) -> MessagePosition:
    return MessagePosition(message.stored.position, max(message.batch_index, 0))


def _with_origins(result: ReadResult) -> Iterator[tuple[StoredEntry, ReadOrigin]]:
    """The entries of a read, each with the copy that served it."""
    origins = chain.from_iterable(repeat(origin, count) for origin, count in result.origins)
    return zip(result.entries, origins, strict=True)
