"""Availability of tiers: which tier is unavailable, since when, and when it recovers.

Each attempt of a request of this process is observed, inside the retry loop, so that a failure counts when it happens
and not when all retries are over. Of tasks in other processes only their start and their result are known.

A tier is *suspect* after its first failed request. It becomes *unavailable* when a probe fails as well, or when no
request succeeds for ``_CONFIRM_S``: a single transient failure is not an outage. A probe reads a key that does not
exist. Probes run only while a tier is suspect or unavailable, or while a request or task takes long and the tier has
answered nothing else: retries inside tasks are not visible to this process. Any response ends an outage.

A *required* tier is also probed once at the start, before its first request, and for as long as it fails.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

from afterglow.errors import AccessDenied, BucketMissing, StorageError, StoreTimeout, StoreUnavailable
from afterglow.storage.doctor import cure_for
from afterglow.storage.wrapper import StoreWrapper

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from afterglow.storage.store import ObjectStore
    from afterglow.storage.wrapper import StoreRequest

    Spawn: TypeAlias = Callable[[Callable[[], None]], None]
    """Runs a probe on a thread that may block."""

__all__ = ["FAILURES", "MonitoredStore", "Outage", "TierHealth", "spawn_thread"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

FAILURES: Final = (StoreUnavailable, BucketMissing, AccessDenied)
"""Errors that count as failures of the tier. Every other error of a store is a response of an available tier."""

_PROBE_KEY: Final = "afterglow-probe"
"""Key that no object has."""
_CONFIRM_S: Final = 1.0
"""Time without a success after which a failing tier is unavailable."""
_SLOW_REQUEST_S: Final = 1.0
"""Duration of a request from which on the tier is probed."""
_PROBE_TIMEOUT_S: Final = 2.5
"""Time without a response after which a probe has failed."""
_FIRST_PROBE_TIMEOUT_S: Final = 15.0
"""The same for the first probe of a required tier, which imports an SDK."""
_PROBE_ABANDONED_S: Final = 5.0
"""Time without a response after which another probe starts: a new connection may get one."""
_PROBE_INTERVAL_S: Final = 1.0
"""Interval between probes of a failing tier."""
_IDLE_PROBE_INTERVAL_S: Final = 30.0
"""The same for an idle tier."""
_PERMISSIONS: Final = "s3:GetObject and s3:ListBucket"
"""Permissions of a probe: without the second, S3 denies access to a missing key."""


@dataclass(frozen=True, slots=True)
class Outage:
    """An unavailable tier."""

    location: str
    """Location of the tier."""
    since_ms: int
    """Time of the first failed request, epoch milliseconds."""
    error: str
    """Error of the last failed request that was not a probe; one line."""
    cure: str
    """How to fix it."""

    def sentence(self, now_ms: int) -> str:
        """Describe the outage: tier, start and duration."""
        seconds = max(now_ms - self.since_ms, 0) / 1000
        return f"The tier {self.location} has been unavailable since {_at(self.since_ms)}, for {seconds:.0f} s"


def spawn_thread(probe: Callable[[], None]) -> None:
    """Run a probe on a daemon thread of its own."""
    threading.Thread(target=probe, name="afterglow-probe", daemon=True).start()


@dataclass(slots=True)
class _TierState:
    """State of one tier. Guarded by the lock of :class:`TierHealth`; ``_s`` are times of the monotonic clock."""

    used_s: float
    """Start of the last request or task, probes excluded."""
    answered_s: float
    """Time of the last response, or of the registration."""
    has_answered: bool = False
    """Whether it ever responded. Before, a missing response means nothing: the first request imports an SDK, which may
    take seconds."""
    store: ObjectStore | None = None
    """Store for probes."""
    outstanding: dict[object, float] = field(default_factory=dict)
    """Running requests and tasks, with their start."""
    failed_s: float | None = None
    """Time of the first failure after the last response."""
    failed_ms: int = 0
    """The same, epoch milliseconds."""
    error: str = ""
    cure: str = ""
    required: bool = False
    """Whether failures are reported even while the tier is idle."""
    unavailable: bool = False
    dropped: bool = False
    """Whether it failed and has been idle since: it is not reported."""
    probe: int = 0
    """Number of the last probe."""
    probing: bool = False
    probed_s: float = float("-inf")
    """Start of the last probe."""


class TierHealth:
    """Health of all tiers that a process uses. Thread-safe; never waits for a tier.

    Args:
        now_ms: Wall clock, epoch milliseconds.
        monotonic: Monotonic clock, in seconds.
        spawn: Runs probes; None disables them.
        idle_s: Time without requests after which a failing tier is no longer reported.
    """

    def __init__(
        self,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic: Callable[[], float] = time.monotonic,
        spawn: Spawn | None = None,
        idle_s: float = 300.0,
    ) -> None:
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._spawn = spawn
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._tiers: dict[str, _TierState] = {}
        self._recovered: list[str] = []

    # --- reports ------------------------------------------------------------------------------------------------------

    def outage(self, location: str) -> Outage | None:
        """Return the outage of a tier; None if no outage is known."""
        with self._lock:
            known = self._tiers.get(location)
            if known is None or not known.unavailable:
                return None
            return Outage(location, known.failed_ms, known.error, known.cure)

    def all(self) -> dict[str, Outage | None]:
        """Return all tiers in use, with their outages."""
        with self._lock:
            names = sorted(name for name, tier in self._tiers.items() if not tier.dropped)
        return {name: self.outage(name) for name in names}

    # --- events -------------------------------------------------------------------------------------------------------

    def monitored(self, location: str, store: ObjectStore) -> MonitoredStore:
        """Wrap a store so that its requests are observed; probes of the tier use the last store wrapped."""
        with self._lock:
            self._known(location).store = store
        return MonitoredStore(store, location, self)

    def require(self, location: str) -> None:
        """Probe a tier now and for as long as it fails, without waiting; :meth:`monitored` must have its store."""
        if self._spawn is None:
            return
        with self._lock:
            self._known(location).required = True
            probe = self._begin_probe(location, self._monotonic())
        self._spawn(probe)

    def began(self, location: str, request: object) -> None:
        """Record the start of a request or task."""
        with self._lock:
            known = self._known(location)
            known.used_s = known.outstanding[request] = self._monotonic()
            known.dropped = False

    def ended(self, location: str, request: object) -> None:
        """Record the end of a request or task, successful or not."""
        with self._lock:
            self._known(location).outstanding.pop(request, None)

    def answered(self, location: str) -> None:
        """Record a response of a tier."""
        with self._lock:
            known = self._known(location)
            since_s, unavailable = known.failed_s, known.unavailable
            known.answered_s, known.has_answered = self._monotonic(), True
            known.failed_s, known.unavailable = None, False
            if unavailable:
                self._recovered.append(location)
        if unavailable and since_s is not None:
            _log.warning("the tier %s is available again after %.1f s", location, self._monotonic() - since_s)

    def failed(self, location: str, error: StorageError) -> None:
        """Record a failed request; the error is one of :data:`FAILURES`."""
        with self._lock:
            begins = self._fail(self._known(location), error, is_probe=False)
        if begins:
            self._log_begin(location)

    def tick(self) -> tuple[str, ...]:
        """Start the probes that are due; returns the tiers that have recovered since the last call.

        The caller calls it about once per second.
        """
        with self._lock:
            now_s = self._monotonic()
            self._drop_idle(now_s)
            begun = [name for name, tier in self._tiers.items() if self._fail_timed_out(tier, now_s)]
            due = [name for name, tier in self._tiers.items() if self._is_probe_due(tier, now_s)]
            probes = [self._begin_probe(name, now_s) for name in due]
            recovered, self._recovered = tuple(self._recovered), []
        for name in begun:
            self._log_begin(name)
        if self._spawn is not None:
            for probe in probes:
                self._spawn(probe)
        return recovered

    # --- internals ----------------------------------------------------------------------------------------------------

    def _known(self, name: str) -> _TierState:
        known = self._tiers.get(name)
        if known is None:
            now_s = self._monotonic()
            known = self._tiers[name] = _TierState(now_s, now_s)
        return known

    def _fail(self, tier: _TierState, error: Exception, *, is_probe: bool, ago_s: float = 0.0) -> bool:
        """Record a failure; returns whether an outage begins with it. The lock must be held."""
        now_s = self._monotonic()
        if tier.failed_s is None or not is_probe:  # the error of a request says more than that of a probe
            # For an error of an SDK the class says more than its text.
            text = str(error) if isinstance(error, StorageError) else repr(error)
            tier.error = (text.splitlines() or [""])[0]
            tier.cure = cure_for(error, _PERMISSIONS)
        if tier.failed_s is None:
            tier.failed_s, tier.failed_ms = now_s - ago_s, self._now_ms() - round(1000 * ago_s)
        begins = not tier.unavailable and (is_probe or now_s - tier.failed_s >= _CONFIRM_S)
        tier.unavailable = tier.unavailable or begins
        return begins

    def _log_begin(self, name: str) -> None:
        if (outage := self.outage(name)) is not None:
            at = _at(outage.since_ms)
            _log.warning("the tier %s has been unavailable since %s: %s; %s", name, at, outage.error, outage.cure)

    def _fail_timed_out(self, tier: _TierState, now_s: float) -> bool:
        """Record the timeout of a running probe; returns whether an outage begins with it."""
        timeout_s = _PROBE_TIMEOUT_S if tier.has_answered else _FIRST_PROBE_TIMEOUT_S
        should_answer = tier.has_answered or tier.required
        if not (tier.probing and should_answer and now_s - tier.probed_s >= timeout_s):
            return False
        error = StoreTimeout(f"a probe got no response within {timeout_s:g} s")
        return self._fail(tier, error, is_probe=True, ago_s=timeout_s)

    def _is_probe_due(self, tier: _TierState, now_s: float) -> bool:
        if self._spawn is None or tier.store is None:
            return False
        since_s = now_s - tier.probed_s
        if tier.probing:
            return tier.has_answered and since_s >= _PROBE_ABANDONED_S
        if tier.failed_s is not None:
            is_idle = now_s - tier.used_s >= self._idle_s
            return since_s >= (_IDLE_PROBE_INTERVAL_S if is_idle else _PROBE_INTERVAL_S)
        oldest_s = min(tier.outstanding.values(), default=now_s)
        return now_s - max(oldest_s, tier.answered_s) >= _SLOW_REQUEST_S

    def _begin_probe(self, name: str, now_s: float) -> Callable[[], None]:
        tier = self._tiers[name]
        store = tier.store
        assert store is not None
        tier.probe += 1
        tier.probing, tier.probed_s = True, now_s
        number = tier.probe

        def probe() -> None:
            error: Exception | None = None
            try:
                store.get(_PROBE_KEY, 0, 1)
            except FAILURES as raised:
                error = raised
            except StorageError:
                pass  # "no such object" is the expected response
            except Exception as raised:  # noqa: BLE001 - of an SDK; `probing` must be reset in any case
                error = raised
            begins = False
            with self._lock:
                if tier.probe == number:  # else it was abandoned, and a newer probe runs
                    tier.probing = False
                    begins = error is not None and self._fail(tier, error, is_probe=True)
            if error is None:
                self.answered(name)
            elif begins:
                self._log_begin(name)

        return probe

    def _drop_idle(self, now_s: float) -> None:
        """Drop failures of idle tiers: their policies were changed, or their topics deleted."""
        for tier in self._tiers.values():
            if (
                tier.failed_s is not None
                and not tier.required
                and not tier.outstanding
                and now_s - tier.used_s >= self._idle_s
            ):
                tier.failed_s, tier.unavailable, tier.dropped = None, False, True


class MonitoredStore(StoreWrapper):
    """A store that reports its requests to :class:`TierHealth`. A pickled copy, for another process, does not.

    Args:
        inner: The store; it must not retry.
        location: Location of its tier.
        health: Receives every request and its result.
    """

    def __init__(self, inner: ObjectStore, location: str, health: TierHealth) -> None:
        super().__init__(inner)
        self._location = location
        self._health = health

    def __reduce__(self) -> tuple[object, ...]:
        return _itself, (self.inner,)

    def _call(self, call: StoreRequest, perform: Callable[[], T]) -> T:  # noqa: ARG002 - all requests are alike
        request = object()
        self._health.began(self._location, request)
        try:
            result = perform()
        except FAILURES as error:
            self._health.failed(self._location, error)
            raise
        except StorageError:
            self._health.answered(self._location)
            raise
        finally:
            self._health.ended(self._location, request)
        self._health.answered(self._location)
        return result


def _itself(store: ObjectStore) -> ObjectStore:
    return store


def _at(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
