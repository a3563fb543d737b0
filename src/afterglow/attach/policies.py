"""Policies of attached topics: flags of the process, and policies by patterns of topic names, from ``attach.toml``.

.. code-block:: toml

    [policies]                                   # of all topics
    maxOffloadSegmentRolloverTimeInSeconds = 600

    [topics."public/default/orders.*"]           # of topics whose name matches; the last matching table wins
    maxOffloadSegmentSizeInBytes = 268435456

Names and values are those of Pulsar's namespace policies and broker settings.
"""

from __future__ import annotations

import re
import threading
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from afterglow.config import Origin, OriginKind
from afterglow.errors import ConfigError
from afterglow.metadata.names import TopicName
from afterglow.policy import offload_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from afterglow.config import BrokerConfig
    from afterglow.metadata.names import NamespaceName

_TABLES: Final = frozenset({"policies", "topics"})
_DELETION_LAG: Final = "managedLedgerOffloadDeletionLagInMillis"
"""Time until hot copies are deleted: never, since only the cluster deletes its ledgers."""
_NO_LAG: Final = Origin(OriginKind.DEFAULT, "the cluster deletes its ledgers")


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """Policies of the topics whose names match a pattern."""

    pattern: str
    """Regular expression of names such as ``public/default/orders``."""
    values: Mapping[str, Any]
    """Settings by name."""
    origin: Origin


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """The content of ``attach.toml``."""

    common: TopicPolicies | None = None
    topics: tuple[TopicPolicies, ...] = ()


def read_policy_file(path: Path) -> PolicyFile:
    """Read ``attach.toml``.

    Raises:
        ConfigError: It cannot be read or parsed, or names what is not a policy.
    """
    try:
        parsed = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"--policies {path} cannot be read: {error}") from error
    if unknown := sorted(parsed.keys() - _TABLES):
        raise ConfigError(f'--policies {path}: unknown table {unknown[0]!r}; write [policies] and [topics."PATTERN"]')
    common = parsed.get("policies")
    tables = parsed.get("topics", {})
    if not isinstance(tables, dict):
        raise ConfigError(f'--policies {path}: write [topics."PATTERN"] before the policies of some topics')
    return PolicyFile(
        None if common is None else _policies(path, ".*", "policies", common),
        tuple(_policies(path, pattern, f'topics."{pattern}"', table) for pattern, table in tables.items()),
    )


def _policies(path: Path, pattern: str, table: str, given: object) -> TopicPolicies:
    if not isinstance(given, dict):
        raise ConfigError(f"--policies {path}: [{table}] is not a table")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--policies {path}: {pattern!r} is not a regular expression: {error}") from error
    try:
        found = offload_json.read_checked(given)
    except ConfigError as error:
        raise ConfigError(f"--policies {path}: [{table}]: {error}") from error
    if _DELETION_LAG in found.values:
        raise ConfigError(f"--policies {path}: [{table}] sets {_DELETION_LAG}; remove it: {_NO_LAG} by its retention")
    kind = OriginKind.FILE if table == "policies" else OriginKind.TOPIC
    return TopicPolicies(pattern, found.values, Origin(kind, f"{path.name} [{table}]"))


def _with_common(config: BrokerConfig, common: TopicPolicies) -> BrokerConfig:
    """The policies of all topics; those of the command line take precedence over those of the file."""
    values = {
        name: value for name, value in common.values.items() if config.origin(name).kind is not OriginKind.ARGUMENT
    }
    return config.overridden(values, common.origin)


class AttachPolicies:
    """Effective policies of all attached topics. Thread-safe; they do not change while the process runs.

    Precedence, lowest first: settings of the process, ``[policies]``, flags of the process, ``[topics."PATTERN"]``.

    Args:
        config: Settings of the process, with its flags.
        file: The policy file.

    Raises:
        ConfigError: Policies contradict each other.
    """

    def __init__(self, config: BrokerConfig, file: PolicyFile) -> None:
        config = config if file.common is None else _with_common(config, file.common)
        self._config = config.overridden({_DELETION_LAG: None}, _NO_LAG)
        self._topics = file.topics
        self._lock = threading.Lock()
        self._cache: dict[str, BrokerConfig] = {}
        for policies in file.topics:
            self._config.overridden(policies.values, policies.origin)

    @property
    def config(self) -> BrokerConfig:
        """The settings of the process."""
        return self._config

    def of(self, name: str) -> BrokerConfig:
        """The effective policy of a topic.

        Args:
            name: The topic's managed-ledger name; a partition has the policy of its partitioned topic.

        Raises:
            InvalidName: The name is not that of a topic.
        """
        with self._lock:
            cached = self._cache.get(name)
        if cached is not None:
            return cached
        topic = TopicName.from_managed_ledger_name(name).base
        text = f"{topic.namespace}/{topic.local_name}"
        policy = self._config
        for policies in self._topics:
            if re.fullmatch(policies.pattern, text):
                policy = policy.overridden(policies.values, policies.origin)
        with self._lock:
            self._cache[name] = policy
        return policy

    def on_change(self, callback: Callable[[NamespaceName | None], None]) -> None:
        """Do nothing: policies do not change while the process runs."""
