"""Who may make a call.

Every call needs the proof that the binary port asks for. Where ``superUserRoles`` names roles, calls that set up or
take down also need one of these, or, below a tenant, one of the tenant's ``adminRoles``; where it names none, everyone
who is known may set up.
"""

from __future__ import annotations

from enum import Enum, auto
from http import HTTPStatus
from typing import TYPE_CHECKING

from afterglow.admin.browsers import Pages
from afterglow.admin.errors import AdminError
from afterglow.errors import NotThere
from afterglow.metadata.encoding import decode_name

if TYPE_CHECKING:
    from starlette.requests import Request

    from afterglow.broker.auth import Authenticator
    from afterglow.broker.service import BrokerService


class Access(Enum):
    """What a call needs."""

    ANYONE = auto()
    """Nothing: probes of machines that hold no credentials."""
    KNOWN = auto()
    """Proof of a role, whichever it is."""
    TENANT = auto()
    """A role that administers the tenant in the path."""
    SUPER_USER = auto()
    """A role that may do everything."""


class Gate:
    """Lets calls pass or not."""

    def __init__(self, service: BrokerService, authenticator: Authenticator) -> None:
        self._service = service
        self._authenticator = authenticator
        self._pages = Pages(service.config)

    async def check(self, request: Request, access: Access) -> None:
        """Return if the call may pass.

        Raises:
            Refused: Nobody has proved to make it.
            AdminError: The role may not make it, or a page of somebody else's does.
        """
        self._pages.check(request)
        if access is Access.ANYONE:
            return
        role = self._authenticator.authenticate_header(request.headers.get("authorization")).role
        if access is Access.KNOWN or not self._service.config.super_user_roles:
            return
        if self._authenticator.is_super_user(role):
            return
        if access is Access.TENANT and role in await self._admins(request):
            return
        needed = "superUserRoles" if access is Access.SUPER_USER else "superUserRoles or the tenant's adminRoles"
        raise AdminError(HTTPStatus.FORBIDDEN, f"the role {role!r} may not do this: it is not among {needed}")

    async def _admins(self, request: Request) -> list[str]:
        try:
            tenant = await self._service.blocking(
                self._service.catalog.tenant, decode_name(request.path_params["tenant"])
            )
        except NotThere:
            return []
        roles: list[str] = tenant.get("adminRoles", [])
        return roles
