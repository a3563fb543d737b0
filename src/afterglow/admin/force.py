"""Deleting namespaces and tenants with everything in them, where settings allow it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from afterglow.admin.errors import not_allowed
from afterglow.errors import NotThere

if TYPE_CHECKING:
    from afterglow.admin.call import Call
    from afterglow.broker.service import BrokerService
    from afterglow.metadata.names import NamespaceName


def check_namespaces(call: Call) -> None:
    """Check that namespaces may be deleted by force.

    Raises:
        AdminError: They may not.
    """
    if not call.service.config.force_delete_namespace_allowed:
        raise not_allowed(
            "namespaces are not deleted by force unless forceDeleteNamespaceAllowed is set: delete the topics first"
        )


def check_tenants(call: Call) -> None:
    """Check that tenants may be deleted by force.

    Raises:
        AdminError: They may not.
    """
    if not call.service.config.force_delete_tenant_allowed:
        raise not_allowed(
            "tenants are not deleted by force unless forceDeleteTenantAllowed is set: delete the namespaces first"
        )


async def delete_namespace(service: BrokerService, namespace: NamespaceName) -> None:
    """Delete a namespace with all its topics.

    1. Mark it, so that no client that comes back makes a topic anew. *Crash: it is there, marked, with all it has; the
       caller has no answer and asks again, as after each step below.*
    2. Delete the topics. *Crash: it has fewer of them.*
    3. Forget schemas and policies of partitioned topics, then that they are partitioned. *Crash: some are left.*
    4. Delete the namespace.

    Raises:
        NotThere: There is no such namespace.
        NotEmpty: Another call is still deleting one of its topics.
    """
    await service.creation.end(namespace)
    for name in await service.blocking(service.catalog.topics, namespace):
        with suppress(NotThere):
            await service.delete_topic(name, force=True)
    for name in await service.blocking(service.catalog.partitioned_topics, namespace):
        await service.forget_topic(name)
        with suppress(NotThere):
            await service.blocking(service.catalog.delete_partitioned, name)
    await service.blocking(service.catalog.delete_namespace, namespace)
    service.policies_changed(namespace)
