"""One call, as its handler sees it."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeVar

from afterglow.admin import values
from afterglow.admin.errors import AdminError, bad_request, precondition_failed
from afterglow.metadata.names import Domain, NamespaceName, decode_name

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from starlette.requests import Request

    from afterglow.metadata.names import TopicName
    from afterglow.offload.service import OffloadService
    from afterglow.pipeline.server_handle import ServerHandle

    Json: TypeAlias = dict[str, Any]

_MOST: Final = 256 << 10
"""Bytes of a body, unless a call takes more. Parsing holds the interpreter, whichever thread does it: the event loop
waits up to twenty milliseconds for JSON of this size, and half a second for 5 MiB."""

T = TypeVar("T")
P = ParamSpec("P")

_FLAGS: Final = {"true": True, "false": False}


class Call:
    """One call: the server, and what the caller gave."""

    def __init__(
        self,
        server: ServerHandle,
        searches: asyncio.Semaphore,
        request: Request,
        *,
        is_super_user: bool = False,
    ) -> None:
        self.server = server
        self.service = server.service
        self.catalog = server.service.catalog
        self.blocking = server.service.blocking
        self._searches = searches
        self._request = request
        self._allowed = None if is_super_user else server.service.allowed_tiers

    @property
    def offload(self) -> OffloadService:
        """The offload service.

        Raises:
            AdminError: This broker does not offload.
        """
        if self.server.offload is None:
            raise precondition_failed("this broker does not offload: it was started without a tier")
        return self.server.offload

    @property
    def offloads(self) -> bool:
        """Whether this broker offloads."""
        return self.server.offload is not None

    async def search(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Search data that may be in a tier; few calls do so at a time. See ``BrokerService.run_in_tier_pool``."""
        async with self._searches:
            return await self.service.run_in_tier_pool(work, *args, **kwargs)

    # --- policies ---

    async def namespace_policies(self) -> Json:
        """All policies of the namespace in the path, as they are stored.

        Raises:
            NotFound: There is no such namespace.
        """
        return await self.blocking(self.catalog.policies, self.namespace)

    def check_new_policies(self, policies: Json) -> tuple[str, ...]:
        """Check the policies of a namespace that the caller creates; see :meth:`PolicyChanges.check_new`."""
        return self.service.policy_changes.check_new(self.namespace, policies, self._allowed)

    async def update_policies(self, namespace: NamespaceName, change: Callable[[Json], Json]) -> None:
        """Change a namespace's policies as far as the caller may; see :meth:`BrokerService.update_policies`."""
        await self.service.update_policies(namespace, change, self._allowed)

    async def update_topic_policies(self, topic: TopicName, change: Callable[[Json], Json]) -> None:
        """Change a topic's policies as far as the caller may; see :meth:`BrokerService.update_topic_policies`."""
        await self.service.update_topic_policies(topic, change, self._allowed)

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
        """A part of the path, decoded once.

        Raises:
            InvalidName: It is not encoded as Java does it.
        """
        return decode_name(self._request.path_params[name])

    def has(self, name: str) -> bool:
        """Whether the path has such a part."""
        return name in self._request.path_params

    def whole_number(self, name: str, low: int = 0, high: int = values.LONG_MAX) -> int:
        """A part of the path that is a number.

        Raises:
            AdminError: It is none, or out of bounds.
        """
        return values.whole_number(self.segment(name), name, low, high)

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
        """A parameter that is true or false.

        Raises:
            AdminError: It is neither.
        """
        given = self.parameter(name)
        if given is None:
            return default
        if given.lower() not in _FLAGS:
            raise bad_request(f"the parameter {name} must be true or false, not {values.shown(given)}")
        return _FLAGS[given.lower()]

    def whole_parameter(self, name: str, *, default: int) -> int:
        """A parameter that is a whole number.

        Raises:
            AdminError: It is none.
        """
        given = self.parameter(name)
        return default if given is None else values.whole_number(given, name, -values.LONG_MAX, values.LONG_MAX)

    def parameter(self, name: str) -> str | None:
        """A parameter; None where it is absent or empty."""
        return self._request.query_params.get(name) or None

    def header(self, name: str) -> str | None:
        """A header; None where it is absent."""
        return self._request.headers.get(name)

    # --- the body ---

    async def body(self, most: int = _MOST) -> Any:
        """The JSON value of the body, which has up to so many bytes; None where it is empty.

        Raises:
            AdminError: It is not valid JSON, or too long.
        """
        configured = self.service.config.http_max_request_size
        limit = min(most, configured) if configured > 0 else most
        data = bytearray()
        async for chunk in self._request.stream():  # the server bounds the time that it takes
            data += chunk
            if len(data) > limit:
                cause = "httpMaxRequestSize sets the limit" if limit < most else "no call of this kind has more"
                raise AdminError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {limit} bytes: {cause}")
        return values.parse(bytes(data))

    # --- where it came to ---

    @property
    def web_url(self) -> str:
        """Address of the admin API, under the name that lookups give."""
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
