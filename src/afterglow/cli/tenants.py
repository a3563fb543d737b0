"""``afterglow tenants``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from afterglow.cli.command import Group, Session
from afterglow.metadata.encoding import encode_name

TENANTS = Group("tenants", "Tenants and who administers them, by the names of pulsar-admin.")

Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant.")]
AdminRoles = Annotated[
    str | None, typer.Option("--admin-roles", "-r", metavar="ROLES", help="Who administers it, with commas between.")
]
Clusters = Annotated[
    str | None,
    typer.Option("--allowed-clusters", "-c", metavar="CLUSTERS", help="With commas between; else all that there are."),
]


@TENANTS.command("list")
def list_tenants(session: Session) -> None:
    """List all tenants.

    Example: afterglow tenants list
    """
    session.out.lines("tenant", session.client.names("tenants"))


@TENANTS.command("get")
def get(session: Session, tenant: Tenant) -> None:
    """Show a tenant's administrators and clusters.

    Example: afterglow tenants get public
    """
    session.show(_path(tenant), "none")


@TENANTS.command("create")
def create(session: Session, tenant: Tenant, *, roles: AdminRoles = None, clusters: Clusters = None) -> None:
    """Create a tenant.

    Example: afterglow tenants create acme --admin-roles alice,bob
    """
    allowed = session.client.names("clusters") if clusters is None else _split(clusters)
    value = {"adminRoles": _split(roles or ""), "allowedClusters": allowed}
    session.change("PUT", _path(tenant), value, f"created {tenant}")


@TENANTS.command("update")
def update(session: Session, tenant: Tenant, *, roles: AdminRoles = None, clusters: Clusters = None) -> None:
    """Change a tenant's administrators or clusters; only what is given changes.

    Example: afterglow tenants update acme --admin-roles alice
    """
    given = {"adminRoles": roles, "allowedClusters": clusters}
    changed: dict[str, Any] = {name: _split(value) for name, value in given.items() if value is not None}
    if not changed:
        raise typer.BadParameter("give --admin-roles ROLES, --allowed-clusters CLUSTERS, or both")
    session.change("POST", _path(tenant), {**session.client.fields(_path(tenant)), **changed}, f"changed {tenant}")


@TENANTS.command("delete")
def delete(session: Session, tenant: Tenant) -> None:
    """Delete a tenant that has no namespaces.

    Example: afterglow tenants delete acme
    """
    session.change("DELETE", _path(tenant), None, f"deleted {tenant}")


def _path(tenant: str) -> str:
    return f"tenants/{encode_name(tenant)}"


def _split(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]
