"""Availability of tiers: which one fails, since when, and when it answers again.

Requests of this process are seen one try at a time, inside the loop that repeats them, so that a failure counts when it
happens and not when all repetitions are over. Tasks of other processes are known by their begin and their result.

A tier is *suspect* from the first failed request on. It is *unavailable* when a probe fails too, or when nothing has
succeeded for a moment: one request that fails in passing is no outage. A probe is one read of a key that does not
exist. It is made only while a tier is suspect or unavailable, or while something that was asked of it takes long and
nothing else has been answered: tasks repeat their requests where nobody here can see it. Any answer ends an outage.

A tier that is *required* is also probed once at the start, before anything is asked of it, and for as long as it fails.
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
    """Runs a probe on a thread that may wait."""

__all__ = ["FAILURES", "MonitoredStore", "Outage", "TierHealth", "spawn_thread"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

FAILURES: Final = (StoreUnavailable, BucketMissing, AccessDenied)
"""Errors after which a tier may be of no use at all. Every other error of a store is an answer."""

_PROBE_KEY: Final = "afterglow-probe"
"""No object has it."""
_CONFIRM_S: Final = 1.0
"""Without a success for so long after a failure, the tier is unavailable."""
_LONG_S: Final = 1.0
"""A request that takes longer makes a probe worth its price."""
_SILENCE_S: Final = 2.5
"""A probe without an answer for so long has failed."""
_FIRST_SILENCE_S: Final = 15.0
"""The same for the first probe of a required tier, which imports an SDK."""
_LOST_S: Final = 5.0
"""A probe without an answer for so long is not waited for: on another connection there may be one."""
_EVERY_S: Final = 1.0
"""Between two probes of a tier that fails."""
_IDLE_EVERY_S: Final = 30.0
"""The same, where nothing has been asked of it for long."""
_RIGHTS: Final = "s3:GetObject and s3:ListBucket"
"""That a probe needs: without the second, S3 denies access to a key that does not exist."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A tier that is unavailable."""

    location: str
    """Where it is."""
    since_ms: int
    """When the first request failed, epoch milliseconds."""
    error: str
    """Of the last request that failed, probes apart; one line."""
    cure: str
    """What to change."""

    def sentence(self, now_ms: int) -> str:
        """Which tier fails, and since when."""
        seconds = max(now_ms - self.since_ms, 0) / 1000
        return f"The tier {self.location} has been unavailable since {_at(self.since_ms)}, for {seconds:.0f} s"


def spawn_thread(probe: Callable[[], None]) -> None:
    """Run a probe on a thread of its own, which does not keep the process from ending."""
    threading.Thread(target=probe, name="afterglow-probe", daemon=True).start()


@dataclass(slots=True)
class _Tier:
    """What is known of one tier. Guarded by the lock of :class:`TierHealth`; times of the clock that only passes."""

    used_s: float
    """When something was last asked of it, probes apart."""
    answered_s: float
    """When it last answered, or became known."""
    has_answered: bool = False
    """Whether it ever has. Before, silence means nothing: the first request imports an SDK, which may take seconds."""
    store: ObjectStore | None = None
    """For probes."""
    outstanding: dict[object, float] = field(default_factory=dict)
    """Requests and tasks that have not ended, and when they began."""
    failed_s: float | None = None
    """When the first request failed after the last answer."""
    failed_ms: int = 0
    """The same, epoch milliseconds."""
    error: str = ""
    cure: str = ""
    required: bool = False
    """Whether failures are never forgotten."""
    unavailable: bool = False
    forgotten: bool = False
    """Whether it failed, and nobody has asked it for anything since."""
    probe: int = 0
    """Number of the last probe."""
    probing: bool = False
    probed_s: float = float("-inf")
    """When the last probe began."""


class TierHealth:
    """Health of all tiers that a process uses. Thread-safe; never waits for a tier.

    Args:
        now_ms: The time, epoch milliseconds.
        monotonic: Seconds from any origin, never going back.
        spawn: Runs probes; None: none are made.
        idle_s: A failing tier that nobody has asked for anything for so long is not of interest any more.
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
        self._tiers: dict[str, _Tier] = {}
        self._recovered: list[str] = []

    # --- what is known ------------------------------------------------------------------------------------------------

    def outage(self, location: str) -> Outage | None:
        """The outage of a tier; None where it is available, as far as is known."""
        with self._lock:
            known = self._tiers.get(location)
            if known is None or not known.unavailable:
                return None
            return Outage(location, known.failed_ms, known.error, known.cure)

    def all(self) -> dict[str, Outage | None]:
        """All tiers that are in use, with their outages."""
        with self._lock:
            names = sorted(name for name, tier in self._tiers.items() if not tier.forgotten)
        return {name: self.outage(name) for name in names}

    # --- what happens -------------------------------------------------------------------------------------------------

    def monitored(self, location: str, store: ObjectStore) -> MonitoredStore:
        """A store whose requests are seen here; a probe of the tier goes to the last one that was given."""
        with self._lock:
            self._known(location).store = store
        return MonitoredStore(store, location, self)

    def require(self, location: str) -> None:
        """Probe a tier now, whose store must have been given, and for as long as it fails. Does not wait for it."""
        if self._spawn is None:
            return
        with self._lock:
            self._known(location).required = True
            probe = self._begin_probe(location, self._monotonic())
        self._spawn(probe)

    def began(self, location: str, request: object) -> None:
        """Something was asked of a tier: a request, or a task."""
        with self._lock:
            known = self._known(location)
            known.used_s = known.outstanding[request] = self._monotonic()
            known.forgotten = False

    def ended(self, location: str, request: object) -> None:
        """It is over, with whatever result."""
        with self._lock:
            self._known(location).outstanding.pop(request, None)

    def answered(self, location: str) -> None:
        """The tier has answered."""
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
        """A request failed, with one of :data:`FAILURES`."""
        with self._lock:
            begins = self._fail(self._known(location), error, is_probe=False)
        if begins:
            self._log_begin(location)

    def tick(self) -> tuple[str, ...]:
        """Probe where that is due, to be called every second or so; returns tiers that answer again since the last."""
        with self._lock:
            now_s = self._monotonic()
            self._forget_idle(now_s)
            begun = [name for name, tier in self._tiers.items() if self._fail_silent(tier, now_s)]
            due = [name for name, tier in self._tiers.items() if self._is_probe_due(tier, now_s)]
            probes = [self._begin_probe(name, now_s) for name in due]
            recovered, self._recovered = tuple(self._recovered), []
        for name in begun:
            self._log_begin(name)
        if self._spawn is not None:
            for probe in probes:
                self._spawn(probe)
        return recovered

    # --- inside -------------------------------------------------------------------------------------------------------

    def _known(self, name: str) -> _Tier:
        known = self._tiers.get(name)
        if known is None:
            now_s = self._monotonic()
            known = self._tiers[name] = _Tier(now_s, now_s)
        return known

    def _fail(self, tier: _Tier, error: Exception, *, is_probe: bool, ago_s: float = 0.0) -> bool:
        """Take note of a failure; returns whether an outage begins with it. The lock must be held."""
        now_s = self._monotonic()
        if tier.failed_s is None or not is_probe:  # what was asked for says more than a probe
            words = str(error) if isinstance(error, StorageError) else repr(error)  # of an SDK: its kind says most
            tier.error = (words.splitlines() or [""])[0]
            tier.cure = cure_for(error, _RIGHTS)
        if tier.failed_s is None:
            tier.failed_s, tier.failed_ms = now_s - ago_s, self._now_ms() - round(1000 * ago_s)
        begins = not tier.unavailable and (is_probe or now_s - tier.failed_s >= _CONFIRM_S)
        tier.unavailable = tier.unavailable or begins
        return begins

    def _log_begin(self, name: str) -> None:
        if (outage := self.outage(name)) is not None:
            at = _at(outage.since_ms)
            _log.warning("the tier %s has been unavailable since %s: %s; %s", name, at, outage.error, outage.cure)

    def _fail_silent(self, tier: _Tier, now_s: float) -> bool:
        """Take note of a probe without an answer; returns whether an outage begins with it."""
        limit_s = _SILENCE_S if tier.has_answered else _FIRST_SILENCE_S
        known_to_answer = tier.has_answered or tier.required
        if not (tier.probing and known_to_answer and now_s - tier.probed_s >= limit_s):
            return False
        silence = StoreTimeout(f"a probe got no answer within {limit_s:g} s")
        return self._fail(tier, silence, is_probe=True, ago_s=limit_s)

    def _is_probe_due(self, tier: _Tier, now_s: float) -> bool:
        if self._spawn is None or tier.store is None:
            return False
        since_s = now_s - tier.probed_s
        if tier.probing:
            return tier.has_answered and since_s >= _LOST_S
        if tier.failed_s is not None:
            return since_s >= (_IDLE_EVERY_S if now_s - tier.used_s >= self._idle_s else _EVERY_S)
        oldest_s = min(tier.outstanding.values(), default=now_s)
        return now_s - max(oldest_s, tier.answered_s) >= _LONG_S

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
                pass  # that there is no such object is the answer
            except Exception as raised:  # noqa: BLE001 - of an SDK; the next probe must not wait for this one
                error = raised
            begins = False
            with self._lock:
                if tier.probe == number:  # else it was lost, and another has its place
                    tier.probing = False
                    begins = error is not None and self._fail(tier, error, is_probe=True)
            if error is None:
                self.answered(name)
            elif begins:
                self._log_begin(name)

        return probe

    def _forget_idle(self, now_s: float) -> None:
        """Forget failures of tiers that nobody needs: their policies were changed, or their topics are gone."""
        for tier in self._tiers.values():
            if (
                tier.failed_s is not None
                and not tier.required
                and not tier.outstanding
                and now_s - tier.used_s >= self._idle_s
            ):
                tier.failed_s, tier.unavailable, tier.forgotten = None, False, True


class MonitoredStore(StoreWrapper):
    """A store whose requests tell how its tier is. A pickled copy is the store alone: it goes to another process.

    Args:
        inner: The store; it repeats nothing.
        location: Of its tier.
        health: Is told of every request.
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
