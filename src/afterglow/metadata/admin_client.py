"""Client of an admin API, Afterglow's or Pulsar's: single calls, and a read-only view of a cluster's topics.

A call is made once, over the standard library and on a connection of its own: what fails may have happened, and the
caller decides whether to retry. Answers are given as they come, as JSON that was checked for its outline alone; their
meaning is in :mod:`afterglow.metadata.admin_responses`.
"""

from __future__ import annotations

import http.client
import json
import ssl
from contextlib import contextmanager
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
_MOST_REDIRECTS: Final = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    content: bytes
    call: str
    """What was asked, and of whom, for messages."""
    headers: Message
    """By names in any case."""


def parse_admin_url(url: str) -> SplitResult:
    """The parts of an admin API's address.

    Raises:
        ValueError: It is none.
    """
    parts = urlsplit(url.rstrip("/"))
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0:
        raise ValueError(url)
    return parts


class AdminHttp:
    """Calls to one admin API. Thread-safe.

    Args:
        base: Its address.
        credentials: Token and trusted certificate authorities.

    Raises:
        ConfigError: The authorities to trust cannot be read.
    """

    def __init__(self, base: SplitResult, credentials: ClusterCredentials) -> None:
        self._base = base
        self._token = credentials.token
        self._tls = _context(credentials.ca_file) if base.scheme == "https" else None

    def exchange(self, method: str, target: str, data: bytes | None, timeout_s: float) -> Answer:
        """Make a call, wherever the cluster sends it on to, and read the whole answer.

        Args:
            method: Of HTTP.
            target: Path and query, behind the path of the base.
            data: JSON to be sent; None sends no body.
            timeout_s: Longest silence.

        Raises:
            OSError: It cannot be reached; ``ssl.SSLError`` where it is not trusted.
            HTTPException: What it says is no HTTP.
            MetadataUnavailable: It sends the call in circles, or to where it would not be protected.
        """
        with self.open(method, target, data, timeout_s) as (answer, call):
            return Answer(answer.status, answer.read(), call, answer.headers)

    @contextmanager
    def open(
        self, method: str, target: str, data: bytes | None, timeout_s: float
    ) -> Iterator[tuple[http.client.HTTPResponse, str]]:
        """Make a call as :meth:`exchange` does; the answer is read inside the context, which closes the connection.

        Returns:
            The answer, and the call for messages.

        Raises:
            OSError: As :meth:`exchange`.
            HTTPException: As :meth:`exchange`.
            MetadataUnavailable: As :meth:`exchange`.
        """
        at, target = self._base, f"{self._base.path}{target}"
        for _ in range(_MOST_REDIRECTS):
            link = self._connection(at, timeout_s)
            try:
                link.request(method, target, data, self._headers())
                # An answer that ends with the connection owns the socket, which closing the connection leaves open.
                with link.getresponse() as answer:
                    location = answer.headers["Location"]
                    if answer.status not in _REDIRECTS or location is None:
                        yield answer, f"{method} {at.scheme}://{at.netloc}{target}"
                        return
            finally:
                link.close()
            # Another broker of the cluster has the topic.
            try:
                moved = parse_admin_url(location)
            except ValueError as error:
                raise MetadataUnavailable(f"{at.netloc} sends the call on to {location!r}, which is no URL") from error
            if at.scheme == "https" and moved.scheme != "https":
                raise MetadataUnavailable(f"{at.netloc} sends the call on to {location}, which is not protected by TLS")
            at, target = moved, f"{moved.path}?{moved.query}" if moved.query else moved.path
        raise MetadataUnavailable(f"{self._base.netloc} and others send the call from one to another")

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
        raise ConfigError(f"--ca-file {ca_file!r} holds no certificates that can be read: {error}") from error


_TIMEOUT_S: Final = 60.0
"""A broker may have to load the topic first, which takes it some seconds."""
_LONGEST_TEXT: Final = 300


class AdminClient:
    """One admin API. Thread-safe.

    Every method raises ``MetadataUnavailable`` where it does not answer or is not trusted, ``AccessDenied`` where it
    does not let us in, and ``CorruptMetadata`` where its answer makes no sense.

    Args:
        url: Its address, ``http://host:8080``.
        credentials: Token and trusted certificate authorities.

    Raises:
        ConfigError: The address is none, or the authorities to trust cannot be read.
    """

    def __init__(self, url: str, credentials: ClusterCredentials) -> None:
        try:
            base = parse_admin_url(url)
        except ValueError as error:
            raise ConfigError(f"source {url!r} is no address of an admin API: write http://HOST:PORT") from error
        self.url = url.rstrip("/")
        """Its address."""
        self.secure = base.scheme == "https"
        """Whether it is reached by TLS."""
        self._link = AdminHttp(base, credentials)

    # --- names ---

    def clusters(self) -> tuple[str, ...]:
        """Names of the clusters that it knows."""
        return self._names("clusters")

    def tenants(self) -> tuple[str, ...]:
        """Names of all tenants."""
        return self._names("tenants")

    def namespaces(self, tenant: str) -> tuple[NamespaceName, ...]:
        """The namespaces of a tenant."""
        return tuple(NamespaceName.parse(name) for name in self._names(f"namespaces/{tenant}"))

    def topics(self, namespace: NamespaceName) -> tuple[str, ...]:
        """Full names of the persistent topics of a namespace, each partition by itself."""
        return self._names(f"persistent/{namespace}")

    def partitioned_topics(self, namespace: NamespaceName) -> tuple[str, ...]:
        """Full names of the partitioned topics of a namespace."""
        return self._names(f"persistent/{namespace}/partitioned")

    # --- one topic ---

    def partitions(self, topic: TopicName) -> int:
        """How many partitions a topic has; 0 where it is not partitioned, or not there. Nothing comes into being."""
        found = self._topic(topic, "partitions", checkAllowAutoCreation="false")
        count = 0 if found is None else found.get("partitions", 0)
        if not isinstance(count, int):
            raise self._unexpected(f"the partitions of {topic}", found)
        return count

    def internal_info(self, topic: TopicName) -> Json | None:
        """The list of a topic's ledgers; None where there is no such topic. One of ours adds what readers need."""
        return self._topic(topic, "internal-info", afterglow="true")

    def internal_stats(self, topic: TopicName) -> Json | None:
        """A topic's ledgers and how far they are written; None where there is no such topic."""
        return self._topic(topic, "internalStats", metadata="false")

    def offload_policies(self, topic: TopicName) -> Json | None:
        """The offload policies that hold for a topic, the broker's own included; None where it does not tell."""
        return self._topic(topic, "offloadPolicies", applied="true")

    def namespace_policies(self, namespace: NamespaceName) -> Json | None:
        """All policies of a namespace; None where there is no such namespace."""
        return self._object(f"namespaces/{namespace}")

    def runtime_configuration(self) -> Json | None:
        """The settings that a broker runs with; None where it does not show them."""
        return self._object("brokers/configuration/runtime")

    def schemas(self, topic: TopicName) -> Json | None:
        """Every version of a topic's schema; None where it has none."""
        return self._object(f"schemas/{topic.namespace}/{encode_name(topic.local_name)}/schemas")

    def lookup(self, topic: TopicName) -> Json | None:
        """The addresses of the broker that serves a topic; None where none does."""
        name = f"{topic.namespace}/{encode_name(topic.local_name)}"
        return self._checked(f"/lookup/v2/topic/{topic.domain.value}/{name}")

    # --- inside ---

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
        said = repr(found)[:_LONGEST_TEXT]
        return CorruptMetadata(f"source {self.url}: {what} is {said}: is it the admin API of a Pulsar cluster?")

    def _get(self, target: str) -> Any:
        try:
            answer = self._link.exchange("GET", target, None, _TIMEOUT_S)
        except ssl.SSLError as error:
            raise MetadataUnavailable(
                f"source {self.url} is not trusted: {error}; set ca_file (AFTERGLOW_CA_FILE) to the authority that "
                "signed its certificate"
            ) from error
        except MetadataUnavailable:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise MetadataUnavailable(
                f"source {self.url} does not answer: {error or type(error).__name__}; check the address and that a "
                "broker runs, or read by way of its ZooKeeper, zk://HOST:2181"
            ) from error
        text = answer.content.decode("utf-8", "replace").strip()
        if answer.status in {401, 403}:
            raise AccessDenied(
                f"{answer.call} was refused with status {answer.status}: {_reason(text)}; set token (AFTERGLOW_TOKEN) "
                "to one whose role may administer the tenant"
            )
        if answer.status == 404:
            raise NotFound(f"{answer.call}: {_reason(text)}")
        if answer.status >= 300:
            raise MetadataUnavailable(f"{answer.call} was answered with status {answer.status}: {_reason(text)}")
        if not text:
            return None
        try:
            return json.loads(text)
        except ValueError as error:
            raise self._unexpected(target, text) from error


def _reason(text: str) -> str:
    """What an answer that is a refusal gives as its reason."""
    try:
        told = json.loads(text)["reason"]
    except (ValueError, KeyError, TypeError):
        told = text
    return str(told)[:_LONGEST_TEXT] or "no reason was given"
