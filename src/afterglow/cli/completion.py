"""Names that the shell completes, asked of the broker; where it does not answer at once, there are none."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import typer

from afterglow.cli.connection import Connection
from afterglow.errors import AfterglowError

if TYPE_CHECKING:
    from afterglow.cli.client import AdminClient

_TIMEOUT_S: Final = 1.0
"""A person who has pressed the tab key waits for no longer."""
_MOST: Final = 1_000
"""More names than that help nobody."""


def topics(context: typer.Context, incomplete: str) -> list[str]:
    """Topics whose names begin so, in the spelling that was begun; a partitioned one without its partitions."""
    from afterglow.metadata.names import TopicName  # noqa: PLC0415 - not needed for --help

    scheme = "persistent://" if incomplete.startswith("persistent://") else ""
    tenant, slash, rest = incomplete.removeprefix(scheme).partition("/")
    namespace, second, _ = rest.partition("/")
    if scheme or slash:
        if not second:
            return [f"{scheme}{name}/" for name in namespaces(context, incomplete.removeprefix(scheme))]
        spelled, path = f"{scheme}{tenant}/{namespace}/", f"namespaces/{tenant}/{namespace}/topics"
    else:
        spelled, path = "", "namespaces/public/default/topics"
    found = dict.fromkeys(TopicName.parse(name).base.local_name for name in _names(context, path))
    return [name for name in (spelled + local for local in found) if name.startswith(incomplete)][:_MOST]


def namespaces(context: typer.Context, incomplete: str) -> list[str]:
    """Namespaces whose names begin so; of the tenant that is named, or of all."""
    tenant, slash, _ = incomplete.partition("/")
    tenants = [tenant] if slash else [name for name in _names(context, "tenants") if name.startswith(incomplete)]
    found = (name for tenant in tenants[:_MOST] for name in _names(context, f"namespaces/{tenant}"))
    return [name for name in found if name.startswith(incomplete)][:_MOST]


def _names(context: typer.Context, path: str) -> list[str]:
    try:
        return _client(context).names(path)
    except (AfterglowError, OSError):  # nothing may come between a person and their shell
        return []


def _client(context: typer.Context) -> AdminClient:
    """A client by the options that stand on the line so far."""
    from afterglow.cli.client import AdminClient  # noqa: PLC0415 - HTTP and TLS are not needed for --help

    connection = Connection()
    place: Any = context
    while place is not None:
        given = (place.params.get(field.name) for field in fields(Connection))
        connection = Connection(*given).overlaid(connection)
        place = place.parent
    return AdminClient(connection.resolved(), timeout_s=_TIMEOUT_S)
