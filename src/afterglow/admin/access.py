"""Access control of the admin API: authentication, the right that a call needs, and cross-site requests of browsers.

Every call is authenticated as on the binary port. With ``authorizationEnabled`` the authenticated role also needs the
right that Pulsar requires, by the rules of :mod:`afterglow.broker.authorization`.

Without authorization, every authenticated role may read. If ``superUserRoles`` names roles, calls that change something
need one of them or, below a tenant, one of the tenant's ``adminRoles``; else every authenticated role may change.

A browser sends requests for any page that is open in it, also to a broker that listens on loopback only and does not
authenticate. Two attacks are refused:

- Cross-site request: a page of another origin calls our address. The browser reports the origin; the call may not
  change anything.
- DNS rebinding: a page resolves its own host name to this machine, so that for the browser we are its origin. The
  ``Host`` header has that name, which is not one of a loopback address; the call is not answered.
"""

from __future__ import annotations

from enum import Enum, auto
from http import HTTPStatus
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from afterglow.admin.errors import AdminError
from afterglow.broker.auth import is_loopback
from afterglow.metadata.names import Domain, NamespaceName, decode_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from afterglow.broker.authorization import RoleRights
    from afterglow.config import BrokerConfig
    from afterglow.metadata.names import TopicName
    from afterglow.pipeline.server_handle import TopicService


class Access(Enum):
    """The right that a call needs. Rights on topics and namespaces differ only with authorization."""

    ANYONE = auto()
    """None: probes of load balancers, which hold no credentials."""
    KNOWN = auto()
    """Any authenticated role."""
    LOOKUP = auto()
    """To read about a topic: produce or consume on it."""
    PEEK = auto()
    """To read a topic's messages and subscriptions: consume on it."""
    LIST_TOPICS = auto()
    """To list a namespace's topics: produce or consume on the namespace."""
    READ_TENANT = auto()
    """To read what admins of the tenant in the path set."""
    READ_SERVER = auto()
    """To read what superusers set, and what concerns all tenants."""
    CHANGE_SUBSCRIPTION = auto()
    """To change a topic's subscription: consume on the topic with that subscription."""
    CHANGE_SCHEMA = auto()
    """To add a schema to a topic: produce on it."""
    TENANT = auto()
    """To change anything below the tenant in the path: one of its admin roles."""
    SUPER_USER = auto()
    """A superuser role."""


_READ_ONLY: Final = frozenset(
    {Access.KNOWN, Access.LOOKUP, Access.PEEK, Access.LIST_TOPICS, Access.READ_TENANT, Access.READ_SERVER}
)
"""Rights of every authenticated role without authorization."""

_FOR_SUPER_USERS: Final = frozenset({Access.READ_SERVER, Access.SUPER_USER})

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_ADMINS: Final = "superUserRoles or the tenant's adminRoles"

_ON_TOPIC: Final[dict[Access, tuple[Callable[[RoleRights, TopicName, str | None], bool], str]]] = {
    Access.LOOKUP: (lambda rights, topic, _: rights.can_lookup(topic), "produce or consume on the topic"),
    Access.PEEK: (lambda rights, topic, name: rights.can_consume(topic, name), "consume on the topic"),
    Access.CHANGE_SUBSCRIPTION: (lambda rights, topic, name: rights.can_consume(topic, name), "consume on the topic"),
    Access.CHANGE_SCHEMA: (lambda rights, topic, _: rights.can_produce(topic), "produce on the topic"),
}


class AccessControl:
    """Authenticates the caller of each request, and refuses calls that its role may not make."""

    def __init__(self, service: TopicService) -> None:
        self._service = service
        self._authorizer = service.authorizer
        self._authenticator = service.authenticator
        self._browsers = _BrowserCheck(service.config)

    async def check(self, request: Request, access: Access) -> bool:
        """Return if the caller may make the call.

        Returns:
            Whether the caller is a superuser; every caller is one where no roles are configured.

        Raises:
            Refused: The caller is not authenticated.
            InvalidName: A name in the path is not well-formed.
            AdminError: The role may not make the call, or it is a cross-site request.
        """
        self._browsers.check(request)
        if access is Access.ANYONE:
            return False
        role = self._authenticator.authenticate_header(request.headers.get("authorization")).role
        request.state.role = role
        if self._authorizer.enabled:
            await self._authorize(request, role, access)
            return self._authorizer.is_super_user(role)
        is_super_user = not self._service.config.super_user_roles or self._authenticator.is_super_user(role)
        if access not in _READ_ONLY and not is_super_user:
            await self._check_admin(request, role, access)
        return is_super_user

    async def _authorize(self, request: Request, role: str | None, access: Access) -> None:
        original = request.headers.get("x-original-principal")
        if original and original != role:
            raise AdminError(HTTPStatus.FORBIDDEN, f"role {role!r} may not act for {original!r}: it is not a proxy")
        if access is Access.KNOWN or self._authorizer.is_super_user(role):
            return
        if access is Access.LIST_TOPICS or access in _ON_TOPIC:
            await self._check_rights(request, role, access)
        else:
            await self._check_admin(request, role, access)

    async def _check_rights(self, request: Request, role: str | None, access: Access) -> None:
        namespace = NamespaceName(_segment(request, "tenant"), _segment(request, "namespace"))
        rights = await self._service.blocking(self._authorizer.rights, role, namespace)
        if access is Access.LIST_TOPICS:
            allowed, needed = rights.can_list(), "produce or consume on the namespace"
        else:
            can, needed = _ON_TOPIC[access]
            topic = namespace.topic(_segment(request, "topic"), Domain.PERSISTENT)
            has_subscription = "subscription" in request.path_params
            allowed = can(rights, topic, _segment(request, "subscription") if has_subscription else None)
        if not allowed:
            raise _refused(role, f"it has no permission to {needed}, and is not among {_ADMINS}")

    async def _check_admin(self, request: Request, role: str | None, access: Access) -> None:
        if access in _FOR_SUPER_USERS:
            raise _refused(role, "it is not among superUserRoles")
        tenant = _segment(request, "tenant")
        if not await self._service.blocking(self._authorizer.is_tenant_admin, role, tenant):
            raise _refused(role, f"it is not among {_ADMINS}")


def _segment(request: Request, name: str) -> str:
    return decode_name(request.path_params[name])


def _refused(role: str | None, reason: str) -> AdminError:
    return AdminError(HTTPStatus.FORBIDDEN, f"role {role!r} may not make this call: {reason}")


# --- cross-site requests ---


class _BrowserCheck:
    """Refuses cross-site requests and DNS rebinding; see the module's docstring."""

    def __init__(self, config: BrokerConfig) -> None:
        # A broker that listens beyond loopback has names that only its network knows.
        self._accepts_any_host = config.authentication_enabled or not is_loopback(config.bind_address)
        self._names = {"localhost", config.bind_address.lower(), (config.advertised_address or "").lower()}

    def check(self, request: Request) -> None:
        """Return if the request does not come from a page of another origin, as far as its headers show.

        Raises:
            AdminError: It does.
        """
        host = request.headers.get("host", "")
        if not self._accepts_any_host and not self._is_ours(host):
            raise AdminError(
                HTTPStatus.FORBIDDEN,
                f"unknown host {host!r}: use 127.0.0.1, or set advertisedAddress to this name",
            )
        if request.method not in SAFE_METHODS and _is_cross_site(request, host):
            raise AdminError(HTTPStatus.FORBIDDEN, "a page of another origin may not change anything: use /console")

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return not host or name in self._names or _is_address(name)


def _is_cross_site(request: Request, host: str) -> bool:
    """Whether a browser reports another origin; clients that are not browsers do not send these headers."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in {"same-origin", "none"}
    origin = request.headers.get("origin")
    return origin is not None and origin.partition("://")[2] != host


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
