"""Object and metadata stores that fail as real ones do, by script or by lot.

Rules are asked in their order, and the first that applies to a request strikes. The same seed, rules and order of
requests give the same faults; the seed stands in every injected error and in ``repr``.
"""

from __future__ import annotations

import enum
import random
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from threading import Lock
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar, cast, get_args

from afterglow.errors import (
    CommitUnknown,
    ConfigError,
    MetadataUnavailable,
    ObjectMissing,
    StoreTimeout,
    StoreUnavailable,
    UploadMissing,
    VersionConflict,
)
from afterglow.storage.wrapper import Operation, StoreWrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from afterglow.errors import AfterglowError
    from afterglow.metadata.store import MetadataStore, Versioned
    from afterglow.metadata.watches import Watch, WatchCallback
    from afterglow.storage.store import ObjectStore
    from afterglow.storage.wrapper import StoreRequest

T = TypeVar("T")

STORE_OPERATIONS: Final[frozenset[str]] = frozenset(get_args(Operation))
"""Operations of object stores."""

CHANGES: Final = frozenset({"put", "delete"})
"""Operations that change metadata."""


class Fault(enum.Enum):
    """How a request goes wrong."""

    ERROR_BEFORE = "error before effect"
    """``StoreUnavailable`` or ``MetadataUnavailable``; nothing was changed."""
    ERROR_AFTER = "error after effect"
    """It took effect; ``StoreTimeout``, or of metadata ``CommitUnknown`` (``MetadataUnavailable`` of a read)."""
    SLOW = "slow"
    """The request goes on after a delay."""
    SHORT_READ = "short read"
    """Of object stores: the first bytes of what was asked for."""
    FLIPPED_BIT = "flipped bit"
    """Of object stores: one bit of what was read is another."""
    MISSING = "missing"
    """Of object stores: ``ObjectMissing`` or ``UploadMissing``."""
    LOST = "lost"
    """Of metadata: the change was not made, and ``CommitUnknown`` follows all the same."""
    CONFLICT = "conflict"
    """Of metadata: ``VersionConflict``; nothing was changed."""


_OF_UPLOADS: Final = frozenset({"upload_part", "list_parts", "complete_upload"})
_ALL: Final = STORE_OPERATIONS | CHANGES | {"get", "children"}
_APPLIES: Final = {
    Fault.SHORT_READ: frozenset({"get"}),
    Fault.FLIPPED_BIT: frozenset({"get"}),
    Fault.MISSING: frozenset({"get", "head"}) | _OF_UPLOADS,
    Fault.LOST: CHANGES,
    Fault.CONFLICT: CHANGES,
}


@dataclass(frozen=True, slots=True)
class FaultRule:
    """When a fault strikes.

    Raises:
        ConfigError: An operation is unknown, or the fault cannot happen to it.
    """

    fault: Fault
    operations: frozenset[str] = frozenset()
    """Names of the protocol's methods; empty for all that the fault can happen to."""
    key: str = "*"
    """Shell pattern that the key, the prefix of a listing, or the metadata path must match; ``*`` crosses slashes."""
    skip: int = 0
    """Requests that match are let through this often first."""
    times: int | None = 1
    """Strikes at most this often; None for ever."""
    probability: float = 1.0
    """Of striking a request that matches."""
    error: type[AfterglowError] | None = None
    """Raised by ``ERROR_BEFORE`` and ``ERROR_AFTER`` in place of their own."""
    delay_s: float = 1.0
    """How long ``SLOW`` waits before the request goes on."""

    def __post_init__(self) -> None:
        if wrong := self.operations - _APPLIES.get(self.fault, _ALL):
            raise ConfigError(f"fault {self.fault.value!r} cannot happen to {', '.join(sorted(wrong))}")

    def matches(self, operation: str, key: str) -> bool:
        """Whether the rule concerns this request at all."""
        operations = self.operations or _APPLIES.get(self.fault, _ALL)
        return operation in operations and fnmatchcase(key, self.key)


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that struck."""

    number: int
    """Which request of this store it was, from 1."""
    operation: str
    key: str
    fault: Fault


class _FaultInjector:
    """Chooses which requests of a store fail, and how.

    Args:
        rules: When which fault strikes.
        seed: Of the lots; by default drawn, and reported.
        sleep: Waits that many seconds.
    """

    _NOT_OURS: ClassVar[frozenset[Fault]]
    """Faults that cannot happen to this kind of store."""

    def __init__(self, rules: Iterable[FaultRule], seed: int | None, sleep: Callable[[float], None]) -> None:
        self.seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        self._rng = random.Random(self.seed)
        self._sleep = sleep
        self._lock = Lock()
        self._requests = 0
        self._injected: list[InjectedFault] = []
        self.set_rules(rules)

    def set_rules(self, rules: Iterable[FaultRule]) -> None:
        """Replace the rules; the new ones count matches and strikes from 0.

        Raises:
            ConfigError: The fault of a rule cannot happen to this kind of store.
        """
        self.rules = tuple(rules)
        if wrong := {rule.fault.value for rule in self.rules if rule.fault in self._NOT_OURS}:
            raise ConfigError(f"a {type(self).__name__} has no fault {', '.join(sorted(wrong))}")
        self._matched = [0] * len(self.rules)
        self._struck = [0] * len(self.rules)

    @property
    def injected(self) -> tuple[InjectedFault, ...]:
        """The faults that have struck so far, in their order."""
        with self._lock:
            return tuple(self._injected)

    def _choose(self, operation: str, key: str) -> tuple[FaultRule | None, str]:
        """The rule that strikes this request, with the message of its error."""
        with self._lock:
            self._requests += 1
            for index, rule in enumerate(self.rules):
                if not rule.matches(operation, key):
                    continue
                self._matched[index] += 1
                if self._matched[index] <= rule.skip or self._struck[index] == rule.times:
                    continue
                if rule.probability < 1.0 and self._rng.random() >= rule.probability:
                    continue
                self._struck[index] += 1
                self._injected.append(InjectedFault(self._requests, operation, key, rule.fault))
                where = f"{operation} of {key!r} (request {self._requests}, seed {self.seed})"
                return rule, f"injected fault: {rule.fault.value} in {where}"
            return None, ""


class FaultyStore(StoreWrapper, _FaultInjector):
    """An object store whose requests fail by rules. A pickled copy starts its rules and its lots anew.

    Args:
        inner: The store.
        rules: When which fault strikes.
        seed: Of the lots; by default drawn, and reported.
        sleep: Waits that many seconds.
    """

    _NOT_OURS = frozenset({Fault.LOST, Fault.CONFLICT})

    def __init__(
        self,
        inner: ObjectStore,
        rules: Iterable[FaultRule] = (),
        *,
        seed: int | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        StoreWrapper.__init__(self, inner)
        _FaultInjector.__init__(self, rules, seed, sleep)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.inner, self.rules, self.seed)

    def __repr__(self) -> str:
        return f"FaultyStore({self.inner!r}, seed={self.seed})"

    def _call(self, request: StoreRequest, perform: Callable[[], T]) -> T:
        rule, message = self._choose(request.operation, request.key)
        if rule is None:
            return perform()
        with self._lock:
            lot = self._rng.random()
        match rule.fault:
            case Fault.ERROR_BEFORE:
                raise (rule.error or StoreUnavailable)(message)
            case Fault.ERROR_AFTER:
                perform()
                raise (rule.error or StoreTimeout)(message)
            case Fault.MISSING:
                raise (UploadMissing if request.operation in _OF_UPLOADS else ObjectMissing)(message)
            case Fault.SLOW:
                self._sleep(rule.delay_s)
                return perform()
            case _:
                return cast("T", _damage(cast("memoryview", perform()), rule.fault, lot))


class FaultyMetadataStore(_FaultInjector):
    """A metadata store whose calls fail by rules; watches are passed through unharmed.

    Args:
        inner: The store that does the work; closed with this one.
        rules: When which fault strikes.
        seed: Of the lots; by default drawn, and reported.
        sleep: Waits that many seconds.
    """

    _NOT_OURS = frozenset({Fault.SHORT_READ, Fault.FLIPPED_BIT, Fault.MISSING})

    def __init__(
        self,
        inner: MetadataStore,
        rules: Iterable[FaultRule] = (),
        *,
        seed: int | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.inner = inner
        super().__init__(rules, seed, sleep)

    def __repr__(self) -> str:
        return f"FaultyMetadataStore({self.inner!r}, seed={self.seed})"

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

    def put(self, path: str, value: bytes, expected_version: int, *, guard: str | None = None) -> int:
        """Change the node, or fail as a rule says."""
        return self._call("put", path, lambda: self.inner.put(path, value, expected_version, guard=guard))

    def delete(self, path: str, expected_version: int, *, guard: str | None = None) -> None:
        """Remove the node, or fail as a rule says."""
        self._call("delete", path, lambda: self.inner.delete(path, expected_version, guard=guard))

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        """Watch the inner store."""
        return self.inner.watch(path, callback)

    def close(self) -> None:
        """Close the inner store."""
        self.inner.close()

    def _call(self, operation: str, path: str, perform: Callable[[], T]) -> T:
        rule, message = self._choose(operation, path)
        if rule is None:
            return perform()
        match rule.fault:
            case Fault.ERROR_BEFORE:
                raise (rule.error or MetadataUnavailable)(message)
            case Fault.ERROR_AFTER:
                perform()
                raise (rule.error or (CommitUnknown if operation in CHANGES else MetadataUnavailable))(message)
            case Fault.LOST:
                raise CommitUnknown(message)
            case Fault.CONFLICT:
                raise VersionConflict(message)
            case _:
                self._sleep(rule.delay_s)
                return perform()


def _damage(data: memoryview, fault: Fault, lot: float) -> memoryview:
    """Damage a buffer where the lot, from 0 to below 1, falls; an empty one stays as it is."""
    if not data.nbytes:
        return data
    if fault is Fault.SHORT_READ:
        return data[: int(lot * data.nbytes)]
    copy = bytearray(data)
    bit = int(lot * data.nbytes * 8)
    copy[bit // 8] ^= 1 << bit % 8
    return memoryview(copy).toreadonly()


def _rebuild(inner: ObjectStore, rules: tuple[FaultRule, ...], seed: int) -> FaultyStore:
    return FaultyStore(inner, rules, seed=seed)
