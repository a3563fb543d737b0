"""A metadata store that fails as real ones do, by script or by lot: the counterpart of ``afterglow.storage.faults``.

Rules are asked in their order, and the first that applies to a call strikes. With the same seed, rules and order of
calls the same faults come; the seed stands in every injected error. Watches are passed through unharmed.
"""

from __future__ import annotations

import enum
import random
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeVar

from afterglow.errors import CommitUnknown, ConfigError, MetadataUnavailable, VersionConflict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from afterglow.metadata.store import MetadataStore, Versioned
    from afterglow.metadata.watches import Watch, WatchCallback

T = TypeVar("T")

CHANGES: Final = frozenset({"put", "delete"})
OPERATIONS: Final = CHANGES | {"get", "children"}


class Fault(enum.Enum):
    """How a call goes wrong."""

    ERROR_BEFORE = "error before effect"
    """``MetadataUnavailable``; nothing was changed."""
    ERROR_AFTER = "error after effect"
    """The change was made, and ``CommitUnknown`` follows; of a read, ``MetadataUnavailable``."""
    LOST = "lost"
    """The change was not made, and ``CommitUnknown`` follows all the same."""
    CONFLICT = "conflict"
    """``VersionConflict``; nothing was changed."""
    SLOW = "slow"
    """The call goes on after a delay."""


_APPLIES: Final = {Fault.LOST: CHANGES, Fault.CONFLICT: CHANGES}


@dataclass(frozen=True, slots=True)
class FaultRule:
    """When a fault strikes.

    Raises:
        ConfigError: An operation is unknown, or the fault cannot happen to it.
    """

    fault: Fault
    operations: frozenset[str] = frozenset()
    """Names of the protocol's methods; empty for all that the fault can happen to."""
    path: str = "*"
    """Shell pattern that the path must match; ``*`` crosses slashes."""
    skip: int = 0
    """Calls that match are let through this often first."""
    times: int | None = 1
    """Strikes at most this often; None for ever."""
    probability: float = 1.0
    """Of striking a call that matches."""
    delay_s: float = 1.0
    """How long ``SLOW`` waits before the call goes on."""

    def __post_init__(self) -> None:
        if wrong := self.operations - _APPLIES.get(self.fault, OPERATIONS):
            raise ConfigError(f"fault {self.fault.value!r} cannot happen to {', '.join(sorted(wrong))}")

    def matches(self, operation: str, path: str) -> bool:
        """Tell whether the rule speaks of this call at all."""
        operations = self.operations or _APPLIES.get(self.fault, OPERATIONS)
        return operation in operations and fnmatchcase(path, self.path)


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that struck."""

    number: int
    """Which call of this store it was, from 1."""
    operation: str
    path: str
    fault: Fault


class FaultyMetadataStore:
    """A :class:`~afterglow.metadata.store.MetadataStore` that lets rules spoil its calls.

    Args:
        inner: The store that does the work; closed with this one.
        rules: When which fault strikes.
        seed: Of the lots; by default drawn, and reported.
        sleep: Waits that many seconds.
    """

    def __init__(
        self,
        inner: MetadataStore,
        rules: Iterable[FaultRule] = (),
        *,
        seed: int | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.inner = inner
        self.rules = tuple(rules)
        self.seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        self._rng = random.Random(self.seed)  # noqa: S311  must be repeatable
        self._sleep = sleep
        self._lock = Lock()
        self._calls = 0
        self._matched = [0] * len(self.rules)
        self._struck = [0] * len(self.rules)
        self._injected: list[InjectedFault] = []

    def __repr__(self) -> str:
        return f"FaultyMetadataStore({self.inner!r}, seed={self.seed})"

    @property
    def injected(self) -> tuple[InjectedFault, ...]:
        """The faults that have struck so far, in their order."""
        with self._lock:
            return tuple(self._injected)

    @property
    def max_value_bytes(self) -> int:
        """The longest value that the inner store takes."""
        return self.inner.max_value_bytes

    def get(self, path: str) -> Versioned | None:
        """Return the node, or fail as a rule says."""
        return self._call("get", path, lambda: self.inner.get(path))

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names below the node, or fail as a rule says."""
        return self._call("children", path, lambda: self.inner.children(path))

    def put(self, path: str, value: bytes, expected_version: int) -> int:
        """Change the node, or fail as a rule says."""
        return self._call("put", path, lambda: self.inner.put(path, value, expected_version))

    def delete(self, path: str, expected_version: int) -> None:
        """Remove the node, or fail as a rule says."""
        self._call("delete", path, lambda: self.inner.delete(path, expected_version))

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        """Watch the inner store."""
        return self.inner.watch(path, callback)

    def close(self) -> None:
        """Close the inner store."""
        self.inner.close()

    def _call(self, operation: str, path: str, perform: Callable[[], T]) -> T:
        rule, number = self._choose(operation, path)
        if rule is None:
            return perform()
        message = f"injected fault: {rule.fault.value} in {operation} of {path} (call {number}, seed {self.seed})"
        match rule.fault:
            case Fault.ERROR_BEFORE:
                raise MetadataUnavailable(message)
            case Fault.ERROR_AFTER:
                perform()
                raise (CommitUnknown if operation in CHANGES else MetadataUnavailable)(message)
            case Fault.LOST:
                raise CommitUnknown(message)
            case Fault.CONFLICT:
                raise VersionConflict(message)
            case Fault.SLOW:
                self._sleep(rule.delay_s)
                return perform()

    def _choose(self, operation: str, path: str) -> tuple[FaultRule | None, int]:
        with self._lock:
            self._calls += 1
            for index, rule in enumerate(self.rules):
                if not rule.matches(operation, path):
                    continue
                self._matched[index] += 1
                if self._matched[index] <= rule.skip or self._struck[index] == rule.times:
                    continue
                if rule.probability < 1.0 and self._rng.random() >= rule.probability:
                    continue
                self._struck[index] += 1
                self._injected.append(InjectedFault(self._calls, operation, path, rule.fault))
                return rule, self._calls
            return None, self._calls
