"""``afterglow`` with probes, for ``bench.latency``: ``python -m bench.traced_server serve …``.

When it ends, it writes the file that ``BENCH_TRACE`` names: spans of monotonic time in seconds, by what happened.

* ``sync``: the journal's thread waited for a sync.
* ``commit``: it wrote a group, with its sync.
* ``late``: the event loop was late. Of that, ``processor`` is the time that its thread waited for a processor; in the
  rest it worked, or waited for the interpreter.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from afterglow.cli import main
from afterglow.hot.local.commit import Committer
from afterglow.hot.local.disk import Disk
from afterglow.server.process import Server

_SAMPLE_S = 0.002
_LATE_S = 0.0005

spans: dict[str, list[tuple[float, float]]] = {"sync": [], "commit": [], "late": [], "processor": []}
samplers: list[asyncio.Task[None]] = []
"""The event loop itself keeps only weak references."""


def record(kind: str, owner: type[Any], name: str) -> None:
    """Record the calls of a method on the journal's thread."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def recorded(*args: Any) -> Any:
        begin = time.monotonic()
        try:
            return original(*args)
        finally:
            if threading.current_thread().name == "afterglow-journal":
                spans[kind].append((begin, time.monotonic()))

    setattr(owner, name, recorded)


async def sample_loop() -> None:
    """Record when the event loop is late."""
    stat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")

    def waited_s() -> float:
        return int(stat.read_text().split()[1]) / 1e9

    waited = waited_s()
    while True:
        due = time.monotonic() + _SAMPLE_S
        await asyncio.sleep(_SAMPLE_S)
        now = time.monotonic()
        before, waited = waited, waited_s()
        if now - due > _LATE_S:
            spans["late"].append((due, now))
            spans["processor"].append((due, due + min(waited - before, now - due)))


def trace() -> None:
    """Install the probes."""
    record("sync", Disk, "sync")
    record("commit", Committer, "_commit")
    original = Server.start

    async def started(*args: Any, **options: Any) -> Server:
        server = await original(*args, **options)
        samplers.append(asyncio.create_task(sample_loop()))
        return server

    Server.start = started  # type: ignore[method-assign]


if __name__ == "__main__":
    trace()
    try:
        main()
    finally:
        Path(os.environ["BENCH_TRACE"]).write_text(json.dumps(spans))
