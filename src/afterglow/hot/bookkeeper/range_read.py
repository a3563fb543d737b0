"""One read of a range of entries: requests in flight, in order, as few and as large as the placement allows.

Where every bookie of the ensemble has every entry (E = Qw), two batch reads of at most 1 MiB are in flight. In striped
ledgers (E > Qw) a bookie has at most Qw consecutive entries, and many small batch reads are in flight; bookies without
batch reads get single reads. The size of an entry is not known before it is read, so that small requests are sent only
up to an entry whose cumulative length says that all up to it fit the limit of bytes.

Any failure drops the requests behind it, and the next entry is read with the complete search of
:meth:`~afterglow.hot.bookkeeper.replicas.LedgerReplicas.read_entry`.
"""

from __future__ import annotations

import time
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

from afterglow.errors import AccessDenied, AfterglowError, CorruptBlock, EntriesMissing, HotLogError, HotLogUnavailable
from afterglow.format.frames import FRAME_BYTES
from afterglow.hot.bookkeeper.connection import ReadRequest
from afterglow.hot.bookkeeper.entries import append_frame, split_batch
from afterglow.hot.bookkeeper.protocol import ReturnCode
from afterglow.hot.bookkeeper.replicas import pause_rejected

if TYPE_CHECKING:
    from afterglow.hot.bookkeeper.bookie import Bookie
    from afterglow.hot.bookkeeper.connection import BookieConnection
    from afterglow.hot.bookkeeper.entries import StoredEntry
    from afterglow.hot.bookkeeper.protocol import Response
    from afterglow.hot.bookkeeper.replicas import LedgerReplicas

_BATCH_BYTES: Final = 1 << 20
"""Largest response of a batch read, unless its first entry is larger."""
_BATCH_TARGET_BYTES: Final = _BATCH_BYTES * 7 // 8
"""Expected size, so that entries slightly above the average do not split a batch."""
_MAX_LARGE: Final = 2
"""Batch reads in flight where E = Qw."""
_MAX_SMALL: Final = 256
"""Requests in flight otherwise."""
_MAX_SMALL_BYTES: Final = 4 << 20
"""Payloads up to the entry whose length was read; as many again may be in flight before it."""
_MAX_REPLY_BYTES: Final = 5 << 20
"""Largest response of a small batch read; above the limit of its payloads, so that it does not come short."""


class _Sent(NamedTuple):
    """A request, and the bookie that it was sent to."""

    request: ReadRequest
    bookie: Bookie
    is_large: bool


class RangeRead:
    """One read; belongs to one thread.

    Args:
        replicas: The ledger.
        first: The first entry, which is confirmed.
        last: The last entry, which is confirmed.
        max_bytes: Largest number of bytes of frames, unless the first entry is larger.
        entry_bytes: Expected size of an entry; 0: not known.
    """

    def __init__(self, replicas: LedgerReplicas, first: int, last: int, max_bytes: int, entry_bytes: float) -> None:
        self.frames = bytearray()
        """Contiguous frames of the entries read so far."""
        self.entry_bytes = entry_bytes
        """Expected size of the next entry, with its frame."""
        self._replicas = replicas
        self._max_bytes = max_bytes
        self._next = first
        self._last = last
        self._is_full = False
        self._length: int | None = None  # payloads of all entries before the next one
        self._answers: SimpleQueue[ReadRequest] = SimpleQueue()
        self._sent: deque[_Sent] = deque()
        self._planned = first  # first entry without a request
        self._horizon = first - 1  # small requests may be sent up to here
        self._horizon_first = first  # where the limit of bytes was counted from
        self._horizon_length: int | None = None
        self._rejections = 0
        self._deadline = self._renewed_deadline()

    def read(self) -> int:
        """Read the range, and return the number of entries in :attr:`frames`; at least one.

        Raises:
            AfterglowError: The first entry cannot be read; see
                :meth:`~afterglow.hot.bookkeeper.replicas.LedgerReplicas.read_entry`. An entry behind it that cannot be
                read ends the result.
        """
        first = self._next
        try:
            self._read()
        except AfterglowError:
            if not self.frames:
                raise
        return self._next - first

    def _read(self) -> None:
        if not self.entry_bytes:
            entry = self._replicas.read_entry(self._next)
            self.entry_bytes = entry.length / (self._next + 1) + FRAME_BYTES
            self._append(entry)
            self._restart()
        while self._next <= self._last and not self._is_full:
            if self.frames and len(self.frames) + self.entry_bytes > self._max_bytes:
                break  # rather than request an entry that will not fit
            self._send_more()
            if self._sent:
                self._take(self._sent.popleft())
            else:
                self._read_next_completely()

    # --- responses ---

    def _take(self, sent: _Sent) -> None:
        request, bookie = sent.request, sent.bookie
        try:
            response = request.wait(self._replicas.limits.timeout_s)
            if response.code == ReturnCode.TOO_MANY_REQUESTS:
                self._rejections += 1
                pause_rejected(self._rejections, self._deadline, f"ledger {self._replicas.ledger_id}")
                self._restart()
                return
            self._replicas.check(bookie.bookie_id, response)
            self._append_response(request, response)
        except (HotLogUnavailable, EntriesMissing, CorruptBlock, AccessDenied):
            self._replicas.on_failure(bookie.bookie_id)
            self._read_next_completely()
            return
        self._rejections = 0
        self._deadline = self._renewed_deadline()
        if self._next <= request.last and not self._is_full:
            self._send_rest(sent)

    def _append_response(self, request: ReadRequest, response: Response) -> None:
        """Append the entries of a response, no more than requested.

        Raises:
            CorruptBlock: One is damaged; those before it were appended.
        """
        if not response.is_batch:
            self._append(self._replicas.decoder(response.body).decode(response.body, self._next))
            return
        stored = split_batch(request.ledger_id, response.body, request.first)[: request.count]
        decoder = self._replicas.decoder(stored[0])
        for each in stored:
            if not self._append(decoder.decode(each, self._next)):
                return
        self.entry_bytes = len(response.body) / len(stored) - decoder.overhead_bytes + FRAME_BYTES

    def _append(self, entry: StoredEntry) -> bool:
        """Append the next entry if there is room for it."""
        if self.frames and len(self.frames) + FRAME_BYTES + len(entry.payload) > self._max_bytes:
            self._is_full = True
            return False
        append_frame(self.frames, self._replicas.ledger_id, entry, self._length)
        self._length = entry.length
        self._next += 1
        return True

    def _read_next_completely(self) -> None:
        self._append(self._replicas.read_entry(self._next))
        self._restart()

    def _restart(self) -> None:
        """Drop all requests; the answers of those in flight are ignored."""
        self._sent.clear()
        self._planned = self._next
        self._horizon = self._next - 1
        self._horizon_first = self._next
        self._horizon_length = None

    def _renewed_deadline(self) -> float:
        return time.monotonic() + self._replicas.limits.deadline_s

    # --- requests ---

    def _send_more(self) -> None:
        if self._sent and not self._sent[0].is_large and len(self._sent) > _MAX_SMALL // 2:
            return  # fewer writes to the sockets
        self._replicas.refresh_if_stale()
        ready: dict[BookieConnection, list[ReadRequest]] = {}
        while self._planned <= self._last and self._has_room():
            planned = self._plan(self._planned)
            if planned is None:
                break
            sent, connection = planned
            self._sent.append(sent)
            self._planned = sent.request.last + 1
            ready.setdefault(connection, []).append(sent.request)
        for connection, requests in ready.items():
            connection.send(requests)

    def _has_room(self) -> bool:
        if not self._sent:
            return True
        if len(self._sent) >= (_MAX_LARGE if self._sent[-1].is_large else _MAX_SMALL):
            return False
        if self._planned > self._horizon and not self._sent[-1].is_large and self._next < self._horizon_first:
            return False  # answers of two horizons would be in flight
        return self._expected_room() > 0

    def _expected_room(self) -> float:
        """Bytes of frames that are left when all requests have been answered."""
        return self._max_bytes - len(self.frames) - (self._planned - self._next) * self.entry_bytes

    def _plan(self, first: int) -> tuple[_Sent, BookieConnection] | None:
        """Plan the request that begins with an entry; None: no bookie can take it now."""
        metadata = self._replicas.metadata
        _, fragment_end = metadata.fragment_at(first)
        left = (self._last if fragment_end is None else min(self._last, fragment_end - 1)) - first + 1
        left = min(left, max(1, round(self._expected_room() / self.entry_bytes)))
        if metadata.ensemble_size == metadata.write_quorum:
            count = min(left, int(_BATCH_TARGET_BYTES / (self.entry_bytes + self._replicas.overhead_bytes)))
            if count > 1 and (planned := self._plan_batch(first, count, is_large=True)) is not None:
                return planned
        if first > self._horizon:
            try:
                self._extend_horizon(first)
            except (HotLogError, CorruptBlock, AccessDenied):
                return None  # the entry is read completely, unless the error was about a later one
        if metadata.ensemble_size > metadata.write_quorum:
            longest = min(left, metadata.write_quorum, self._horizon - first + 1)
            for count in range(longest, 1, -1):
                if (planned := self._plan_batch(first, count, is_large=False)) is not None:
                    return planned
        for bookie in self._replicas.usable_holders(first):
            try:
                connection = bookie.connection()
            except HotLogUnavailable:
                self._replicas.on_failure(bookie.bookie_id)
                continue
            request = self._request(first, None, int(self.entry_bytes), 0)
            return _Sent(request, bookie, is_large=False), connection
        return None

    def _plan_batch(self, first: int, count: int, *, is_large: bool) -> tuple[_Sent, BookieConnection] | None:
        for bookie in self._replicas.good_holders(first, count):
            try:
                if bookie.can_batch(self._replicas.ledger_id, first):
                    expected = _BATCH_BYTES if is_large else int(count * self.entry_bytes)
                    request = self._request(first, count, expected, _BATCH_BYTES if is_large else _MAX_REPLY_BYTES)
                    return _Sent(request, bookie, is_large), bookie.connection()
            except (HotLogUnavailable, AccessDenied):
                self._replicas.on_failure(bookie.bookie_id)
        return None

    def _send_rest(self, sent: _Sent) -> None:
        """Request the rest of a batch that came short, from the same bookie, before all other requests."""
        count = sent.request.last - self._next + 1
        request = self._request(self._next, count, sent.request.expected_bytes, sent.request.max_bytes)
        try:
            sent.bookie.connection().send([request])
        except HotLogUnavailable:
            self._replicas.on_failure(sent.bookie.bookie_id)
            self._restart()
        else:
            self._sent.appendleft(_Sent(request, sent.bookie, sent.is_large))

    def _request(self, first: int, count: int | None, expected_bytes: int, max_bytes: int) -> ReadRequest:
        return ReadRequest(self._replicas.ledger_id, first, count, expected_bytes, max_bytes, answers=self._answers)

    def _extend_horizon(self, first: int) -> None:
        """Determine the last entry up to which the payloads from ``first`` fit the limit, by cumulative lengths."""
        wanted = max(1, round(self._expected_room() / self.entry_bytes))
        last = min(self._last, first + min(wanted, _MAX_SMALL) - 1)
        before: int | None = None
        while last > first:
            if before is None:
                before = self._length_before(first)
            length = self._replicas.read_entry(last).length
            if length - before <= _MAX_SMALL_BYTES:
                self._horizon, self._horizon_first, self._horizon_length = last, first, length
                return
            last = first + (last - first) // 2
        self._horizon, self._horizon_first, self._horizon_length = first, first, None

    def _length_before(self, first: int) -> int:
        if first == self._next and self._length is not None:
            return self._length
        if first == self._horizon + 1 and self._horizon_length is not None:
            return self._horizon_length
        return self._replicas.read_entry(first).length_before
