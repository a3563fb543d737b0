"""The web console: one page and its static files. They need no authentication; the calls that the page makes do.

The files are read once, when the process starts. A content security policy restricts the page to these files and to
calls of this broker, so that markup in a name or a message does no harm.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources
from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse, Response

from afterglow.admin.access import Access
from afterglow.admin.errors import not_found
from afterglow.admin.resource import SharedResources

if TYPE_CHECKING:
    from afterglow.admin.call import Call

RESOURCES = SharedResources("/console")
ROOT = SharedResources("/")

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_INDEX: Final = "index.html"

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # The browser caches files and revalidates them by ETag on each use: a new release is visible at once.
    "Cache-Control": "no-cache",
}
"""Headers of every file."""


@dataclass(frozen=True, slots=True)
class _StaticFile:
    body: bytes
    media_type: str
    etag: str

    def response(self, if_none_match: str | None) -> Response:
        """The file, or 304 if the client has it."""
        headers = {**HEADERS, "ETag": self.etag}
        if self.etag in {tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")}:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(self.body, headers=headers, media_type=self.media_type)


def _read() -> dict[str, _StaticFile]:
    found = {}
    for file in resources.files(__name__).joinpath("page").iterdir():
        media_type = _TYPES.get("." + file.name.rpartition(".")[2])
        if media_type is not None:
            body = file.read_bytes()
            found[file.name] = _StaticFile(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found


FILES: Final = _read()
"""Static files by name."""


@ROOT.on("GET", "", Access.ANYONE)
async def get_root(_call: Call) -> Response:
    """A redirect to the page."""
    return RedirectResponse("/console", HTTPStatus.TEMPORARY_REDIRECT)


@RESOURCES.on("GET", "", Access.ANYONE)
async def get_page(call: Call) -> Response:
    """The page of the console."""
    return FILES[_INDEX].response(call.header("If-None-Match"))


@RESOURCES.on("GET", "/{file}", Access.ANYONE)
async def get_file(call: Call) -> Response:
    """A static file of the page."""
    name = call.segment("file")
    if name not in FILES or name == _INDEX:
        raise not_found(f"the console has no file {name!r}; the page itself is at /console")
    return FILES[name].response(call.header("If-None-Match"))
