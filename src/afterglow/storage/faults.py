"""A store that fails as real ones do, by script or by lot: for tests, simulation and trials of an operator's alarms.

Rules are asked in their order, and the first that applies to a request strikes. With the same seed, rules and order of
requests the same faults come; the seed stands in every injected error and in ``repr``.
"""

from __future__ import annotations

import enum
import random
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from threading import Lock
from typing import TYPE_CHECKING, TypeVar, cast

from afterglow.errors import ConfigError, ObjectMissing, StoreTimeout, StoreUnavailable, UploadMissing
from afterglow.storage.wrapper import OPERATIONS, StoreWrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from afterglow.errors import StorageError
    from afterglow.storage.store import ObjectStore
    from afterglow.storage.wrapper import Call

__all__ = ["Fault", "FaultRule", "FaultyStore", "InjectedFault"]

T = TypeVar("T")


class Fault(enum.Enum):
    """How a request goes wrong."""

    ERROR_BEFORE = "error before effect"
    ERROR_AFTER = "error after effect"
    SLOW = "slow"
    SHORT_READ = "short read"
    FLIPPED_BIT = "flipped bit"
    MISSING = "missing"


_OF_UPLOADS = frozenset({"upload_part", "list_parts", "complete_upload"})
_APPLIES = {
    Fault.SHORT_READ: frozenset({"get"}),
    Fault.FLIPPED_BIT: frozenset({"get"}),
    Fault.MISSING: frozenset({"get", "head"}) | _OF_UPLOADS,
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
    """Shell pattern that the key, or the prefix of a listing, must match."""
    skip: int = 0
    """Requests that match are let through this often first."""
    times: int | None = 1
    """Strikes at most this often; None for ever."""
    probability: float = 1.0
    """Of striking a request that matches."""
    error: type[StorageError] | None = None
    """Raised by ``ERROR_BEFORE`` (else ``StoreUnavailable``) and ``ERROR_AFTER`` (else ``StoreTimeout``)."""
    delay_s: float = 1.0
    """How long ``SLOW`` waits before the request goes on."""

    def __post_init__(self) -> None:
        if wrong := self.operations - _APPLIES.get(self.fault, OPERATIONS):
            raise ConfigError(f"fault {self.fault.value!r} cannot happen to {', '.join(sorted(wrong))}")

    def matches(self, call: Call) -> bool:
        """Tell whether the rule speaks of this request at all."""
        operations = self.operations or _APPLIES.get(self.fault, OPERATIONS)
        return call.operation in operations and fnmatchcase(call.key, self.key)


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that struck."""

    number: int
    """Which request of this store it was, from 1."""
    call: Call
    fault: Fault


class FaultyStore(StoreWrapper):
    """A store that lets rules spoil its requests. A pickled copy starts its rules and its lots anew.

    Args:
        inner: The store.
        rules: When which fault strikes.
        seed: Of the lots; by default drawn, and reported.
        sleep: Waits that many seconds.
    """

    def __init__(
        self,
        inner: ObjectStore,
        rules: Iterable[FaultRule] = (),
        *,
        seed: int | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self.rules = tuple(rules)
        self.seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        self._rng = random.Random(self.seed)  # noqa: S311 - must be repeatable
        self._sleep = sleep
        self._lock = Lock()
        self._requests = 0
        self._matched = [0] * len(self.rules)
        self._struck = [0] * len(self.rules)
        self._injected: list[InjectedFault] = []

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.inner, self.rules, self.seed)

    def __repr__(self) -> str:
        return f"FaultyStore({self.inner!r}, seed={self.seed})"

    @property
    def injected(self) -> tuple[InjectedFault, ...]:
        """The faults that have struck so far, in their order."""
        with self._lock:
            return tuple(self._injected)

    def _call(self, call: Call, perform: Callable[[], T]) -> T:
        rule, number, lot = self._choose(call)
        if rule is None:
            return perform()
        message = (
            f"injected fault: {rule.fault.value} in {call.operation} of {call.key!r} "
            f"(request {number}, seed {self.seed})"
        )
        match rule.fault:
            case Fault.ERROR_BEFORE:
                raise (rule.error or StoreUnavailable)(message)
            case Fault.ERROR_AFTER:
                perform()
                raise (rule.error or StoreTimeout)(message)
            case Fault.MISSING:
                raise (UploadMissing if call.operation in _OF_UPLOADS else ObjectMissing)(message)
            case Fault.SLOW:
                self._sleep(rule.delay_s)
                return perform()
            case Fault.SHORT_READ | Fault.FLIPPED_BIT:
                return cast("T", _damage(cast("memoryview", perform()), rule.fault, lot))

    def _choose(self, call: Call) -> tuple[FaultRule | None, int, float]:
        with self._lock:
            self._requests += 1
            for index, rule in enumerate(self.rules):
                if not rule.matches(call):
                    continue
                self._matched[index] += 1
                if self._matched[index] <= rule.skip or self._struck[index] == rule.times:
                    continue
                if rule.probability < 1.0 and self._rng.random() >= rule.probability:
                    continue
                self._struck[index] += 1
                self._injected.append(InjectedFault(self._requests, call, rule.fault))
                return rule, self._requests, self._rng.random()
            return None, self._requests, 0.0


def _damage(data: memoryview, fault: Fault, lot: float) -> memoryview:
    """Spoil a buffer at the place that the lot, from 0 to below 1, falls on. Nothing can be taken from no bytes."""
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
