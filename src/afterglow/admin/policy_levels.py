"""The levels at which offload policies are set over the API: a namespace, and a topic.

Every change is checked as a whole, by what would hold afterwards, inside the compare-and-set that makes it: a call that
is refused has changed nothing, and two calls at once cannot make together what either would be refused.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from afterglow.admin import targets
from afterglow.admin.errors import precondition_failed
from afterglow.offload import policy_checks, policy_json
from afterglow.offload.policies import (
    LEGACY_FIELDS,
    NAMESPACE_FIELD,
    TOPIC_FIELD,
    namespace_values,
    resolve,
    resolve_stored,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.admin.call import Call
    from afterglow.config import BrokerConfig

    Json: TypeAlias = dict[str, Any]
    Edit: TypeAlias = Callable[[Json], Json]
    """From an object of offload policies to another one, in the thread that writes it. May raise ``ConfigError``."""

log = logging.getLogger(__name__)


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
        """Have one setting not set there, by whichever field."""
        ...

    async def remove(self, call: Call) -> None:
        """Have nothing set there."""
        ...


class _Namespace:
    async def stored(self, call: Call) -> Json | None:
        found: Json | None = (await namespace_policies(call)).get(NAMESPACE_FIELD)
        return found or None

    async def values(self, call: Call) -> Json:
        return namespace_values(await namespace_policies(call))

    async def effective(self, call: Call) -> BrokerConfig:
        return resolve_stored(call.service.config, await namespace_policies(call), {})[0]

    async def change(self, call: Call, edit: Edit) -> None:
        config, warnings = call.service.config, list[str]()

        def apply(old: Json) -> Json:
            new = _with_field(old, NAMESPACE_FIELD, edit(old.get(NAMESPACE_FIELD) or {}))
            warnings[:] = policy_checks.check(resolve(config, new, {}), resolve_stored(config, old, {})[0])
            return new

        await call.service.update_policies(call.namespace, apply)
        _log_warnings(f"namespace {call.namespace}", warnings)

    async def unset(self, call: Call, key: str) -> None:
        def apply(old: Json) -> Json:
            rest = {name: value for name, value in old.items() if LEGACY_FIELDS.get(name) != key}
            return _with_field(rest, NAMESPACE_FIELD, policy_json.without(old.get(NAMESPACE_FIELD) or {}, key))

        await call.service.update_policies(call.namespace, apply)

    async def remove(self, call: Call) -> None:
        gone = {NAMESPACE_FIELD, *LEGACY_FIELDS}
        await call.service.update_policies(
            call.namespace, lambda old: {name: value for name, value in old.items() if name not in gone}
        )


class _Topic:
    async def stored(self, call: Call) -> Json | None:
        found: Json | None = (await _topic_policies(call)).get(TOPIC_FIELD)
        return found or None

    async def values(self, call: Call) -> Json:
        return policy_json.read(await self.stored(call) or {}).values

    async def effective(self, call: Call) -> BrokerConfig:
        topic = await _topic_policies(call)
        return resolve_stored(call.service.config, await namespace_policies(call), topic)[0]

    async def change(self, call: Call, edit: Edit) -> None:
        await self._check_name(call)
        config, warnings = call.service.config, list[str]()
        namespace = await namespace_policies(call)

        def apply(old: Json) -> Json:
            new = _with_field(old, TOPIC_FIELD, edit(old.get(TOPIC_FIELD) or {}))
            warnings[:] = policy_checks.check(
                resolve(config, namespace, new), resolve_stored(config, namespace, old)[0]
            )
            return new

        await call.service.update_topic_policies(call.topic, apply)
        _log_warnings(f"topic {call.topic}", warnings)

    async def unset(self, call: Call, key: str) -> None:
        await self._check_name(call)
        await call.service.update_topic_policies(
            call.topic,
            lambda old: _with_field(old, TOPIC_FIELD, policy_json.without(old.get(TOPIC_FIELD) or {}, key)),
        )

    async def remove(self, call: Call) -> None:
        await self._check_name(call)
        await call.service.update_topic_policies(call.topic, lambda old: _with_field(old, TOPIC_FIELD, {}))

    async def _check_name(self, call: Call) -> None:
        name = call.topic
        await targets.find(call.service, name)
        if name.partition_index is not None:
            raise precondition_failed(
                f"{name} is a partition and has the policies of its topic: set those of {name.base}"
            )


NAMESPACE: Final[Level] = _Namespace()
TOPIC: Final[Level] = _Topic()


async def namespace_policies(call: Call) -> Json:
    """All policies of the namespace in the path, as they are stored.

    Raises:
        NotThere: There is no such namespace.
    """
    return await call.service.blocking(call.service.catalog.policies, call.namespace)


async def _topic_policies(call: Call) -> Json:
    await targets.find(call.service, call.topic)
    return await call.service.blocking(call.service.catalog.topic_policies, call.topic)


def _with_field(old: Json, name: str, fields: Json) -> Json:
    rest = {key: value for key, value in old.items() if key != name}
    return {**rest, name: fields} if fields else rest


def _log_warnings(whose: str, warnings: list[str]) -> None:
    for warning in warnings:
        log.warning("policies of %s: %s", whose, warning)
