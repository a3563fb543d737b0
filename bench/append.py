"""Durable appends of 1 KiB through the local hot log, for 1, 100 and 1,000 ledgers at the same total load.

The yardstick is a bare loop in the same run: join records of the same size in groups as large as those of the log,
checksum, write, sync.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from afterglow.hot.local import LocalLog
from afterglow.hot.local.disk import Disk
from bench.measure import keep

if TYPE_CHECKING:
    from afterglow.errors import HotLogError
    from afterglow.hot.log import Completion

ENTRY = os.urandom(1024)
APPENDS = 100_000
WINDOW = 4_000  # most appends under way at once
STEP = 1_000  # appends between looks at how many are
ROUNDS = 3
LEDGERS = (1, 100, 1_000)
GOALS = {"100 ledgers / 1 ledger": 0.9, "1000 ledgers / 1 ledger": 0.8}


class _CountingDisk(Disk):
    def __init__(self) -> None:
        self.syncs = 0

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        super().sync(descriptor)


def append_all(home: Path, ledger_count: int) -> tuple[float, int]:
    """Seconds of all appends, spread over the ledgers in turn, and syncs that they took."""
    confirmed = 0
    moved = threading.Event()
    failures: list[HotLogError] = []

    def deliver(dones: list[Completion], error: HotLogError | None) -> None:
        nonlocal confirmed
        if error is not None:
            failures.append(error)
        confirmed += len(dones)
        moved.set()

    def wait_for(count: int) -> None:
        while confirmed < count:
            moved.wait()
            moved.clear()

    disk = _CountingDisk()
    with LocalLog(home, deliver=deliver, disk=disk) as log:
        ledgers = [log.create() for _ in range(ledger_count)]
        before = disk.syncs
        start = time.perf_counter()
        for i in range(APPENDS):
            if not i % STEP:
                wait_for(i + STEP - WINDOW)
            ledgers[i % ledger_count].append((ENTRY,), ignore)
        wait_for(APPENDS)
        seconds = time.perf_counter() - start
        syncs = disk.syncs - before
    if failures:
        raise failures[0]
    return seconds, syncs


def ignore(_: HotLogError | None) -> None:
    """Nothing to do for one entry: the hook counts whole groups."""


def bare_loop(home: Path, group: int) -> float:
    """Seconds of the least that durable appends in such groups take."""
    descriptor = os.open(home / "bare", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    header = bytes(12)
    start = time.perf_counter()
    offset = 0
    for done in range(0, APPENDS, group):
        data = b"".join([header, ENTRY] * min(group, APPENDS - done))
        offset += os.pwrite(descriptor, crc32c(data).to_bytes(4, "big"), offset)
        offset += os.pwrite(descriptor, data, offset)
        os.fdatasync(descriptor)
    seconds = time.perf_counter() - start
    os.close(descriptor)
    return seconds


def main() -> None:
    bare: list[float] = []
    rates: dict[int, list[float]] = {count: [] for count in LEDGERS}
    groups: dict[int, list[float]] = {count: [] for count in LEDGERS}
    for _ in range(ROUNDS):
        for count in LEDGERS:
            with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as home:
                seconds, syncs = append_all(Path(home), count)
                rates[count].append(APPENDS / seconds)
                groups[count].append(APPENDS / syncs)
                if count == 1:
                    bare.append(APPENDS / bare_loop(Path(home), round(APPENDS / syncs)))
    rate = {count: statistics.median(found) for count, found in rates.items()}
    figures: dict[str, Any] = {"bare loop, appends/s": round(statistics.median(bare))}
    for count in LEDGERS:
        name = f"{count} ledger{'s' if count > 1 else ''}"
        figures[f"{name}, appends/s"] = round(rate[count])
        figures[f"{name}, appends per sync"] = round(statistics.median(groups[count]), 1)
    figures["1 ledger / bare loop"] = round(rate[1] / statistics.median(bare), 3)
    for count in LEDGERS[1:]:
        figures[f"{count} ledgers / 1 ledger"] = round(rate[count] / rate[1], 3)
    keep("append", figures, GOALS)
