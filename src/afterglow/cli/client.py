"""Client of the admin API, of an Afterglow or a Pulsar, whose errors name the options of the command line.

No call is retried: a call that failed may have taken effect, and the user decides whether to repeat it.
"""

from __future__ import annotations

import http.client
import json
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from afterglow.errors import AfterglowError, ConfigError, MetadataUnavailable
from afterglow.metadata.admin_client import AdminHttp, AdminResponse, parse_admin_url
from afterglow.metadata.cluster_credentials import ClusterCredentials

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.cli.parameters import AdminConnection

_TIMEOUT_S: Final = 120.0
"""Deleting or unloading a namespace with thousands of topics takes a while."""
_MAX_QUOTED_CHARS: Final = 300


class AdminFailed(AfterglowError):
    """The admin API refused a call or did not answer it."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        """HTTP status; None without an answer."""


class CliAdminClient:
    """Makes calls below ``/admin/v2``, each on its own connection."""

    def __init__(
        self, connection: AdminConnection, url_option: str = "--admin-url", *, timeout_s: float = _TIMEOUT_S
    ) -> None:
        """Take a resolved connection.

        Args:
            connection: Address and credentials.
            url_option: The option or argument that gave the address, for error messages.
            timeout_s: Longest silence before a call fails.

        Raises:
            ConfigError: The address is not valid, or the certificates cannot be read.
        """
        assert connection.admin_url is not None
        self.connection = connection
        self._timeout_s = timeout_s
        try:
            base = parse_admin_url(connection.admin_url)
        except ValueError as error:
            raise ConfigError(
                f"{url_option} {connection.admin_url!r} is not a valid address of an admin API; write http://HOST:PORT"
            ) from error
        self._url_option = url_option
        self._address = f"{base.scheme}://{base.netloc}"
        self._link = AdminHttp(base, ClusterCredentials(connection.token, connection.ca_file))

    def get(self, path: str, **query: str) -> Any:
        """Return the value at a path; None if it is not set.

        Raises:
            AdminFailed: As :meth:`call`.
        """
        return self.call("GET", path, query=query)

    def names(self, path: str) -> list[str]:
        """Return a list of strings.

        Raises:
            AdminFailed: As :meth:`call`, or the answer has another type.
        """
        return self._list(path, str, "names")

    def rows(self, path: str) -> list[dict[str, Any]]:
        """Return a list of objects.

        Raises:
            AdminFailed: As :meth:`call`, or the answer has another type.
        """
        return self._list(path, dict, "objects")

    def fields(self, path: str, *names: str, method: str = "GET", body: object = None) -> dict[str, Any]:
        """Return an object that has certain fields.

        Raises:
            AdminFailed: As :meth:`call`, or the answer has another type or lacks a field.
        """
        found = self.call(method, path, body)
        if not isinstance(found, dict) or not all(name in found for name in names):
            raise self._unexpected(path, found, "an object" + (f" with {', '.join(names)}" if names else ""))
        return found

    def call(self, method: str, path: str, body: object = None, *, query: dict[str, str] | None = None) -> Any:
        """Make a call.

        Args:
            method: HTTP method.
            path: Path below ``/admin/v2``, each part encoded.
            body: Sent as JSON; None sends an empty body.
            query: Query parameters.

        Returns:
            The JSON of the answer; None if it is empty.

        Raises:
            AdminFailed: The API refused the call, cannot be reached, or did not answer JSON.
        """
        return _value(self._exchange(method, path, body, query))

    def content(self, path: str, **query: str) -> AdminResponse:
        """Return an answer that is not JSON.

        Raises:
            AdminFailed: The API refused the call, or cannot be reached.
        """
        return self._exchange("GET", path, None, query)

    @contextmanager
    def stream(self, method: str, path: str, body: object) -> Iterator[Iterator[dict[str, Any]]]:
        """Make a call whose answer is newline-delimited JSON, read line by line while it is written.

        Leaving the context closes the connection.

        Args:
            method: HTTP method.
            path: Path below ``/admin/v2``, each part encoded.
            body: Sent as JSON.

        Raises:
            AdminFailed: As :meth:`call`.
        """
        with self._errors(), self._link.open(*self._request(method, path, body), self._timeout_s) as (answer, call):
            if answer.status >= 300:
                raise _refused(AdminResponse(answer.status, answer.read(), call, answer.headers))
            yield (_value(AdminResponse(answer.status, line, call, answer.headers)) for line in answer)

    def _list(self, path: str, item_type: type, plural: str) -> list[Any]:
        found = self.get(path)
        if not isinstance(found, list) or not all(isinstance(item, item_type) for item in found):
            raise self._unexpected(path, found, f"a list of {plural}")
        return found

    def _exchange(self, method: str, path: str, body: object, query: dict[str, str] | None) -> AdminResponse:
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
            raise AdminFailed(
                f"the certificate of the admin API at {self._address} is not trusted: {error}; give --ca-file PATH"
            ) from error
        except MetadataUnavailable as error:
            raise AdminFailed(str(error)) from error
        except (OSError, http.client.HTTPException) as error:
            raise AdminFailed(
                f"the admin API at {self._address} does not answer: {error or type(error).__name__}; "
                f"start `afterglow serve`, or give another {self._url_option}"
            ) from error

    def _unexpected(self, path: str, found: object, expected: str) -> AdminFailed:
        text = repr(found)[:_MAX_QUOTED_CHARS]
        return AdminFailed(
            f"{path} at {self.connection.admin_url} returned {text}, which is not {expected}; "
            f"check that {self._url_option} is the address of an admin API"
        )


def _value(answer: AdminResponse) -> Any:
    text = _text(answer)
    try:
        return json.loads(text) if text else None
    except ValueError as error:
        raise AdminFailed(
            f"{answer.request} returned {text[:_MAX_QUOTED_CHARS]!r}, which is not valid JSON; check that the address "
            "is that of an admin API",
            answer.status,
        ) from error


def _refused(answer: AdminResponse) -> AdminFailed:
    text = _text(answer)
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if isinstance(value, dict) and isinstance(value.get("reason"), str):
        return AdminFailed(value["reason"], answer.status)
    detail = f": {text[:_MAX_QUOTED_CHARS]}" if text else ""
    return AdminFailed(f"{answer.request} failed with status {answer.status}{detail}", answer.status)


def _text(answer: AdminResponse) -> str:
    return answer.content.decode("utf-8", "replace").strip()
