"""Memory and processor time of processes and all below them."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERY_S = 0.1


class Peak:
    """The most memory seen so far."""

    def __init__(self) -> None:
        self.bytes = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at intervals while the block runs."""
        ended = threading.Event()
        thread = threading.Thread(target=self._watch, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _watch(self, ended: threading.Event) -> None:
        over = False
        while not over:
            over = ended.wait(EVERY_S)  # and one look at what is held in the end
            self.bytes = max(self.bytes, sum(map(_bytes, _tree(os.getpid()))))


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and all below it, and of those that have ended and were waited for."""
    ticks = 0
    for each in _tree(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _bytes(pid: int) -> int:
    """Memory of a process, what it shares with others divided among them."""
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from _tree(int(child))
