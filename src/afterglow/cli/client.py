"""A client of the admin API, Afterglow's or Pulsar's, that speaks to people of the command line's options.

A call is made once: what fails may have happened, and whoever asked decides whether to ask again.
"""

from __future__ import annotations

import http.client
import json
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from afterglow.errors import AfterglowError, ConfigError, MetadataUnavailable
from afterglow.metadata.admin_client import AdminHttp, Answer, parse_admin_url
from afterglow.metadata.cluster_credentials import ClusterCredentials

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.cli.connection import Connection

_TIMEOUT_S: Final = 120.0
"""A namespace with thousands of topics takes a while to let go of them."""
_LONGEST_TEXT: Final = 300


class AdminFailed(AfterglowError):
    """The admin API refused a call or did not answer it."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        """Of the answer; None where there was none."""


class AdminClient:
    """Makes calls below ``/admin/v2``; each on a connection of its own."""

    def __init__(self, connection: Connection, told_by: str = "--admin-url", *, timeout_s: float = _TIMEOUT_S) -> None:
        """Take a resolved connection.

        Args:
            connection: Where to, and the proof.
            told_by: What names its address on the command line.
            timeout_s: Longest silence before a call has failed.

        Raises:
            ConfigError: Its address is no URL of an admin API, or its certificates cannot be read.
        """
        assert connection.admin_url is not None
        self.connection = connection
        self._timeout_s = timeout_s
        try:
            base = parse_admin_url(connection.admin_url)
        except ValueError as error:
            raise ConfigError(
                f"{told_by} {connection.admin_url!r} is no address of an admin API: write http://HOST:PORT"
            ) from error
        self._told_by = told_by
        self._at = f"{base.scheme}://{base.netloc}"
        self._link = AdminHttp(base, ClusterCredentials(connection.token, connection.ca_file))

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

    def fields(self, path: str, *names: str, method: str = "GET", body: object = None) -> dict[str, Any]:
        """An object that has certain fields.

        Raises:
            AdminFailed: As :meth:`call`, or it is none.
        """
        found = self.call(method, path, body)
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
        return _value(self._exchange(method, path, body, query))

    def content(self, path: str, **query: str) -> Answer:
        """An answer as it came, for what is no JSON.

        Raises:
            AdminFailed: The API refused the call, or cannot be reached.
        """
        return self._exchange("GET", path, None, query)

    @contextmanager
    def stream(self, method: str, path: str, body: object) -> Iterator[Iterator[dict[str, Any]]]:
        """Make a call whose answer is newline-delimited JSON, read line by line while it is written.

        Leaving the context closes the connection.

        Args:
            method: Of HTTP.
            path: Below ``/admin/v2``, each part encoded.
            body: Sent as JSON.

        Raises:
            AdminFailed: As :meth:`call`.
        """
        with self._errors(), self._link.open(*self._request(method, path, body), self._timeout_s) as (answer, call):
            if answer.status >= 300:
                raise _refused(Answer(answer.status, answer.read(), call, answer.headers))
            yield (_value(Answer(answer.status, line, call, answer.headers)) for line in answer)

    def _exchange(self, method: str, path: str, body: object, query: dict[str, str] | None) -> Answer:
        with self._errors():
            answer = self._link.exchange(*self._request(method, path, body, query), self._timeout_s)
        if answer.status >= 300:
            raise _refused(answer)
        return answer

    def _request(
        self, method: str, path: str, body: object, query: dict[str, str] | None = None
    ) -> tuple[str, str, bytes | None]:
        target = f"/admin/v2/{path}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        return method, target, b"" if data is None and method in {"PUT", "POST"} else data

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except ssl.SSLError as error:
            raise AdminFailed(f"the admin API at {self._at} is not trusted: {error}; give --ca-file PATH") from error
        except MetadataUnavailable as error:
            raise AdminFailed(str(error)) from error
        except (OSError, http.client.HTTPException) as error:
            raise AdminFailed(
                f"the admin API at {self._at} does not answer: {error or type(error).__name__}; "
                f"start `afterglow serve`, or give another {self._told_by}"
            ) from error

    def _unexpected(self, path: str, found: object, expected: str) -> AdminFailed:
        said = repr(found)[:_LONGEST_TEXT]
        at = f"{path} at {self.connection.admin_url}"
        return AdminFailed(f"{at} is {said} and not {expected}: is it an admin API? see {self._told_by}")


def _value(answer: Answer) -> Any:
    text = _text(answer)
    try:
        return json.loads(text) if text else None
    except ValueError as error:
        said = f"{answer.call} answered {text[:_LONGEST_TEXT]!r}, which is no JSON: is it an admin API?"
        raise AdminFailed(said, answer.status) from error


def _refused(answer: Answer) -> AdminFailed:
    text = _text(answer)
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if isinstance(value, dict) and isinstance(value.get("reason"), str):
        return AdminFailed(value["reason"], answer.status)
    said = f": {text[:_LONGEST_TEXT]}" if text else ""
    return AdminFailed(f"{answer.call} was answered with status {answer.status}{said}", answer.status)


def _text(answer: Answer) -> str:
    return answer.content.decode("utf-8", "replace").strip()
