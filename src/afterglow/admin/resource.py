"""Resources: a path with a handler for each method, and the encoding of answers as JSON.

A handler takes a :class:`~afterglow.admin.call.Call` and returns the answer: None for *204, no content*, a
:class:`~starlette.responses.Response` as it is, any other value as JSON. An error becomes ``{"reason": …}``.

Large answers are encoded in steps: the log of a topic with ten thousand ledgers has 6 MB and takes 0.1 s, during which
the encoder would hold the interpreter on any thread.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from afterglow.admin.access import SAFE_METHODS
from afterglow.admin.call import BrokerCall, Call
from afterglow.admin.errors import INTERNAL_ERROR, status_of
from afterglow.events import log_event

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from starlette.requests import Request

    from afterglow.admin.access import Access, AccessControl

log = logging.getLogger(__name__)

C_contra = TypeVar("C_contra", bound=Call, contravariant=True)
Handler: TypeAlias = Callable[[C_contra], Awaitable[Any]]
MakeCall: TypeAlias = Callable[..., C_contra]
"""From a request, and whether the caller is a superuser."""

_JSON: Final = "application/json"
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_CONTAINERS: Final = frozenset((dict, list, tuple))
_MAX_ITEMS: Final = 100
"""Items of a list or object that is encoded in one call of the encoder, nested ones included: some 10 µs."""
_TOKENS_PER_TURN: Final = 100
"""Results of the encoder before the event loop serves other calls: 1 ms."""


@dataclass(frozen=True, slots=True)
class Action(Generic[C_contra]):
    """The handler of one method, and the right that it needs."""

    handler: Handler[C_contra]
    access: Access


@dataclass(frozen=True, slots=True)
class Resource(Generic[C_contra]):
    """A path and its methods."""

    path: str
    """With ``{name}`` for a parameter."""
    actions: dict[str, Action[C_contra]] = field(default_factory=dict)
    """By method."""

    def route(self, control: AccessControl, make: MakeCall[C_contra]) -> Route:
        """The route that serves the resource."""

        async def endpoint(request: Request) -> Response:
            # HEAD is answered like GET; the HTTP server omits the body.
            action = self.actions["GET" if request.method == "HEAD" else request.method]
            return await _answer(action, control, make, request)

        return Route(self.path, endpoint, methods=list(self.actions))


class ResourceTable(Generic[C_contra]):
    """Resources of one module, in the order in which paths are matched, for calls of one kind."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._by_path: dict[str, Resource[C_contra]] = {}

    def on(self, method: str, path: str, access: Access) -> Callable[[Handler[C_contra]], Handler[C_contra]]:
        """Register the handler of a method on a path below the base."""

        def register(handler: Handler[C_contra]) -> Handler[C_contra]:
            resource = self._by_path.setdefault(path, Resource(self._base + path))
            resource.actions[method] = Action(handler, access)
            return handler

        return register

    def __iter__(self) -> Iterator[Resource[C_contra]]:
        return iter(self._by_path.values())

    def routes(self, control: AccessControl, make: MakeCall[C_contra]) -> list[Route]:
        """The routes that serve the resources."""
        return [resource.route(control, make) for resource in self]


class SharedResources(ResourceTable[Call]):
    """Resources of a module that any process with topics serves: a broker, or one that is attached to a cluster."""


class Resources(ResourceTable[BrokerCall]):
    """Resources of a module that only a broker serves."""


async def _answer(
    action: Action[C_contra], control: AccessControl, make: MakeCall[C_contra], request: Request
) -> Response:
    try:
        is_super_user = await control.check(request, action.access)
        call = make(request, is_super_user=is_super_user)
        result = await action.handler(call)
        if request.method not in SAFE_METHODS:
            log_event(log, "admin call", role=call.role, method=request.method, path=request.url.path)
    except ClientDisconnect:
        return Response(status_code=499)  # the client has disconnected
    except Exception as error:  # noqa: BLE001 - every error is answered as {"reason": …}
        return failure(error, f"{request.method} {request.url.path}")
    if isinstance(result, Response):
        return result
    return Response(status_code=204) if result is None else Response(await encode_in_turns(result), media_type=_JSON)


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A short JSON answer."""
    return Response(encode(value), status, headers, media_type=_JSON)


def failure(error: Exception, what: str) -> Response:
    """The answer to a call that failed."""
    status = status_of(error)
    if status == 500:
        log.error("%s failed", what, exc_info=error)
        return json_response({"reason": INTERNAL_ERROR}, status)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return json_response({"reason": str(error)}, status, headers)


# --- JSON ---


async def encode_in_turns(value: object) -> bytes:
    """Encode a value as JSON; the event loop serves other calls in between, which must not change the value.

    Raises:
        ValueError: It has a number that JSON cannot express.
    """
    data = bytearray()
    tokens = _tokens(value)
    while turn := list(islice(tokens, _TOKENS_PER_TURN)):
        if data:
            await asyncio.sleep(0)
        data += "".join(turn).encode()
    return bytes(data)


def encode(value: object) -> bytes:
    """Encode a short value as JSON.

    Raises:
        ValueError: It has a number that JSON cannot express.
    """
    return _ENCODER.encode(value).encode()


def _tokens(value: object) -> Iterator[str]:
    if _size(value) <= _MAX_ITEMS:
        yield _ENCODER.encode(value)
    elif isinstance(value, dict):
        mark = "{"
        for key, item in value.items():
            name = _ENCODER.encode(key)
            yield f"{mark}{name}:" if isinstance(key, str) else f'{mark}"{name}":'
            yield from _tokens(item)
            mark = ","
        yield "}"
    elif isinstance(value, list | tuple):
        mark = "["
        for item in value:
            yield mark
            yield from _tokens(item)
            mark = ","
        yield "]"


def _size(value: object) -> int:
    """The number of nested values; counting stops once it exceeds :data:`_MAX_ITEMS`."""
    if type(value) not in _CONTAINERS:
        return 1
    items: Collection[object] = value.values() if isinstance(value, dict) else value  # type: ignore[assignment]  # a list or tuple
    size = len(items)
    for item in items if size <= _MAX_ITEMS else ():
        if type(item) in _CONTAINERS:
            size += _size(item)
            if size > _MAX_ITEMS:
                break
    return size
