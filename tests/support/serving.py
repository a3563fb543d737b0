"""A real ``afterglow serve`` process for tests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_READY = re.compile(r"ready (pulsar(?:\+ssl)?://\S+) (https?://\S+)")
_START_S = 300.0
_NOTED_LINES = 200


class TierRequests(NamedTuple):
    """Requests of readers to object stores."""

    heads: int
    index_reads: int
    ranged_gets: int

    def since(self, before: TierRequests) -> TierRequests:
        """Those that came after others were counted."""
        return TierRequests(*(now - then for now, then in zip(self, before, strict=True)))


@dataclass(slots=True)
class Served:
    """A running server."""

    process: subprocess.Popen[str]
    service_url: str
    admin_url: str
    lines: list[str] = field(default_factory=list)
    """What it has printed."""

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(300)

    def stop(self) -> int:
        """End it cleanly; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(300)

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """Call the admin API; returns the parsed JSON, or None if the body is empty."""
        data = None if body is None else json.dumps(body).encode()
        call = urllib.request.Request(
            f"{self.admin_url}/admin/v2/{path}", data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(call, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def tier_requests(self) -> TierRequests:
        """What it has asked of tiers so far, by its own metrics."""
        with urllib.request.urlopen(f"{self.admin_url}/metrics", timeout=60) as answer:
            text = answer.read().decode()

        def total(metric: str, label: str = "") -> int:
            samples = re.findall(rf"^{metric}\{{([^}}]*)\}} (\S+)", text, re.MULTILINE)
            return sum(int(float(value)) for labels, value in samples if label in labels)

        heads, gets = (total("afterglow_store_requests_total", f'operation="{name}"') for name in ("head", "get"))
        ranged_gets = total("afterglow_tier_reads_total")
        return TierRequests(heads, gets - ranged_gets, ranged_gets)


def start(
    home: Path,
    *options: str,
    environ: dict[str, str] | None = None,
    plain: bool = True,
    program: str = "afterglow",
) -> Served:
    """Start a server on free ports and wait until it is ready.

    Args:
        home: Its directory.
        options: Further ones of ``afterglow serve``.
        environ: Added to this process's own.
        plain: Whether to open the ports without TLS; if not, the configuration names those to open.
        program: The module that is run; another one than the default calls that one.

    Raises:
        RuntimeError: It did not start; the message has what it said.
    """
    command = [sys.executable, "-u", "-m", program, "serve", "--home", str(home)]
    if plain:
        command += ["--port", "0", "--http-port", "0"]
    process = subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environ or {})},
    )
    lines: list[str] = []
    ready = threading.Event()
    addresses: list[str] = []

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            match = _READY.search(line)
            if match and not addresses:
                addresses.extend(match.groups())
                ready.set()
        ready.set()

    threading.Thread(target=listen, daemon=True).start()
    if not ready.wait(_START_S) or not addresses:
        process.kill()
        raise RuntimeError("afterglow serve did not start:\n" + "\n".join(lines))
    return Served(process, addresses[0], addresses[1], lines)


@contextlib.contextmanager
def serving(home: Path, *options: str, plain: bool = True, program: str = "afterglow") -> Iterator[Served]:
    """A server for the time of a ``with``; see :func:`start`. A failure in it gets the server's output as a note."""
    served = start(home, *options, plain=plain, program=program)
    try:
        yield served
    except BaseException as error:
        error.add_note("\n".join(("output of afterglow serve:", *served.lines[-_NOTED_LINES:])))
        raise
    finally:
        if served.process.poll() is None:
            served.kill()
