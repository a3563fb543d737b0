"""A client of the admin API, Afterglow's or Pulsar's, over the standard library.

A call is made once: what fails may have happened, and whoever asked decides whether to ask again.
"""

from __future__ import annotations

import http.client
import json
import ssl
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlencode, urlsplit

from afterglow.errors import AfterglowError, ConfigError

if TYPE_CHECKING:
    from afterglow.cli.connection import Connection

_TIMEOUT_S: Final = 120.0
"""A namespace with thousands of topics takes a while to let go of them."""
_REDIRECTS: Final = (307, 308)
_MOST_REDIRECTS: Final = 5
_LONGEST_TEXT: Final = 300


class AdminFailed(AfterglowError):
    """The admin API refused a call or did not answer it."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        """Of the answer; None where there was none."""


class AdminClient:
    """Makes calls below ``/admin/v2``; each on a connection of its own."""

    def __init__(self, connection: Connection) -> None:
        """Take a resolved connection.

        Raises:
            ConfigError: Its address is no URL of an admin API, or its certificates cannot be read.
        """
        assert connection.admin_url is not None
        self.connection = connection
        self._base = _checked(connection.admin_url.rstrip("/"))
        self._tls = _context(connection.ca_file) if self._base.scheme == "https" else None

    def get(self, path: str, **query: str) -> Any:
        """The value at a path; None where nothing is set.

        Raises:
            AdminFailed: As :meth:`call`.
        """
        return self.call("GET", path, query=query)

    def names(self, path: str) -> list[str]:
        """A list of texts.

        Raises:
            AdminFailed: As :meth:`call`, or it is none.
        """
        found = self.get(path)
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise self._unexpected(path, found, "a list of names")
        return found

    def rows(self, path: str) -> list[dict[str, Any]]:
        """A list of objects.

        Raises:
            AdminFailed: As :meth:`call`, or it is none.
        """
        found = self.get(path)
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            raise self._unexpected(path, found, "a list of objects")
        return found

    def fields(self, path: str, *names: str, method: str = "GET") -> dict[str, Any]:
        """An object that has certain fields.

        Raises:
            AdminFailed: As :meth:`call`, or it is none.
        """
        found = self.call(method, path)
        if not isinstance(found, dict) or not all(name in found for name in names):
            raise self._unexpected(path, found, "an object" + (f" with {', '.join(names)}" if names else ""))
        return found

    def call(self, method: str, path: str, body: object = None, *, query: dict[str, str] | None = None) -> Any:
        """Make a call.

        Args:
            method: Of HTTP.
            path: Below ``/admin/v2``, each part encoded.
            body: Sent as JSON; None sends an empty body.
            query: Parameters.

        Returns:
            The JSON of the answer; None where it is empty.

        Raises:
            AdminFailed: The API refused the call, cannot be reached, or answered something that is no JSON.
        """
        target = f"{self._base.path}/admin/v2/{path}" + (f"?{urlencode(query)}" if query else "")
        data = b"" if body is None else json.dumps(body).encode()
        at = self._base
        for _ in range(_MOST_REDIRECTS):
            status, content, location = self._exchange(at, method, target, data)
            if status not in _REDIRECTS or location is None:
                return _value(f"{method} {at.scheme}://{at.netloc}{target}", status, content)
            # Another broker of the cluster has the topic.
            moved = _checked(location)
            if at.scheme == "https" and moved.scheme != "https":
                raise AdminFailed(f"{at.netloc} sends the call on to {location}, which is not protected by TLS", status)
            at, target = moved, f"{moved.path}?{moved.query}" if moved.query else moved.path
        raise AdminFailed(f"{self._base.netloc} and others send the call from one to another")

    def _unexpected(self, path: str, found: object, expected: str) -> AdminFailed:
        said = repr(found)[:_LONGEST_TEXT]
        return AdminFailed(
            f"{path} at {self.connection.admin_url} is {said} and not {expected}: is it an admin API? see --admin-url"
        )

    def _exchange(self, at: SplitResult, method: str, target: str, data: bytes) -> tuple[int, bytes, str | None]:
        assert at.hostname is not None
        link: http.client.HTTPConnection
        if at.scheme == "https":
            link = http.client.HTTPSConnection(at.hostname, at.port, timeout=_TIMEOUT_S, context=self._tls)
        else:
            link = http.client.HTTPConnection(at.hostname, at.port, timeout=_TIMEOUT_S)
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self.connection.token is not None:
            headers["Authorization"] = f"Bearer {self.connection.token}"
        try:
            link.request(method, target, data if data or method in {"PUT", "POST"} else None, headers)
            answer = link.getresponse()
            return answer.status, answer.read(), answer.getheader("Location")
        except ssl.SSLError as error:
            raise AdminFailed(
                f"the admin API at {at.scheme}://{at.netloc} is not trusted: {error}; give --ca-file PATH"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise AdminFailed(
                f"the admin API at {at.scheme}://{at.netloc} does not answer: {error or type(error).__name__}; "
                "start `afterglow serve`, or give --admin-url URL"
            ) from error
        finally:
            link.close()


def _checked(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"--admin-url {url!r} is no address of an admin API: write http://HOST:PORT")
    return parts


def _context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigError(f"--ca-file {ca_file!r} holds no certificates that can be read: {error}") from error


def _value(call: str, status: int, content: bytes) -> Any:
    text = content.decode("utf-8", "replace").strip()
    try:
        value = json.loads(text) if text else None
    except ValueError as error:
        if status < 300:
            said = repr(text[:_LONGEST_TEXT])
            raise AdminFailed(f"{call} answered {said}, which is no JSON: is it an admin API?", status) from error
        value = None
    if status < 300:
        return value
    if isinstance(value, dict) and isinstance(value.get("reason"), str):
        raise AdminFailed(value["reason"], status)
    said = f": {text[:_LONGEST_TEXT]}" if text else ""
    raise AdminFailed(f"{call} was answered with status {status}{said}", status)
