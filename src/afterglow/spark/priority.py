"""Idle priority of a local Spark, for as long as that does not starve it.

Offload then uses only processor time that nothing else wants, so that receipts of producers do not wait for it. Linux
has the policy ``SCHED_IDLE`` for that; elsewhere Spark gets the lowest nice level, under which it cannot starve.

Under ``SCHED_IDLE`` a machine that is busy for minutes would leave offload nothing, and the hot log would grow. Spark
therefore gets normal priority for ten minutes when its work could run for ten seconds and got less than a tenth of a
core. Linux lets only privileged processes leave ``SCHED_IDLE``. For others Spark is started anew, and its tasks are
repeated.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
"""Between two ticks of :class:`PriorityKeeper`."""
_STARVED_AFTER_S: Final = 10.0
_LEAST_SHARE: Final = 0.1
"""Of one core."""
_NORMAL_S: Final = 600.0
_NICE: Final = 19
_PASSES: Final = 5


class Processes(Protocol):
    """The processes of one Spark."""

    def lower(self) -> None:
        """Give all threads idle priority; processes and threads that they start inherit it.

        Raises:
            OSError: The system refuses it.
        """
        ...

    def restore(self) -> bool:
        """Give all threads normal priority; returns whether the system allowed it."""
        ...

    def cpu_seconds(self) -> float:
        """Processor time so far, with that of processes that have ended."""
        ...

    def is_runnable(self) -> bool:
        """Whether any thread runs, or waits for nothing but a processor."""
        ...


class ProcessTree:
    """A process and all below it, by their threads; see :class:`Processes`. Linux has all of it.

    Args:
        root: Process id.
    """

    def __init__(self, root: int) -> None:
        self._root = root

    def lower(self) -> None:
        """See the protocol."""
        if not _has_idle_policy():
            os.setpriority(os.PRIO_PROCESS, self._root, _NICE)
            return
        self._set_policy(os.SCHED_IDLE)

    def restore(self) -> bool:
        """See the protocol."""
        if not _has_idle_policy():
            return False
        try:
            self._set_policy(os.SCHED_OTHER)
        except PermissionError:
            return False
        return True

    def cpu_seconds(self) -> float:
        """See the protocol."""
        ticks = sum(
            sum(map(int, fields[11:15])) for pid in self._processes() if (fields := _stat(Path(f"/proc/{pid}")))
        )
        return ticks / os.sysconf("SC_CLK_TCK")

    def is_runnable(self) -> bool:
        """See the protocol."""
        return any(_stat(thread)[:1] == ["R"] for pid in self._processes() for thread in _threads(pid))

    def _set_policy(self, policy: int) -> None:
        # A thread that is not changed yet may start others, which then have its priority.
        for _ in range(_PASSES):
            changed = False
            for pid in self._processes():
                for thread in _threads(pid):
                    with suppress(ProcessLookupError):
                        if os.sched_getscheduler(int(thread.name)) != policy:
                            os.sched_setscheduler(int(thread.name), policy, os.sched_param(0))
                            changed = True
            if not changed:
                return

    def _processes(self) -> Iterator[int]:
        waiting = [self._root]
        while waiting:
            pid = waiting.pop()
            yield pid
            for thread in _threads(pid):
                with suppress(OSError):
                    waiting += map(int, (thread / "children").read_text().split())


def _has_idle_policy() -> bool:
    return hasattr(os, "SCHED_IDLE") and Path("/proc/self/stat").exists()


def _threads(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # it has ended
        return []


def _stat(directory: Path) -> list[str]:
    """Fields of ``stat`` from the state on; empty if the process or thread has ended."""
    try:
        return (directory / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


class Starvation:
    """Judges samples of processes that have work: whether they got next to no processor time, and wanted it.

    A sample without a runnable thread starts the judgement anew: the work waits for something else, such as the tier.
    """

    def __init__(self) -> None:
        self._since: tuple[float, float] | None = None

    def reset(self) -> None:
        """Start anew."""
        self._since = None

    def is_seen(self, now_s: float, cpu_s: float, *, runnable: bool) -> bool:
        """Add a sample; returns whether the processes starve."""
        if not runnable:
            self._since = None
            return False
        if self._since is None:
            self._since = now_s, cpu_s
            return False
        begin_s, begin_cpu_s = self._since
        elapsed_s = now_s - begin_s
        if elapsed_s < _STARVED_AFTER_S:
            return False
        self._since = now_s, cpu_s
        return cpu_s - begin_cpu_s < _LEAST_SHARE * elapsed_s


class PriorityKeeper:
    """Lowers the priority of a Spark, and restores it while Spark would starve. Thread-safe.

    Args:
        restart: Ends Spark, which is then started anew; called if the system does not allow to restore its priority.
        monotonic: Clock in seconds.
    """

    def __init__(self, restart: Callable[[], None], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._restart = restart
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._starvation = Starvation()
        self._processes: Processes | None = None
        self._idle = False
        self._normal_until_s = monotonic()

    def begin(self, processes: Processes) -> None:
        """A Spark has started."""
        with self._lock:
            self._processes = processes
            self._idle = False
            self._lower_if_due(processes)

    def tick(self, *, busy: bool) -> None:
        """Adjust the priority; to be called every ``INTERVAL_S``.

        Args:
            busy: Whether Spark has work.
        """
        with self._lock:
            processes = self._processes
            if processes is None:
                return
            if not busy:
                self._starvation.reset()
                self._lower_if_due(processes)
            elif self._idle:
                now_s, runnable = self._monotonic(), processes.is_runnable()
                if self._starvation.is_seen(now_s, processes.cpu_seconds(), runnable=runnable):
                    self._on_starvation(processes)

    def end(self) -> bool:
        """Spark is about to end: give it normal priority; returns whether it has it."""
        with self._lock:
            processes, self._processes = self._processes, None
            return processes is None or not self._idle or processes.restore()

    def _on_starvation(self, processes: Processes) -> None:
        self._normal_until_s = self._monotonic() + _NORMAL_S
        self._starvation.reset()
        _log.warning(
            "Spark got less than %.0f%% of a core for %.0f s at idle priority, and runs at normal priority for the "
            "next %.0f minutes; if this repeats, give the machine more cores or set sparkIdlePriority=false",
            *(100 * _LEAST_SHARE, _STARVED_AFTER_S, _NORMAL_S / 60),
        )
        self._idle = not processes.restore()
        if self._idle:
            self._processes = None
            self._restart()

    def _lower_if_due(self, processes: Processes) -> None:
        if self._idle or self._monotonic() < self._normal_until_s:
            return
        try:
            processes.lower()
        except OSError as error:
            self._processes = None
            _log.warning("Spark keeps its priority, since the system does not allow to lower it: %s", error)
        else:
            self._idle = True
