"""One call of the admin API: the server, and the path, query and body of the request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeVar

from afterglow.admin import values
from afterglow.admin.errors import AdminError, bad_request, precondition_failed
from afterglow.metadata.names import Domain, NamespaceName, decode_name
from afterglow.pacing import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from afterglow.broker.service import BrokerService
    from afterglow.catalog.catalog import Catalog
    from afterglow.metadata.names import TopicName
    from afterglow.offload.service import OffloadService
    from afterglow.pipeline.server_handle import ServerHandle, TopicCatalog, TopicService

    Json: TypeAlias = dict[str, Any]

_MAX_BODY_BYTES: Final = 256 << 10
"""Of a body, unless a handler allows more. Parsing holds the interpreter on any thread: the event loop waits up to 20
ms for JSON of this size, and half a second for 5 MiB."""

T = TypeVar("T")
P = ParamSpec("P")

_FLAGS: Final = {"true": True, "false": False}


class Call:
    """One call: the server, of a broker or of another process with topics, and the request."""

    def __init__(self, server: ServerHandle[TopicService], request: Request) -> None:
        self.server = server
        self.service: TopicService = server.service
        self.catalog: TopicCatalog = server.service.catalog
        self.blocking = server.service.blocking
        self._request = request

    @property
    def offload(self) -> OffloadService:
        """The offload service.

        Raises:
            AdminError: This broker does not offload.
        """
        if self.server.offload is None:
            raise precondition_failed("this broker does not offload: start it with a tier")
        return self.server.offload

    @property
    def offloads(self) -> bool:
        """Whether this broker offloads."""
        return self.server.offload is not None

    @property
    def role(self) -> str | None:
        """The authenticated role of the caller; None without authentication."""
        role: str | None = getattr(self._request.state, "role", None)
        return role

    async def namespace_policies(self) -> Json:
        """Stored policies of the namespace in the path.

        Raises:
            NotFound: The namespace does not exist.
        """
        return await self.blocking(self.catalog.policies, self.namespace)

    # --- the path ---

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self._request.method

    @property
    def path(self) -> str:
        """The path as it was sent."""
        return self._request.url.path

    def segment(self, name: str) -> str:
        """A segment of the path, decoded once.

        Raises:
            InvalidName: It is not encoded as Java encodes it.
        """
        return decode_name(self._request.path_params[name])

    def integer_segment(self, name: str, low: int = 0, high: int = values.LONG_MAX) -> int:
        """A segment of the path that is an integer.

        Raises:
            AdminError: It is not an integer, or out of bounds.
        """
        return values.parse_integer(self.segment(name), name, low, high)

    @property
    def namespace(self) -> NamespaceName:
        """The namespace in the path.

        Raises:
            InvalidName: It is not well-formed.
        """
        return NamespaceName(self.segment("tenant"), self.segment("namespace"))

    @property
    def topic(self) -> TopicName:
        """The topic in the path.

        Raises:
            InvalidName: It is not well-formed.
        """
        return self.namespace.topic(self.segment("topic"), Domain.PERSISTENT)

    # --- the query ---

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A Boolean query parameter.

        Raises:
            AdminError: It is neither true nor false.
        """
        given = self.parameter(name)
        if given is None:
            return default
        if given.lower() not in _FLAGS:
            raise bad_request(f"the parameter {name} must be true or false, not {values.shown(given)}")
        return _FLAGS[given.lower()]

    def integer_parameter(self, name: str, *, default: int, high: int = values.LONG_MAX) -> int:
        """An integer query parameter.

        Raises:
            AdminError: It is not an integer, or out of bounds.
        """
        given = self.parameter(name)
        return default if given is None else values.parse_integer(given, name, -values.LONG_MAX, high)

    def parameter(self, name: str) -> str | None:
        """A query parameter; None if it is absent or empty."""
        return self._request.query_params.get(name) or None

    def header(self, name: str) -> str | None:
        """A header; None if it is absent."""
        return self._request.headers.get(name)

    # --- the body ---

    async def body(self, max_bytes: int = _MAX_BODY_BYTES) -> Any:
        """The JSON value of the body; None if it is empty.

        Raises:
            AdminError: It is not valid JSON, or longer than ``max_bytes`` or ``httpMaxRequestSize``.
        """
        configured = self.service.config.http_max_request_size
        limit = min(max_bytes, configured) if configured > 0 else max_bytes
        data = bytearray()
        async for chunk in self._request.stream():  # the HTTP server limits the time that this takes
            data += chunk
            if len(data) > limit:
                cause = "raise httpMaxRequestSize" if limit < max_bytes else "send less"
                raise AdminError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body exceeds {limit} bytes; {cause}")
        return values.parse(bytes(data))

    # --- the address ---

    @property
    def web_url(self) -> str:
        """URL of the admin API, with the host that lookups return."""
        scheme: str = self._request.scope.get("scheme", "http")
        return f"{scheme}://{self.broker_id}"

    @property
    def secure(self) -> bool:
        """Whether the call came over TLS."""
        return bool(self._request.scope.get("scheme") == "https")

    @property
    def broker_id(self) -> str:
        """Host and port of the admin API, by which Pulsar names a broker."""
        config = self.service.config
        host, port = self._request.scope.get("server") or (config.bind_address, config.web_service_port)
        name = config.advertised_address or host
        return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


_SEARCHES: Final = 4
"""Calls that search a tier at a time. The other threads of the tier pool are for consumers."""
_BROWSED_BYTES: Final = 32 << 20
"""Stored bytes of messages that calls may browse in a second, together: a few percent of what consumers are served."""
_LEAST_BROWSED_BYTES: Final = 256 << 10
"""Bytes that a call counts for at least, so that small windows are limited too: 128 calls per second."""
_MAX_BROWSE_WAIT_S: Final = 5.0
"""A call that would wait longer is refused."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of calls that read messages, shared by all calls of a broker."""

    searches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_SEARCHES))
    browsing: TokenBucket = field(default_factory=lambda: TokenBucket(_BROWSED_BYTES))


class BrokerCall(Call):
    """One call of the admin API of a broker.

    Args:
        server: The server.
        limits: Limits of calls that read messages.
        request: The request.
        is_super_user: Whether the caller is a superuser.
    """

    service: BrokerService
    catalog: Catalog

    def __init__(
        self,
        server: ServerHandle[BrokerService],
        limits: ReadLimits,
        request: Request,
        *,
        is_super_user: bool = False,
    ) -> None:
        super().__init__(server, request)
        self._limits = limits
        self._allowed = None if is_super_user else server.service.allowed_tiers

    async def search(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a search that may read a tier, in the tier pool. The number of concurrent searches is limited."""
        async with self._limits.searches:
            return await self.service.run_in_tier_pool(work, *args, **kwargs)

    async def browse(self, work: Callable[[], T], read_bytes: Callable[[T], int]) -> T:
        """Run work that reads messages for a person, as :meth:`search`; the rate of all such work is limited.

        Args:
            work: The work.
            read_bytes: The stored bytes that it has read, from its result.

        Raises:
            AdminError: Too much was read in the last seconds.
        """
        bucket = self._limits.browsing
        wait_s = bucket.charge(_LEAST_BROWSED_BYTES)
        if wait_s > _MAX_BROWSE_WAIT_S:
            bucket.charge(-_LEAST_BROWSED_BYTES)
            raise AdminError(
                HTTPStatus.TOO_MANY_REQUESTS, f"too many messages are browsed at once: try again in {wait_s:.0f} s"
            )
        await asyncio.sleep(wait_s)
        found = await self.search(work)
        bucket.charge(max(read_bytes(found) - _LEAST_BROWSED_BYTES, 0))
        return found

    def check_new_policies(self, policies: Json) -> tuple[str, ...]:
        """Check policies with which the caller creates a namespace; see :meth:`PolicyChanges.check_new`."""
        return self.service.policy_changes.check_new(self.namespace, policies, self._allowed)

    async def update_policies(self, namespace: NamespaceName, change: Callable[[Json], Json]) -> None:
        """Change a namespace's policies with the caller's rights; see :meth:`BrokerService.update_policies`."""
        await self.service.update_policies(namespace, change, self._allowed, self.role)

    async def update_topic_policies(self, topic: TopicName, change: Callable[[Json], Json]) -> None:
        """Change a topic's policies with the caller's rights; see :meth:`BrokerService.update_topic_policies`."""
        await self.service.update_topic_policies(topic, change, self._allowed, self.role)
