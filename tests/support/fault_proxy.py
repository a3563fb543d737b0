"""A proxy in front of an S3 server that fails as stores and networks do: it refuses, breaks off, or loses the answer.

Clients see a real server that misbehaves, whatever process they run in. With the same seed and the same order of
requests the same ones fail.
"""

from __future__ import annotations

import enum
import random
import threading
from collections import Counter
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, quote, urlsplit

from tests.support.http_proxy import ForwardingHandler, ForwardingServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from tests.support.http_proxy import Answer

    Watch: TypeAlias = Callable[[str, "Moment"], None]
    """Called with the operation and the stage of every request that is not refused; the request waits for it."""

_REFUSALS: Final = {503: "SlowDown", 500: "InternalError", 403: "AccessDenied"}


class Moment(enum.Enum):
    """Of a request."""

    BEFORE = "before its effect"
    AFTER = "after its effect, before its answer"


class _Fault(enum.Enum):
    THROTTLED = 503
    FAILED = 500
    DENIED = 403
    CUT_BEFORE = Moment.BEFORE
    CUT_AFTER = Moment.AFTER


class FaultProxy:
    """A running proxy; see :func:`fault_proxy`."""

    def __init__(self, endpoint: str, target: str, seed: int, share: float) -> None:
        self.endpoint = endpoint
        """Where it listens."""
        self.target = target
        self.share = share
        """Of requests that fail; may be changed at any time."""
        self.down = False
        """Whether every connection is closed without an answer; may be changed at any time."""
        self.watch: Watch = lambda _operation, _moment: None
        self.requests: Counter[str] = Counter()
        """By operation."""
        self.spoiled = 0
        """Requests that failed."""
        self._rng = random.Random(seed)
        self._lock = threading.Lock()

    def judge(self, operation: str, *, writes: bool) -> _Fault | None:
        """Draw what becomes of a request. Only writes are denied: for reads that is an answer, not a mishap."""
        with self._lock:
            self.requests[operation] += 1
            if self.down:
                self.spoiled += 1
                return _Fault.CUT_BEFORE
            if self._rng.random() >= self.share:
                return None
            self.spoiled += 1
            return self._rng.choice([fault for fault in _Fault if writes or fault is not _Fault.DENIED])


@contextmanager
def fault_proxy(target: str, *, seed: int = 0, share: float = 0.1) -> Iterator[FaultProxy]:
    """Run a proxy on a free port of 127.0.0.1 until the block ends.

    Args:
        target: Address of the server behind it.
        seed: Of the lots.
        share: Of requests that fail.
    """
    server = _Server(target, _Handler)
    server.proxy = FaultProxy(server.url, target, seed, share)
    with server.serving():
        yield server.proxy


def operation_of(method: str, path: str) -> str:
    """What a request to an S3 server does, by the name of the store's method."""
    url = urlsplit(path)
    query = parse_qs(url.query, keep_blank_values=True)
    named = {
        ("PUT", "partNumber"): "upload_part",
        ("POST", "uploads"): "create_upload",
        ("POST", "uploadId"): "complete_upload",
        ("POST", "delete"): "delete",
        ("DELETE", "uploadId"): "abort_upload",
        ("GET", "uploads"): "list_uploads",
        ("GET", "uploadId"): "list_parts",
        ("GET", "list-type"): "list",
    }
    for (verb, parameter), operation in named.items():
        if verb == method and parameter in query:
            return operation
    if method == "PUT":
        return "put_index" if url.path.endswith("-index") else "put"
    return method.lower()


class _Server(ForwardingServer):
    proxy: FaultProxy


class _Handler(ForwardingHandler):
    server: _Server

    def _serve(self) -> None:
        proxy = self.server.proxy
        body = self.body()
        operation = operation_of(self.command, self.path)
        fault = proxy.judge(operation, writes=self.command in {"PUT", "POST"})
        if fault is not None and fault.value in _REFUSALS:
            self._refuse(fault.value)
            return
        proxy.watch(operation, Moment.BEFORE)
        if fault is _Fault.CUT_BEFORE:
            self.close_connection = True
            return
        status, headers, answer = self.forward(self.command, self.path, body)
        if status == HTTPStatus.INTERNAL_SERVER_ERROR and operation in {"upload_part", "complete_upload"}:
            status, headers, answer = self._asked_again() or (status, headers, answer)
        proxy.watch(operation, Moment.AFTER)
        if fault is _Fault.CUT_AFTER:
            self.close_connection = True
            return
        self.answer(status, headers, answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - the names that the server looks for

    def _asked_again(self) -> Answer | None:
        """Moto breaks down over an upload that it does not know, but answers rightly when asked for its parts."""
        url = urlsplit(self.path)
        upload_id = parse_qs(url.query)["uploadId"][0]
        asked = self.forward("GET", f"{url.path}?uploadId={quote(upload_id)}", b"")
        return asked if asked[0] == HTTPStatus.NOT_FOUND else None

    def _refuse(self, status: int) -> None:
        code = _REFUSALS[status]
        self.answer(status, [("Content-Type", "application/xml")], f"<Error><Code>{code}</Code></Error>".encode())
