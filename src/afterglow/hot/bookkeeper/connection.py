"""A connection to one bookie, with a thread that always drains its socket.

A bookie's read thread waits until its answer is written out, and serves other ledgers and the brokers too: answers that
stay in the socket would stall them all. So flow control is by the requests in flight, and never by not reading. The
draining thread blocks on nothing but the socket: it hands responses to unbounded queues, which the readers bound by
what they request.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from afterglow.errors import AfterglowError, HotLogTimeout, HotLogUnavailable, InvalidFrame
from afterglow.hot.bookkeeper.protocol import (
    ResponseBuffer,
    ReturnCode,
    encode_batch_read,
    encode_read,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from afterglow.hot.bookkeeper.protocol import Response
    from afterglow.pacing import TokenBucket

_CONNECT_S: Final = 5.0
_MAX_REQUESTS: Final = 500
"""Largest number of requests in flight to one bookie, which rejects above 2,500 of all clients for one read thread."""
_MAX_BYTES: Final = 16 << 20
"""Largest number of bytes that are expected from one bookie."""
_HALVE_S: Final = 0.05
"""Rejections and slow answers within this time are one."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of the load on bookies, and of waits.

    Raises:
        ConfigError: A rate is not above 0; see :class:`~afterglow.pacing.TokenBucket`.
    """

    bytes_per_s: float | None = None
    """Bytes per second that are read from all bookies together; None: no limit."""
    bookie_bytes_per_s: float | None = None
    """Bytes per second that are read from one bookie; None: no limit."""
    slow_s: float = 0.5
    """Latency above which the number of requests in flight to a bookie is halved."""
    timeout_s: float = 30.0
    """Longest wait for a response, after which the bookie counts as failed."""
    deadline_s: float = 120.0
    """Longest time without progress while a bookie rejects requests."""
    max_frame_bytes: int = 1 << 30
    """Largest response that is accepted."""


class ReadRequest:
    """One request, and later its response or error.

    Args:
        ledger_id: The ledger.
        first: The first entry.
        count: Number of entries of a batch read; None: a single read.
        expected_bytes: Expected size of the response.
        max_bytes: Largest response of a batch read.
        answers: Queue that receives this request when it is answered or has failed.
    """

    __slots__ = (
        "answers",
        "connection",
        "count",
        "error",
        "expected_bytes",
        "first",
        "ledger_id",
        "max_bytes",
        "response",
        "sent_at",
    )

    def __init__(
        self,
        ledger_id: int,
        first: int,
        count: int | None,
        expected_bytes: int,
        max_bytes: int,
        *,
        answers: SimpleQueue[ReadRequest],
    ) -> None:
        self.ledger_id = ledger_id
        self.first = first
        self.count = count
        self.expected_bytes = expected_bytes
        self.max_bytes = max_bytes
        self.answers = answers
        self.connection: BookieConnection | None = None
        self.response: Response | None = None
        self.error: HotLogUnavailable | None = None
        self.sent_at = 0.0

    @property
    def last(self) -> int:
        """Id of the last entry."""
        return self.first + (self.count or 1) - 1

    def wait(self, timeout_s: float) -> Response:
        """Wait for the response; without one in time the connection is closed, and all its requests fail.

        Raises:
            HotLogTimeout: No response came in time.
            HotLogUnavailable: The connection is lost.
        """
        while self.response is None and self.error is None:
            try:
                self.answers.get(timeout=max(0.0, self.sent_at + timeout_s - time.monotonic()))
            except Empty:
                assert self.connection is not None
                what = f"no response from {self.connection} to a read of {self.ledger_id}:{self.first}"
                self.connection.fail(HotLogTimeout(f"{what} within timeout_s={timeout_s:g}"))
        if self.response is None:
            assert self.error is not None
            raise self.error
        return self.response


class RequestWindow:
    """Number of requests that may be in flight to one bookie: halved when it rejects or slows down, then grown again.

    Args:
        slow_s: Latency that counts as slow.
        clock: Monotonic clock, in seconds.
    """

    def __init__(self, slow_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = _MAX_REQUESTS
        self._slow_s = slow_s
        self._clock = clock
        self._halved_at = -_HALVE_S
        self._answered = 0

    def on_answer(self, latency_s: float) -> None:
        """Account for an answer."""
        if latency_s > self._slow_s:
            self.on_rejection()
            return
        self._answered += 1
        if self._answered >= self.limit:
            self._answered = 0
            self.limit = min(_MAX_REQUESTS, self.limit + max(1, self.limit // 8))

    def on_rejection(self) -> None:
        """Account for a request that the bookie rejected because of too many requests."""
        now = self._clock()
        if now - self._halved_at >= _HALVE_S:
            self._halved_at = now
            self._answered = 0
            self.limit = max(1, self.limit // 2)


class BookieConnection:
    """One connection. Thread-safe.

    Args:
        bookie_id: Id of the bookie, for messages.
        address: Its host and port.
        limits: Time-outs and the size of a response.
        window: Number of requests in flight.
        buckets: Token buckets that each received byte is charged to.
        on_failure: Called once when the connection has failed, with whether a batch read was unanswered.

    Raises:
        HotLogUnavailable: The bookie cannot be reached.
    """

    def __init__(
        self,
        bookie_id: str,
        address: tuple[str, int],
        limits: ReadLimits,
        window: RequestWindow,
        *,
        buckets: Sequence[TokenBucket] = (),
        on_failure: Callable[[BookieConnection, bool], None] | None = None,
    ) -> None:
        self._name = f"bookie {bookie_id} at {address[0]}:{address[1]}"
        self._limits = limits
        self._window = window
        self._buckets = buckets
        self._on_failure = on_failure
        self.error: HotLogUnavailable | None = None
        self.has_answered = False
        self._changed = threading.Condition()
        self._send_lock = threading.Lock()
        self._pending: dict[tuple[bool, int, int, int], list[ReadRequest]] = {}
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._last_id = 0
        self._resume_at = 0.0
        try:
            self._socket = socket.create_connection(address, _CONNECT_S)
        except OSError as error:
            raise HotLogUnavailable(f"{self._name} cannot be reached: {error}; check that it runs") from error
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Requests are small: a socket that accepts none for this long is dead.
        seconds, fraction = divmod(limits.timeout_s, 1)
        option = struct.pack("ll", int(seconds), int(fraction * 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, option)
        self._thread = threading.Thread(target=self._drain, name=f"afterglow-bookie-{bookie_id}", daemon=True)
        self._thread.start()

    def __str__(self) -> str:
        return self._name

    @property
    def in_flight(self) -> int:
        """Number of requests without an answer."""
        return self._in_flight

    def send(self, requests: Sequence[ReadRequest]) -> None:
        """Send requests, waiting for room among those in flight, and for the rate limits.

        A request that cannot be sent fails like one whose connection is lost.
        """
        data = bytearray()
        for request in requests:
            self._wait_for_rate()
            with self._changed:
                if data and not self._has_room(request):
                    ready, data = data, bytearray()
                    self._changed.release()  # what was encoded so far makes the room that is waited for
                    try:
                        self._write(ready)
                    finally:
                        self._changed.acquire()
                self._changed.wait_for(partial(self._has_room, request), self._limits.timeout_s)
                if self.error is not None or not self._has_room(request):
                    request.error = self.error or HotLogTimeout(f"{self._name} answers too slowly to take a request")
                    request.answers.put(request)
                    continue
                data += self._register(request)
        if data:
            self._write(data)

    def read(self, ledger_id: int, first: int, count: int | None = None, max_bytes: int = 0) -> Response:
        """Send one request and wait for its response.

        Args:
            ledger_id: The ledger.
            first: The first entry.
            count: Number of entries of a batch read; None: a single read.
            max_bytes: Largest response of a batch read.

        Raises:
            HotLogTimeout: No response came in time.
            HotLogUnavailable: The connection is lost.
        """
        request = ReadRequest(ledger_id, first, count, max_bytes, max_bytes, answers=SimpleQueue())
        self.send([request])
        return request.wait(self._limits.timeout_s)

    def close(self) -> None:
        """Close the socket; requests in flight fail."""
        self.fail(HotLogUnavailable(f"the connection to {self._name} was closed"))

    def fail(self, error: HotLogUnavailable) -> None:
        """Close the socket, and fail every request in flight."""
        with self._changed:
            if self.error is not None:
                return
            self.error = error
            failed = [request for requests in self._pending.values() for request in requests]
            self._pending.clear()
            self._in_flight = self._in_flight_bytes = 0
            self._changed.notify_all()
        with suppress(OSError):  # the peer may have closed it
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the wait of the draining thread
        if self._thread is not threading.current_thread():
            self._thread.join()
        with self._send_lock:  # no thread may write to a closed descriptor, which may be another socket's by then
            self._socket.close()
        if self._on_failure is not None:
            self._on_failure(self, any(request.count is not None for request in failed))
        for request in failed:
            request.error = error
            request.answers.put(request)

    def _has_room(self, request: ReadRequest) -> bool:
        return (
            self.error is not None
            or not self._in_flight
            or (self._in_flight < self._window.limit and self._in_flight_bytes + request.expected_bytes <= _MAX_BYTES)
        )

    def _register(self, request: ReadRequest) -> bytes:
        if request.count is None:
            key = (False, request.ledger_id, request.first, 0)
            data = encode_read(request.ledger_id, request.first)
        else:
            self._last_id += 1
            key = (True, request.ledger_id, request.first, self._last_id)
            data = encode_batch_read(request.ledger_id, request.first, self._last_id, request.count, request.max_bytes)
        request.connection = self
        request.sent_at = time.monotonic()
        self._pending.setdefault(key, []).append(request)
        self._in_flight += 1
        self._in_flight_bytes += request.expected_bytes
        return data

    def _write(self, data: bytearray) -> None:
        try:
            with self._send_lock:
                self._socket.sendall(data)
        except OSError as error:  # also a timeout, after which half a frame cannot be completed
            self.fail(HotLogUnavailable(f"the connection to {self._name} is lost: {error}"))

    def _wait_for_rate(self) -> None:
        while self._buckets and self.error is None and (wait_s := self._resume_at - time.monotonic()) > 0:
            time.sleep(min(wait_s, 1.0))

    def _drain(self) -> None:
        buffer = ResponseBuffer(self._limits.max_frame_bytes)
        error = HotLogUnavailable(f"{self._name} closed the connection")
        try:
            while count := self._socket.recv_into(buffer.space()):
                for response in buffer.received(count):
                    self._on_response(response)
        except OSError as lost:
            error = HotLogUnavailable(f"the connection to {self._name} is lost: {lost}")
        except AfterglowError as invalid:
            error = HotLogUnavailable(f"{self._name}: {invalid}")
        self.fail(error)

    def _on_response(self, response: Response) -> None:
        key = (response.is_batch, response.ledger_id, response.entry_id, response.request_id)
        with self._changed:
            requests = self._pending.get(key)
            if not requests:
                if self.error is not None:
                    return
                raise InvalidFrame(f"a response to a read of {response.ledger_id}:{response.entry_id} without request")
            request = requests.pop(0)
            if not requests:
                del self._pending[key]
            self._in_flight -= 1
            self._in_flight_bytes -= request.expected_bytes
            self._changed.notify_all()
        now = time.monotonic()
        self.has_answered = True
        if response.code == ReturnCode.TOO_MANY_REQUESTS:
            self._window.on_rejection()
        else:
            self._window.on_answer(now - request.sent_at)
        if self._buckets:
            self._resume_at = now + max(bucket.charge(len(response.body)) for bucket in self._buckets)
        request.response = response
        request.answers.put(request)
