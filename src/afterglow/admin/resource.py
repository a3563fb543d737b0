"""Resources: a path with a handler for each method, and their answers as JSON.

A handler takes a :class:`~afterglow.admin.call.Call` and returns what the answer holds: None for *204, no content*, a
:class:`~starlette.responses.Response` as it is, anything else as JSON. What it raises becomes ``{"reason": …}``.

Large answers are encoded a little at a time: the log of a topic of ten thousand ledgers has 6 MB, which takes a tenth
of a second, and the encoder holds the interpreter on whichever thread it runs.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from afterglow.admin.call import Call
from afterglow.admin.errors import FAULT, status_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from starlette.requests import Request

    from afterglow.admin.access import Access, Gate

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Call], Awaitable[Any]]
MakeCall: TypeAlias = Callable[..., Call]
"""From a request, and whether a superuser makes it."""

_JSON: Final = "application/json"
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_CONTAINERS: Final = frozenset((dict, list, tuple))
_MOST_ITEMS: Final = 100
"""Items of a list or object that is encoded at once, with those inside: some ten microseconds."""
_PIECES_AT_ONCE: Final = 100
"""Encoded before the event loop serves other calls: a millisecond."""


@dataclass(frozen=True, slots=True)
class Action:
    """The handler of one method, and the access that it needs."""

    handler: Handler
    access: Access


@dataclass(frozen=True, slots=True)
class Resource:
    """A path and its methods."""

    path: str
    """With ``{name}`` for a part that is given."""
    actions: dict[str, Action] = field(default_factory=dict)
    """By method."""

    def route(self, gate: Gate, make: MakeCall) -> Route:
        """The route that serves it."""

        async def endpoint(request: Request) -> Response:
            # HEAD is answered as GET; the server leaves the body out.
            action = self.actions["GET" if request.method == "HEAD" else request.method]
            return await _answer(action, gate, make, request)

        return Route(self.path, endpoint, methods=list(self.actions))


class Resources:
    """The resources of one module, in the order in which paths are matched."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._by_path: dict[str, Resource] = {}

    def on(self, method: str, path: str, access: Access) -> Callable[[Handler], Handler]:
        """Register what a method does on a path below the base."""

        def register(handler: Handler) -> Handler:
            resource = self._by_path.setdefault(path, Resource(self._base + path))
            resource.actions[method] = Action(handler, access)
            return handler

        return register

    def __iter__(self) -> Iterator[Resource]:
        return iter(self._by_path.values())

    def routes(self, gate: Gate, make: MakeCall) -> list[Route]:
        """The routes that serve them."""
        return [resource.route(gate, make) for resource in self]


async def _answer(action: Action, gate: Gate, make: MakeCall, request: Request) -> Response:
    try:
        is_super_user = await gate.check(request, action.access)
        result = await action.handler(make(request, is_super_user=is_super_user))
    except ClientDisconnect:
        return Response(status_code=499)  # the client is gone
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an answer of the agreed form
        return failure(error, f"{request.method} {request.url.path}")
    if isinstance(result, Response):
        return result
    return Response(status_code=204) if result is None else Response(await encode_in_turns(result), media_type=_JSON)


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer, which is short."""
    return Response(encode(value), status, headers, media_type=_JSON)


def failure(error: Exception, what: str) -> Response:
    """The answer that says no."""
    status = status_of(error)
    if status == 500:
        log.error("%s failed", what, exc_info=error)
        return json_response({"reason": FAULT}, status)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return json_response({"reason": str(error)}, status, headers)


# --- JSON ---


async def encode_in_turns(value: object) -> bytes:
    """A value as JSON; the event loop serves other calls in between, which must not change the value.

    Raises:
        ValueError: It has a number that JSON does not have.
    """
    data = bytearray()
    pieces = _pieces(value)
    while some := list(islice(pieces, _PIECES_AT_ONCE)):
        if data:
            await asyncio.sleep(0)
        data += "".join(some).encode()
    return bytes(data)


def encode(value: object) -> bytes:
    """A value as JSON, at once.

    Raises:
        ValueError: It has a number that JSON does not have.
    """
    return _ENCODER.encode(value).encode()


def _pieces(value: object) -> Iterator[str]:
    if _size(value) <= _MOST_ITEMS:
        yield _ENCODER.encode(value)
    elif isinstance(value, dict):
        mark = "{"
        for key, item in value.items():
            name = _ENCODER.encode(key)
            yield f"{mark}{name}:" if isinstance(key, str) else f'{mark}"{name}":'
            yield from _pieces(item)
            mark = ","
        yield "}"
    elif isinstance(value, list | tuple):
        mark = "["
        for item in value:
            yield mark
            yield from _pieces(item)
            mark = ","
        yield "]"


def _size(value: object) -> int:
    """The number of values in one, counted no further than needed to know that it is large."""
    if type(value) not in _CONTAINERS:
        return 1
    items: Collection[object] = value.values() if isinstance(value, dict) else value  # type: ignore[assignment]  # a list or tuple
    size = len(items)
    for item in items if size <= _MOST_ITEMS else ():
        if type(item) in _CONTAINERS:
            size += _size(item)
            if size > _MOST_ITEMS:
                break
    return size
