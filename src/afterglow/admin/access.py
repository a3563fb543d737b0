"""Who may make a call.

Every call needs the proof that the binary port asks for. With ``authorizationEnabled`` the proven role also needs the
right that Pulsar asks for, by the rules of :mod:`afterglow.broker.authorization`.

Without it, every proven role may look. Where ``superUserRoles`` names roles, calls that set up or take down need one of
these, or, below a tenant, one of the tenant's ``adminRoles``; where it names none, every proven role may set up.
"""

from __future__ import annotations

from enum import Enum, auto
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from afterglow.admin.browsers import Pages
from afterglow.admin.errors import AdminError
from afterglow.metadata.encoding import decode_name
from afterglow.metadata.names import Domain, NamespaceName

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from afterglow.broker.auth import Authenticator
    from afterglow.broker.authorization import RoleRights
    from afterglow.broker.service import BrokerService
    from afterglow.metadata.names import TopicName


class Access(Enum):
    """What a call needs. The rights on topics and namespaces are told apart with authorization only."""

    ANYONE = auto()
    """Nothing: probes of machines that hold no credentials."""
    KNOWN = auto()
    """Proof of a role, whichever it is."""
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
    CHANGE_SUBSCRIPTIONS = auto()
    """To change subscriptions of a whole namespace: the right to consume in it."""
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

_ADMINS: Final = "superUserRoles or the tenant's adminRoles"

_IN_NAMESPACE: Final[dict[Access, tuple[Callable[[RoleRights], bool], str]]] = {
    Access.LIST_TOPICS: (lambda rights: rights.can_list(), "produce or consume on the namespace"),
    Access.CHANGE_SUBSCRIPTIONS: (lambda rights: rights.can_consume_all(), "consume on the namespace"),
}

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
        self._pages = Pages(service.config)

    async def check(self, request: Request, access: Access) -> bool:
        """Return if the call may pass.

        Returns:
            Whether a superuser makes it; where roles are not told apart, everybody is one.

        Raises:
            Refused: Nobody has proved to make it.
            InvalidName: A name in the path is not well-formed.
            AdminError: The role may not make it, or a page of somebody else's does.
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
        if access in _IN_NAMESPACE or access in _ON_TOPIC:
            await self._check_rights(request, role, access)
        else:
            await self._check_admin(request, role, access)

    async def _check_rights(self, request: Request, role: str | None, access: Access) -> None:
        namespace = NamespaceName(_segment(request, "tenant"), _segment(request, "namespace"))
        rights = await self._service.blocking(self._authorizer.rights, role, namespace)
        if access in _IN_NAMESPACE:
            is_allowed, needed = _IN_NAMESPACE[access]
            allowed = is_allowed(rights)
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
