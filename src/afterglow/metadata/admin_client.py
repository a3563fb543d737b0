"""Client of an admin API, Afterglow's or Pulsar's: HTTP requests, and a view of a cluster's topics.

A request is sent once, on a connection of its own: after a failure it may have taken effect, and the caller decides
whether to retry. Responses are returned as JSON of which only the outer type is checked;
:mod:`afterglow.metadata.admin_responses` converts them to records.
"""

from __future__ import annotations

import http.client
import json
import ssl
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from afterglow.errors import AccessDenied, ConfigError, CorruptMetadata, MetadataUnavailable, NotFound
from afterglow.metadata.names import NamespaceName, encode_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message
    from urllib.parse import SplitResult

    from afterglow.metadata.cluster_credentials import ClusterCredentials
    from afterglow.metadata.names import TopicName

    Json = dict[str, Any]


_REDIRECTS: Final = (307, 308)
_MAX_REDIRECTS: Final = 5


@dataclass(frozen=True, slots=True)
class AdminResponse:
    """A complete HTTP response."""

    status: int
    content: bytes
    request: str
    """Method and URL of the request, for messages."""
    headers: Message
    """Header names are case-insensitive."""


def parse_admin_url(url: str) -> SplitResult:
    """Split the address of an admin API.

    Raises:
        ValueError: It is not a valid address.
    """
    parts = urlsplit(url.rstrip("/"))
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0:
        raise ValueError(url)
    return parts


class AdminHttp:
    """HTTP requests to one admin API. Thread-safe.

    Args:
        base: Address of the API.
        credentials: Token and trusted certificate authorities.

    Raises:
        ConfigError: The certificate authorities cannot be read.
    """

    def __init__(self, base: SplitResult, credentials: ClusterCredentials) -> None:
        self._base = base
        self._token = credentials.token
        self._tls = _context(credentials.ca_file) if base.scheme == "https" else None

    def exchange(self, method: str, target: str, data: bytes | None, timeout_s: float) -> AdminResponse:
        """Send a request, follow redirects within the cluster, and read the whole response.

        Args:
            method: HTTP method.
            target: Path and query, relative to the path of the base.
            data: JSON body; None sends no body.
            timeout_s: Longest wait for the next bytes.

        Raises:
            OSError: It cannot be reached; ``ssl.SSLError`` if its certificate is not trusted.
            HTTPException: The response is not valid HTTP.
            MetadataUnavailable: Too many redirects, or a redirect from HTTPS to HTTP.
        """
        with self.open(method, target, data, timeout_s) as (response, request):
            return AdminResponse(response.status, response.read(), request, response.headers)

    @contextmanager
    def open(
        self, method: str, target: str, data: bytes | None, timeout_s: float
    ) -> Iterator[tuple[http.client.HTTPResponse, str]]:
        """Send a request as :meth:`exchange` does; read the response inside the context, which closes the connection.

        Returns:
            The response, and the request for messages.

        Raises:
            OSError: As :meth:`exchange`.
            HTTPException: As :meth:`exchange`.
            MetadataUnavailable: As :meth:`exchange`.
        """
        at, target = self._base, f"{self._base.path}{target}"
        for _ in range(_MAX_REDIRECTS):
            connection = self._connection(at, timeout_s)
            try:
                connection.request(method, target, data, self._headers())
                # A response that ends with the connection owns the socket, so that it must be closed as well.
                with connection.getresponse() as response:
                    location = response.headers["Location"]
                    if response.status not in _REDIRECTS or location is None:
                        yield response, f"{method} {at.scheme}://{at.netloc}{target}"
                        return
            finally:
                connection.close()
            # Another broker of the cluster serves the topic.
            try:
                moved = parse_admin_url(location)
            except ValueError as error:
                raise MetadataUnavailable(f"{at.netloc} redirects to {location!r}, which is not a valid URL") from error
            if at.scheme == "https" and moved.scheme != "https":
                raise MetadataUnavailable(f"{at.netloc} redirects to {location}, which is not protected by TLS")
            at, target = moved, f"{moved.path}?{moved.query}" if moved.query else moved.path
        raise MetadataUnavailable(f"too many redirects from {self._base.netloc}")

    def _connection(self, at: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
        assert at.hostname is not None
        if at.scheme == "https":
            tls = self._tls or _context(None)
            return http.client.HTTPSConnection(at.hostname, at.port, timeout=timeout_s, context=tls)
        return http.client.HTTPConnection(at.hostname, at.port, timeout=timeout_s)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers


def _context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigError(f"--ca-file {ca_file!r} has no readable certificates: {error}") from error


_TIMEOUT_S: Final = 60.0
"""Includes the time in which a broker loads the topic."""
_MAX_QUOTED_CHARS: Final = 300
"""Characters of a response that are quoted in a message."""


class AdminClient:
    """One admin API. Thread-safe.

    Every method raises ``MetadataUnavailable`` if the API does not respond or is not trusted, ``AccessDenied`` if it
    rejects the credentials, and ``CorruptMetadata`` if its response is invalid.

    Args:
        url: Address of the API, ``http://host:8080``.
        credentials: Token and trusted certificate authorities.

    Raises:
        ConfigError: The address is invalid, or the certificate authorities cannot be read.
    """

    def __init__(self, url: str, credentials: ClusterCredentials) -> None:
        try:
            base = parse_admin_url(url)
        except ValueError as error:
            raise ConfigError(f"invalid admin API address {url!r}; write http://HOST:PORT") from error
        self.url = url.rstrip("/")
        """Address of the API."""
        self.secure = base.scheme == "https"
        """Whether it uses TLS."""
        self._http = AdminHttp(base, credentials)

    # --- names ---

    def clusters(self) -> tuple[str, ...]:
        """Return the names of all clusters."""
        return self._names("clusters")

    def tenants(self) -> tuple[str, ...]:
        """Return the names of all tenants."""
        return self._names("tenants")

    def namespaces(self, tenant: str) -> tuple[NamespaceName, ...]:
        """Return the namespaces of a tenant."""
        return tuple(NamespaceName.parse(name) for name in self._names(f"namespaces/{tenant}"))

    def topics(self, namespace: NamespaceName) -> tuple[str, ...]:
        """Return the full names of the persistent topics of a namespace; each partition is a topic."""
        return self._names(f"persistent/{namespace}")

    def partitioned_topics(self, namespace: NamespaceName) -> tuple[str, ...]:
        """Return the full names of the partitioned topics of a namespace."""
        return self._names(f"persistent/{namespace}/partitioned")

    # --- one topic ---

    def partitions(self, topic: TopicName) -> int:
        """Return the number of partitions of a topic; 0 if it is not partitioned or missing. Creates no topic."""
        found = self._topic(topic, "partitions", checkAllowAutoCreation="false")
        count = 0 if found is None else found.get("partitions", 0)
        if not isinstance(count, int):
            raise self._unexpected(f"the partitions of {topic}", found)
        return count

    def internal_info(self, topic: TopicName) -> Json | None:
        """Return a topic's ledger list; None if the topic is missing. An Afterglow server adds fields for readers."""
        return self._topic(topic, "internal-info", afterglow="true")

    def internal_stats(self, topic: TopicName) -> Json | None:
        """Return a topic's ledgers and last confirmed entry; None if the topic is missing."""
        return self._topic(topic, "internalStats", metadata="false")

    def offload_policies(self, topic: TopicName) -> Json | None:
        """Return the effective offload policies of a topic; None if the API does not return them."""
        return self._topic(topic, "offloadPolicies", applied="true")

    def topic_policy(self, topic: TopicName, policy: str, *, is_global: bool = False) -> Any:
        """Return the value that is set for a topic itself, by the last part of the policy's path; None if none is.

        None as well if the topic is missing, or the cluster has no topic policies or not this one. Pulsar has policies
        for a partitioned topic as a whole, not for its partitions.
        """
        query = urlencode({"applied": "false", "isGlobal": str(is_global).lower()})
        path = f"{topic.domain.value}/{topic.namespace}/{encode_name(topic.local_name)}/{policy}"
        return self._get(f"/admin/v2/{path}?{query}", absent=(404, 405))

    def subscriptions(self, topic: TopicName) -> tuple[str, ...]:
        """Return the names of the subscriptions of a topic; empty if the topic is missing."""
        try:
            return self._names(f"{topic.domain.value}/{topic.namespace}/{encode_name(topic.local_name)}/subscriptions")
        except NotFound:
            return ()

    def delete_subscription(self, topic: TopicName, subscription: str) -> None:
        """Delete a subscription of a topic, which must have no connected consumer; a missing one is not an error."""
        path = f"{topic.domain.value}/{topic.namespace}/{encode_name(topic.local_name)}/subscription"
        with suppress(NotFound):
            self._text(f"/admin/v2/{path}/{encode_name(subscription)}", method="DELETE")

    def namespace_policies(self, namespace: NamespaceName) -> Json | None:
        """Return all policies of a namespace; None if it is missing."""
        return self._object(f"namespaces/{namespace}")

    def runtime_configuration(self) -> Json | None:
        """Return the runtime configuration of a broker; None if the API does not return it."""
        return self._object("brokers/configuration/runtime")

    def version(self) -> str | None:
        """Return the release of the broker that responds; None if the API does not return it."""
        try:
            text = self._text("/admin/v2/brokers/version")
        except NotFound:
            return None
        return text.strip('"') or None

    def schemas(self, topic: TopicName) -> Json | None:
        """Return every version of a topic's schema; None if it has none."""
        return self._object(f"schemas/{topic.namespace}/{encode_name(topic.local_name)}/schemas")

    def lookup(self, topic: TopicName) -> Json | None:
        """Return the addresses of the broker that serves a topic; None if no broker does."""
        name = f"{topic.namespace}/{encode_name(topic.local_name)}"
        return self._checked(f"/lookup/v2/topic/{topic.domain.value}/{name}")

    # --- internals ---

    def _topic(self, topic: TopicName, what: str, **query: str) -> Json | None:
        path = f"{topic.domain.value}/{topic.namespace}/{encode_name(topic.local_name)}/{what}"
        return self._object(f"{path}?{urlencode(query)}")

    def _object(self, path: str) -> Json | None:
        return self._checked(f"/admin/v2/{path}")

    def _checked(self, target: str) -> Json | None:
        try:
            found = self._get(target)
        except NotFound:
            return None
        if found is not None and not isinstance(found, dict):
            raise self._unexpected(target, found)
        return found

    def _names(self, path: str) -> tuple[str, ...]:
        found = self._get(f"/admin/v2/{path}")
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise self._unexpected(path, found)
        return tuple(found)

    def _unexpected(self, what: str, found: object) -> CorruptMetadata:
        quoted = repr(found)[:_MAX_QUOTED_CHARS]
        return CorruptMetadata(
            f"source {self.url}: unexpected response for {what}: {quoted}; check that it is a Pulsar admin API"
        )

    def _get(self, target: str, *, absent: tuple[int, ...] = ()) -> Any:
        text = self._text(target, absent=absent)
        if not text:
            return None
        try:
            return json.loads(text)
        except ValueError as error:
            raise self._unexpected(target, text) from error

    def _text(self, target: str, *, absent: tuple[int, ...] = (), method: str = "GET") -> str:
        """Return the body of a response; empty if its status is one of ``absent``."""
        try:
            response = self._http.exchange(method, target, None, _TIMEOUT_S)
        except ssl.SSLError as error:
            raise MetadataUnavailable(
                f"source {self.url} is not trusted: {error}; set ca_file (AFTERGLOW_CA_FILE) to the authority that "
                "signed its certificate"
            ) from error
        except MetadataUnavailable:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise MetadataUnavailable(
                f"source {self.url} does not respond: {error or type(error).__name__}; check the address and that a "
                "broker runs, or use its ZooKeeper as the source, zk://HOST:2181"
            ) from error
        if response.status in absent:
            return ""
        text = response.content.decode("utf-8", "replace").strip()
        failure = f"{response.request} failed with status {response.status}: {_reason(text)}"
        if response.status in {401, 403}:
            raise AccessDenied(f"{failure}; set token (AFTERGLOW_TOKEN) to one whose role may administer the tenant")
        if response.status == 404:
            raise NotFound(f"{response.request}: {_reason(text)}")
        if response.status >= 300:
            raise MetadataUnavailable(failure)
        return text


def _reason(text: str) -> str:
    """Return the reason in an error response: Pulsar's, or the message of the error page of its HTTP server."""
    try:
        found = json.loads(text)
        reason = found["reason"] if "reason" in found else found["message"]
    except (ValueError, KeyError, TypeError):
        reason = text
    return str(reason)[:_MAX_QUOTED_CHARS] or "no reason given"
