"""The console: one page and its files, served as they are. It needs no proof of a role; the calls that it makes do.

The files are read once, with the process. The page may load nothing but them and call nothing but this broker: a
policy of the browser's holds it to that, so that a name or a message that holds markup can do no harm either.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from afterglow.admin.access import Access
from afterglow.admin.errors import not_found
from afterglow.admin.resource import Resources

if TYPE_CHECKING:
    from afterglow.admin.call import Call

RESOURCES = Resources("/console")

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
    # Kept by the browser, and asked for each time whether it is still the same: a new release is seen at once.
    "Cache-Control": "no-cache",
}
"""Of every file."""


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    media_type: str
    tag: str

    def answer(self, known: str | None) -> Response:
        """The file, or that it is the one that is known."""
        headers = {**HEADERS, "ETag": self.tag}
        if known is not None and self.tag in {tag.strip().removeprefix("W/") for tag in known.split(",")}:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(self.body, headers=headers, media_type=self.media_type)


def _read() -> dict[str, _File]:
    found = {}
    for file in resources.files(__name__).joinpath("page").iterdir():
        media_type = _TYPES.get("." + file.name.rpartition(".")[2])
        if media_type is not None:
            body = file.read_bytes()
            found[file.name] = _File(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found


FILES: Final = _read()
"""By name."""


@RESOURCES.on("GET", "", Access.ANYONE)
async def get_page(call: Call) -> Response:
    """The page."""
    return FILES[_INDEX].answer(call.header("If-None-Match"))


@RESOURCES.on("GET", "/{file}", Access.ANYONE)
async def get_file(call: Call) -> Response:
    """A file that the page asks for."""
    name = call.segment("file")
    if name not in FILES or name == _INDEX:
        raise not_found(f"the console has no file {name!r}; the page itself is at /console")
    return FILES[name].answer(call.header("If-None-Match"))
