"""Changes of stored policies, checked by the effective policies that they would lead to.

Every change of a namespace's or a topic's policies comes through here, so that no order of changes leads to a policy
that cannot be carried out: a threshold is refused above the retention, and a retention below the threshold, whichever
level sets or removes either. A change of a namespace concerns all its topics: those with policies of their own are
checked one by one.

What was wrong before the change is not held against it: policies that another release or Pulsar stored may be changed
in part, and be corrected step by step.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from afterglow.errors import ConfigError, CorruptMetadata, NotFound
from afterglow.policy import validation
from afterglow.policy.allowed_tiers import Levels
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

_MOST_NAMED: Final = 5
"""Topics that a refusal names."""
_CONTRADICTION: Final = "contradiction"
"""Subject of a problem of values that no configuration may hold together."""


class PolicyChanges:
    """Changes the stored policies of namespaces and topics, or refuses to. Every method waits for the metadata store.

    A change reads policies of other levels beside those that it writes: a caller must not run two changes at once.

    Args:
        config: The broker's settings.
        catalog: Where policies are stored.
    """

    def __init__(self, config: BrokerConfig, catalog: Catalog) -> None:
        self._config = config
        self._catalog = catalog

    def check_new(
        self, namespace: NamespaceName, policies: Json, allowed: AllowedTiers | None = None
    ) -> tuple[str, ...]:
        """Check the policies of a namespace that is to be created.

        Args:
            namespace: Its name.
            policies: What it is to be created with.
            allowed: Tiers that they may name; None: any.

        Returns:
            What will surprise.

        Raises:
            ConfigError: They cannot be carried out.
            TierNotAllowed: They name a tier that is not allowed.
        """
        if allowed is not None:
            allowed.check(f"namespace {namespace}", Levels(policies, {}), Levels({}, {}))
        return self._checked(({}, {}), (policies, {}))

    def change_namespace(
        self, namespace: NamespaceName, edit: Edit, allowed: AllowedTiers | None = None
    ) -> tuple[str, ...]:
        """Change a namespace's policies.

        Args:
            namespace: Its name.
            edit: From the stored policies to others.
            allowed: Tiers that it may name; None: any.

        Returns:
            What will surprise.

        Raises:
            ConfigError: A topic of the namespace could not carry out its policies afterwards; nothing was changed.
            TierNotAllowed: The change names a tier that is not allowed; nothing was changed.
            NotFound: There is no such namespace.
        """
        warnings: tuple[str, ...] = ()

        def checked(old: Json) -> Json:
            nonlocal warnings
            new = edit(old)
            if allowed is not None:
                allowed.check(f"namespace {namespace}", Levels(new, {}), Levels(old, {}))
            warnings = self._checked((old, {}), (new, {}))
            if namespace_settings(old).life_cycle != namespace_settings(new).life_cycle:
                self._check_topics(namespace, old, new, allowed)
            return new

        self._catalog.update_policies(namespace, checked)
        return warnings

    def change_topic(self, topic: TopicName, edit: Edit, allowed: AllowedTiers | None = None) -> tuple[str, ...]:
        """Change a topic's own policies; a partition has those of its partitioned topic.

        Args:
            topic: Its name.
            edit: From the stored policies to others.
            allowed: Tiers that it may name; None: any.

        Returns:
            What will surprise.

        Raises:
            ConfigError: The topic could not carry out its policies afterwards; nothing was changed.
            TierNotAllowed: The change names a tier that is not allowed; nothing was changed.
        """
        warnings: tuple[str, ...] = ()
        try:
            namespace = self._catalog.policies(topic.namespace)
        except NotFound:  # deleted meanwhile: the broker's settings are left
            namespace = {}

        def checked(old: Json) -> Json:
            nonlocal warnings
            new = edit(old)
            if allowed is not None:
                in_force = Levels(namespace, old), Levels(namespace, {})
                allowed.check(f"topic {topic}", Levels(namespace, new), *in_force)
            warnings = self._checked((namespace, old), (namespace, new))
            return new

        self._catalog.update_topic_policies(topic, checked)
        return warnings

    def _checked(self, before: tuple[Json, Json], after: tuple[Json, Json]) -> tuple[str, ...]:
        """Check policies of a namespace and a topic that are to replace others; returns what will surprise."""
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
        """Check the topics with policies of their own: one read each, and one check for all that set the same."""
        refused: dict[TopicName, str] = {}
        checked: dict[tuple[tuple[str, Any], ...], str | None] = {}
        for topic in self._catalog.topics_with_policies(namespace):
            try:
                own = self._catalog.topic_policies(topic)
            except CorruptMetadata as error:  # no reason to refuse what others need
                log.warning("%s is not checked against the new policies of its namespace: %s", topic, error)
                continue
            if not (values := tuple(sorted(topic_settings(own).life_cycle.items()))):
                continue
            if values not in checked:
                if allowed is not None:
                    in_force = Levels(old, own), Levels(old, {}), Levels(new, {})
                    allowed.check(f"topic {topic}", Levels(new, own), *in_force)
                checked[values] = self._new_problem(own, old, new)
            if (text := checked[values]) is not None:
                refused[topic] = text
        if refused:
            first, text = next(iter(refused.items()))
            others = [str(topic) for topic in refused if topic != first]
            more = f"; the same holds for {', '.join(others[:_MOST_NAMED])}" if others else ""
            more += f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
            raise ConfigError(f"{first} sets policies of its own: {text}{more}")

    def _new_problem(self, own: Json, old: Json, new: Json) -> str | None:
        """What becomes wrong for a topic with other policies of its namespace."""
        found = self._problems(new, own)
        # A change for all topics is not refused because of one that is wrong in the same way already.
        known = {problem.subject for problem in self._problems(old, own)} if found else set()
        return next((problem.text for problem in found if problem.subject not in known), None)

    def _problems(self, namespace: Json, topic: Json) -> tuple[Problem, ...]:
        try:
            return validation.problems(resolve(self._config, namespace, topic))
        except ConfigError as error:
            return (Problem(_CONTRADICTION, (str(error),), str(error)),)
