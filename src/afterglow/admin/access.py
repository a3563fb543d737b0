"""Access control of the admin API: the right that a call needs, and pages of others in a browser.

Every call needs the proof that the binary port asks for. With ``authorizationEnabled`` the proven role also needs the
right that Pulsar asks for, by the rules of :mod:`afterglow.broker.authorization`.

Without it, every proven role may look. Where ``superUserRoles`` names roles, calls that set up or take down need one of
these, or, below a tenant, one of the tenant's ``adminRoles``; where it names none, every proven role may set up.

A browser sends calls for any page that is open in it, also to a broker that listens on its own machine alone and asks
nobody for proof. Two ways lead there:

- A page sends a call to our address. The browser then says that it came from elsewhere: nothing may be changed so.
- A page has its own name lead to this machine, and for the browser we are where the page came from. But the call names
  that host, and nobody calls a loopback address by a name like that: nothing is answered.
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

    from afterglow.broker.auth import Authenticator
    from afterglow.broker.authorization import RoleRights
    from afterglow.broker.service import BrokerService
    from afterglow.config import BrokerConfig
    from afterglow.metadata.names import TopicName


class Access(Enum):
    """What a call needs. The rights on topics and namespaces are told apart with authorization only."""

    ANYONE = auto()
    """Nothing: probes of machines that hold no credentials."""
    KNOWN = auto()
    """Proof of any role."""
    LOOKUP = auto()
    """To look at a topic: the right to produce to it or to consume it."""
    PEEK = auto()
    """To look at a topic's messages and subscriptions: the right to consume it."""
    LIST_TOPICS = auto()
    """To look at a namespace's topics: the right to produce or consume in the whole namespace."""
    READ_TENANT = auto()
    """To look at what admins of the tenant in the path set."""
    READ_SERVER = auto()
    """To look at what superusers set, and at what all tenants have."""
    CHANGE_SUBSCRIPTION = auto()
    """To change a topic's subscription: the right to consume the topic with that subscription."""
    CHANGE_SCHEMA = auto()
    """To add a schema to a topic: the right to produce to it."""
    TENANT = auto()
    """A role that administers the tenant in the path."""
    SUPER_USER = auto()
    """A role that may do everything."""


_TO_LOOK: Final = frozenset(
    {Access.KNOWN, Access.LOOKUP, Access.PEEK, Access.LIST_TOPICS, Access.READ_TENANT, Access.READ_SERVER}
)
"""What every proven role may do without authorization."""

_FOR_SUPER_USERS: Final = frozenset({Access.READ_SERVER, Access.SUPER_USER})

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_ADMINS: Final = "superUserRoles or the tenant's adminRoles"

_ON_TOPIC: Final[dict[Access, tuple[Callable[[RoleRights, TopicName, str | None], bool], str]]] = {
    Access.LOOKUP: (lambda rights, topic, _: rights.can_lookup(topic), "produce or consume on the topic"),
    Access.PEEK: (lambda rights, topic, name: rights.can_consume(topic, name), "consume on the topic"),
    Access.CHANGE_SUBSCRIPTION: (lambda rights, topic, name: rights.can_consume(topic, name), "consume on the topic"),
    Access.CHANGE_SCHEMA: (lambda rights, topic, _: rights.can_produce(topic), "produce on the topic"),
}


class Gate:
    """Lets calls pass or not."""

    def __init__(self, service: BrokerService, authenticator: Authenticator) -> None:
        self._service = service
        self._authorizer = service.authorizer
        self._authenticator = authenticator
        self._pages = _Pages(service.config)

    async def check(self, request: Request, access: Access) -> bool:
        """Return if the call may pass.

        Returns:
            Whether a superuser makes it; where roles are not told apart, everybody is one.

        Raises:
            Refused: The caller has not proved a role.
            InvalidName: A name in the path is not well-formed.
            AdminError: The role may not make it, or another page in a browser makes it.
        """
        self._pages.check(request)
        if access is Access.ANYONE:
            return False
        role = self._authenticator.authenticate_header(request.headers.get("authorization")).role
        if self._authorizer.enabled:
            await self._authorize(request, role, access)
            return self._authorizer.is_super_user(role)
        is_super_user = not self._service.config.super_user_roles or self._authenticator.is_super_user(role)
        if access not in _TO_LOOK and not is_super_user:
            await self._check_admin(request, role, access)
        return is_super_user

    async def _authorize(self, request: Request, role: str | None, access: Access) -> None:
        original = request.headers.get("x-original-principal")
        if original and original != role:
            raise AdminError(HTTPStatus.FORBIDDEN, f"the role {role!r} may not act for {original!r}: it is not a proxy")
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
    return AdminError(HTTPStatus.FORBIDDEN, f"the role {role!r} may not do this: {reason}")


# --- pages of others ---


class _Pages:
    """Refuses calls of other pages in a browser.

    Args:
        config: The broker's settings.
    """

    def __init__(self, config: BrokerConfig) -> None:
        # Beyond this machine a broker has whatever names its network gives it, and asks for proof, or is meant not to.
        self._by_any_name = config.authentication_enabled or not is_loopback(config.bind_address)
        self._names = {"localhost", config.bind_address.lower(), (config.advertised_address or "").lower()}

    def check(self, request: Request) -> None:
        """Return if no page of others makes the call, as far as can be known.

        Raises:
            AdminError: One does.
        """
        host = request.headers.get("host", "")
        if not self._by_any_name and not self._is_ours(host):
            raise AdminError(
                HTTPStatus.FORBIDDEN,
                f"this broker is not called {host!r}: use 127.0.0.1, or name it so by advertisedAddress",
            )
        if request.method not in _SAFE_METHODS and _from_another_page(request, host):
            raise AdminError(HTTPStatus.FORBIDDEN, "a page of another origin may change nothing here: use /console")

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return not host or name in self._names or _is_address(name)


def _from_another_page(request: Request, host: str) -> bool:
    """Whether a browser says so; other clients do not send these headers."""
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
