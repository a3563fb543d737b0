"""Resources: a path, and what each method does there.

A handler takes a :class:`~afterglow.admin.call.Call` and returns what the answer holds: None for *204, no content*, a
:class:`~starlette.responses.Response` as it is, anything else as JSON. What it raises becomes ``{"reason": …}``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from afterglow.admin.answers import encode, encode_in_turns
from afterglow.admin.call import Call
from afterglow.admin.errors import FAULT, status_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

    from afterglow.admin.access import Access, Gate

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Call], Awaitable[Any]]
MakeCall: TypeAlias = Callable[..., Call]
"""From a request, and whether a superuser makes it."""

_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Action:
    """What one method does."""

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
        return Response(status_code=499)  # nobody reads it
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
