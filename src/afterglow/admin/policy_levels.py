"""Levels at which policies are set over the API: a namespace, and a topic.

Every change is validated by the effective policies that it leads to, inside the compare-and-set that stores it; see
:mod:`afterglow.policy.changes`. A refused call changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from afterglow.admin import targets
from afterglow.admin.errors import precondition_failed
from afterglow.admin.values import with_field
from afterglow.policy import offload_json
from afterglow.policy.fields import (
    LEGACY_OFFLOAD_FIELDS,
    NAMESPACE_OFFLOAD,
    TOPIC_OFFLOAD,
    namespace_settings,
    of_scope,
    topic_settings,
    with_scope,
)
from afterglow.policy.resolver import resolve_stored

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from afterglow.admin.call import BrokerCall
    from afterglow.config import BrokerConfig
    from afterglow.policy.fields import LevelSettings

    Json: TypeAlias = dict[str, Any]
    Edit: TypeAlias = Callable[[Json], Json]
    """From stored policies to those that replace them, in the thread that writes them. May raise ``ConfigError``."""


@dataclass(frozen=True, slots=True)
class PolicyLevel:
    """A level at which policies are stored, as one JSON object.

    Methods and callables that change policies raise ``ConfigError`` where the effective policies would contradict each
    other, and ``AdminError`` where the namespace or topic in the path does not exist.
    """

    offload_field: str
    """Field of the offload policies."""
    settings: Callable[[Mapping[str, Any]], LevelSettings]
    """From stored policies to the settings that they override."""
    stored: Callable[[BrokerCall], Awaitable[Json]]
    """Reads the stored policies."""
    update: Callable[[BrokerCall, Edit], Awaitable[None]]
    """Changes the stored policies."""
    effective: Callable[[BrokerCall], Awaitable[BrokerConfig]]
    """Resolves the effective policy."""

    async def update_offload(self, call: BrokerCall, edit: Edit) -> None:
        """Change the offload policies; an empty object is not stored."""
        name = self.offload_field
        await self.update(call, lambda old: with_field(old, name, edit(old.get(name) or {}) or None))

    async def unset_offload(self, call: BrokerCall, key: str) -> None:
        """Unset one setting of the offload policies, and the legacy field that sets it."""

        def edit(old: Json) -> Json:
            rest = {name: value for name, value in old.items() if LEGACY_OFFLOAD_FIELDS.get(name) != key}
            left = offload_json.without(old.get(self.offload_field) or {}, key)
            return with_field(rest, self.offload_field, left or None)

        await self.update(call, edit)

    async def remove_offload(self, call: BrokerCall) -> None:
        """Remove the offload policies, and the legacy fields that preceded them."""
        removed = {self.offload_field, *LEGACY_OFFLOAD_FIELDS}
        await self.update(call, lambda old: {name: value for name, value in old.items() if name not in removed})


async def topic_policies(call: BrokerCall) -> Json:
    """Policies of the topic in the path, of both scopes, as they are stored.

    Raises:
        AdminError: The topic does not exist.
    """
    call.flag("authoritative")
    await targets.find(call.service, call.topic)
    return await call.blocking(call.catalog.topic_policies, call.topic)


async def update_topic_policies(call: BrokerCall, edit: Edit) -> None:
    """Change policies of the topic in the path, of both scopes.

    Raises:
        AdminError: The topic does not exist, or is a partition.
        ConfigError: The effective policies would contradict each other.
    """
    call.flag("authoritative")
    name = call.topic
    await targets.find(call.service, name)
    if name.partition_index is not None:
        raise precondition_failed(f"{name} is a partition and has the policies of its topic; set those of {name.base}")
    await call.update_topic_policies(name, edit)


async def _effective_of_namespace(call: BrokerCall) -> BrokerConfig:
    return resolve_stored(call.service.config, await call.namespace_policies(), {})[0]


async def _effective_of_topic(call: BrokerCall) -> BrokerConfig:
    topic = await topic_policies(call)
    return resolve_stored(call.service.config, await call.namespace_policies(), topic)[0]


async def _topic_scope(call: BrokerCall) -> Json:
    return of_scope(await topic_policies(call), is_global=call.flag("isGlobal"))


async def _update_topic_scope(call: BrokerCall, edit: Edit) -> None:
    is_global = call.flag("isGlobal")
    await update_topic_policies(
        call, lambda old: with_scope(old, edit(of_scope(old, is_global=is_global)), is_global=is_global)
    )


NAMESPACE: Final = PolicyLevel(
    NAMESPACE_OFFLOAD,
    namespace_settings,
    lambda call: call.namespace_policies(),
    lambda call, edit: call.update_policies(call.namespace, edit),
    _effective_of_namespace,
)
TOPIC: Final = PolicyLevel(TOPIC_OFFLOAD, topic_settings, _topic_scope, _update_topic_scope, _effective_of_topic)
"""Of the scope that the parameter ``isGlobal`` names."""
