"""The levels at which offload policies are set over the API: a namespace, and a topic.

Every change is checked as a whole, by the effective policies afterwards, inside the compare-and-set that makes it; see
:mod:`afterglow.policy.changes`. A call that is refused has changed nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from afterglow.admin import targets
from afterglow.admin.errors import precondition_failed
from afterglow.policy import offload_json
from afterglow.policy.resolver import resolve_stored
from afterglow.policy.stored import (
    LEGACY_OFFLOAD_FIELDS,
    NAMESPACE_OFFLOAD,
    TOPIC_OFFLOAD,
    namespace_settings,
    of_scope,
    with_scope,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.admin.call import Call
    from afterglow.config import BrokerConfig

    Json: TypeAlias = dict[str, Any]
    Edit: TypeAlias = Callable[[Json], Json]
    """From an object of offload policies to another one, in the thread that writes it. May raise ``ConfigError``."""


class Level(Protocol):
    """What offload policies are set for."""

    async def stored(self, call: Call) -> Json | None:
        """The offload policies that are set there; None where none are."""
        ...

    async def values(self, call: Call) -> Json:
        """What is set there by whichever field, by key of the setting."""
        ...

    async def effective(self, call: Call) -> BrokerConfig:
        """What holds there."""
        ...

    async def change(self, call: Call, edit: Edit) -> None:
        """Change what is set there.

        Raises:
            ConfigError: What would hold cannot be obeyed.
        """
        ...

    async def unset(self, call: Call, key: str) -> None:
        """Have one setting not set there, by whichever field.

        Raises:
            ConfigError: What would hold cannot be obeyed.
        """
        ...

    async def remove(self, call: Call) -> None:
        """Have nothing set there.

        Raises:
            ConfigError: What would hold cannot be obeyed.
        """
        ...


class _Namespace:
    async def stored(self, call: Call) -> Json | None:
        found: Json | None = (await call.namespace_policies()).get(NAMESPACE_OFFLOAD)
        return found or None

    async def values(self, call: Call) -> Json:
        return namespace_settings(await call.namespace_policies()).all

    async def effective(self, call: Call) -> BrokerConfig:
        return resolve_stored(call.service.config, await call.namespace_policies(), {})[0]

    async def change(self, call: Call, edit: Edit) -> None:
        await call.update_policies(
            call.namespace, lambda old: _with_field(old, NAMESPACE_OFFLOAD, edit(old.get(NAMESPACE_OFFLOAD) or {}))
        )

    async def unset(self, call: Call, key: str) -> None:
        def apply(old: Json) -> Json:
            rest = {name: value for name, value in old.items() if LEGACY_OFFLOAD_FIELDS.get(name) != key}
            return _with_field(rest, NAMESPACE_OFFLOAD, offload_json.without(old.get(NAMESPACE_OFFLOAD) or {}, key))

        await call.update_policies(call.namespace, apply)

    async def remove(self, call: Call) -> None:
        gone = {NAMESPACE_OFFLOAD, *LEGACY_OFFLOAD_FIELDS}
        await call.update_policies(
            call.namespace, lambda old: {name: value for name, value in old.items() if name not in gone}
        )


class _Topic:
    async def stored(self, call: Call) -> Json | None:
        stored = await own_policies(call)
        found: Json | None = of_scope(stored, is_global=call.flag("isGlobal")).get(TOPIC_OFFLOAD)
        return found or None

    async def values(self, call: Call) -> Json:
        return offload_json.read(await self.stored(call) or {}).values

    async def effective(self, call: Call) -> BrokerConfig:
        topic = await own_policies(call)
        return resolve_stored(call.service.config, await call.namespace_policies(), topic)[0]

    async def change(self, call: Call, edit: Edit) -> None:
        await change_own(call, lambda old: _with_field(old, TOPIC_OFFLOAD, edit(old.get(TOPIC_OFFLOAD) or {})))

    async def unset(self, call: Call, key: str) -> None:
        await change_own(
            call, lambda old: _with_field(old, TOPIC_OFFLOAD, offload_json.without(old.get(TOPIC_OFFLOAD) or {}, key))
        )

    async def remove(self, call: Call) -> None:
        await change_own(call, lambda old: _with_field(old, TOPIC_OFFLOAD, {}))


NAMESPACE: Final[Level] = _Namespace()
TOPIC: Final[Level] = _Topic()


async def own_policies(call: Call) -> Json:
    """All policies of the topic in the path, as they are stored.

    Raises:
        AdminError: There is no such topic.
    """
    call.flag("authoritative")
    await targets.find(call.service, call.topic)
    return await call.service.blocking(call.service.catalog.topic_policies, call.topic)


async def change_own(call: Call, edit: Edit, *, whole: bool = False) -> None:
    """Change policies of the topic in the path, by default those of the scope that ``isGlobal`` says.

    Raises:
        AdminError: There is no such topic, or it is a partition.
    """
    name, is_global = call.topic, call.flag("isGlobal")
    call.flag("authoritative")
    await targets.find(call.service, name)
    if name.partition_index is not None:
        raise precondition_failed(f"{name} is a partition and has the policies of its topic: set those of {name.base}")

    def apply(old: Json) -> Json:
        return with_scope(old, edit(of_scope(old, is_global=is_global)), is_global=is_global)

    await call.update_topic_policies(name, edit if whole else apply)


def _with_field(old: Json, name: str, fields: Json) -> Json:
    rest = {key: value for key, value in old.items() if key != name}
    return {**rest, name: fields} if fields else rest
