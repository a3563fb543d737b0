"""Changes of stored policies, validated by the effective policies that result.

Every change of a namespace's or a topic's policies is made here, so that no order of changes leads to a policy that
cannot be applied: a threshold above the retention is refused, and a retention below the threshold, whichever level sets
or removes either. A change of a namespace affects all its topics: those with policies of their own are checked one by
one.

A problem that existed before the change does not refuse it: policies that Pulsar or another release stored may be
corrected step by step.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from afterglow.config.setting import MASK
from afterglow.errors import ConfigError, CorruptMetadata, NotFound
from afterglow.events import log_event
from afterglow.policy import validation
from afterglow.policy.allowed_tiers import StoredPolicies
from afterglow.policy.fields import namespace_settings, topic_settings
from afterglow.policy.resolver import resolve, resolve_stored
from afterglow.policy.validation import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.catalog.catalog import Catalog
    from afterglow.config import BrokerConfig
    from afterglow.metadata.names import NamespaceName, TopicName
    from afterglow.policy.allowed_tiers import AllowedTiers

    Json: TypeAlias = dict[str, Any]
    Edit: TypeAlias = Callable[[Json], Json]

log = logging.getLogger(__name__)

_SECRET: Final = re.compile(r"(?i)secret|credential|password|token|access_?key")
"""Names of fields with secrets, such as those of offload policies with the keys of a store."""
_MAX_NAMED: Final = 5
"""Further topics that an error message names."""
_CONTRADICTION: Final = "contradiction"
"""Subject of a problem of settings that contradict each other."""


class PolicyChanges:
    """Changes the stored policies of namespaces and topics, or refuses to. Every method waits for the metadata store.

    A change also reads policies of other levels than it writes: the caller must not run two changes concurrently.

    Args:
        config: The broker's settings.
        catalog: Stores the policies.
    """

    def __init__(self, config: BrokerConfig, catalog: Catalog) -> None:
        self._config = config
        self._catalog = catalog

    def check_new(
        self, namespace: NamespaceName, policies: Json, allowed: AllowedTiers | None = None
    ) -> tuple[str, ...]:
        """Check the policies of a new namespace.

        Args:
            namespace: Its name.
            policies: Its policies.
            allowed: Tiers that they may name; None: any.

        Returns:
            Warnings.

        Raises:
            ConfigError: They cannot be applied.
            TierNotAllowed: They name a tier that is not allowed.
        """
        if allowed is not None:
            allowed.check(f"namespace {namespace}", StoredPolicies(policies, {}), StoredPolicies({}, {}))
        return self._checked(({}, {}), (policies, {}))

    def change_namespace(
        self, namespace: NamespaceName, edit: Edit, allowed: AllowedTiers | None = None, role: str | None = None
    ) -> tuple[str, ...]:
        """Change a namespace's policies. A refused change has no effect.

        Args:
            namespace: Its name.
            edit: From the stored policies to those that replace them.
            allowed: Tiers that it may name; None: any.
            role: Role of the caller, for the log.

        Returns:
            Warnings.

        Raises:
            ConfigError: The resulting policies of the namespace or of a topic cannot be applied.
            TierNotAllowed: The change names a tier that is not allowed.
            NotFound: The namespace does not exist.
        """
        warnings: tuple[str, ...] = ()

        def checked(old: Json) -> Json:
            nonlocal warnings
            new = edit(old)
            if allowed is not None:
                allowed.check(f"namespace {namespace}", StoredPolicies(new, {}), StoredPolicies(old, {}))
            warnings = self._checked((old, {}), (new, {}))
            if namespace_settings(old).life_cycle != namespace_settings(new).life_cycle:
                self._check_topics(namespace, old, new, allowed)
            change.update(difference(old, new))
            return new

        change: dict[str, Json] = {}
        self._catalog.update_policies(namespace, checked)
        if change:
            log_event(log, "policy changed", namespace=str(namespace), role=role, **change)
        return warnings

    def change_topic(
        self, topic: TopicName, edit: Edit, allowed: AllowedTiers | None = None, role: str | None = None
    ) -> tuple[str, ...]:
        """Change a topic's own policies; a partition has those of its topic. A refused change has no effect.

        Args:
            topic: Its name.
            edit: From the stored policies to those that replace them.
            allowed: Tiers that it may name; None: any.
            role: Role of the caller, for the log.

        Returns:
            Warnings.

        Raises:
            ConfigError: The resulting policies cannot be applied.
            TierNotAllowed: The change names a tier that is not allowed.
        """
        warnings: tuple[str, ...] = ()
        try:
            namespace = self._catalog.policies(topic.namespace)
        except NotFound:  # deleted meanwhile: the broker's settings apply
            namespace = {}

        def checked(old: Json) -> Json:
            nonlocal warnings
            new = edit(old)
            if allowed is not None:
                current = StoredPolicies(namespace, old), StoredPolicies(namespace, {})
                allowed.check(f"topic {topic}", StoredPolicies(namespace, new), *current)
            warnings = self._checked((namespace, old), (namespace, new))
            change.update(difference(old, new))
            return new

        change: dict[str, Json] = {}
        self._catalog.update_topic_policies(topic, checked)
        if change:
            log_event(log, "policy changed", topic=str(topic), role=role, **change)
        return warnings

    def _checked(self, before: tuple[Json, Json], after: tuple[Json, Json]) -> tuple[str, ...]:
        """Check new policies of a namespace and a topic against the old ones; returns new warnings."""
        found = self._problems(*after)
        if found:
            known = {(problem.subject, problem.values) for problem in self._problems(*before)}
            for problem in found:
                if (problem.subject, problem.values) not in known:
                    raise ConfigError(problem.text)
        warnings = validation.warnings(resolve_stored(self._config, *after)[0])
        if not warnings:
            return ()
        old_warnings = validation.warnings(resolve_stored(self._config, *before)[0])
        return tuple(warning for warning in warnings if warning not in old_warnings)

    def _check_topics(self, namespace: NamespaceName, old: Json, new: Json, allowed: AllowedTiers | None) -> None:
        """Check the topics with policies of their own: one read each, and one check for equal policies."""
        refused: dict[TopicName, str] = {}
        checked: dict[tuple[tuple[str, Any], ...], str | None] = {}
        for topic in self._catalog.topics_with_policies(namespace):
            try:
                own = self._catalog.topic_policies(topic)
            except CorruptMetadata as error:  # one corrupt topic must not block the namespace
                log.warning("policies of %s were not checked against those of its namespace: %s", topic, error)
                continue
            if not (values := tuple(sorted(topic_settings(own).life_cycle.items()))):
                continue
            if values not in checked:
                if allowed is not None:
                    current = StoredPolicies(old, own), StoredPolicies(old, {}), StoredPolicies(new, {})
                    allowed.check(f"topic {topic}", StoredPolicies(new, own), *current)
                checked[values] = self._new_problem(own, old, new)
            if (text := checked[values]) is not None:
                refused[topic] = text
        if refused:
            first, text = next(iter(refused.items()))
            others = [str(topic) for topic in refused if topic != first]
            more = f"; the same applies to {', '.join(others[:_MAX_NAMED])}" if others else ""
            more += f" and {len(others) - _MAX_NAMED} more" if len(others) > _MAX_NAMED else ""
            raise ConfigError(f"{first} sets policies of its own: {text}{more}")

    def _new_problem(self, own: Json, old: Json, new: Json) -> str | None:
        """The first problem that new policies of the namespace cause for a topic."""
        found = self._problems(new, own)
        # A change of a namespace is not refused because of a topic that has the same defect already.
        known = {problem.subject for problem in self._problems(old, own)} if found else set()
        return next((problem.text for problem in found if problem.subject not in known), None)

    def _problems(self, namespace: Json, topic: Json) -> tuple[Problem, ...]:
        try:
            return validation.problems(resolve(self._config, namespace, topic))
        except ConfigError as error:
            return (Problem(_CONTRADICTION, (str(error),), str(error)),)


def difference(old: Json, new: Json) -> dict[str, Json]:
    """Fields of policies that differ, as ``old`` and ``new``, with secrets masked; empty if none does."""
    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    if not names:
        return {}
    return {
        side: {name: _masked(name, values[name]) for name in names if name in values}
        for side, values in (("old", old), ("new", new))
    }


def _masked(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _masked(key, each) for key, each in value.items()}
    return MASK if _SECRET.search(name) and value is not None else value
