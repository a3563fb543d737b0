"""The engine of the demo: ``afterglow serve`` as anybody would start it, in a process of its own that ends with us."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from afterglow.errors import AfterglowError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOG_FILE: Final = "serve.log"
"""In the home: what the engine has to say beside its two lines."""

_READY: Final = re.compile(r"ready (pulsar://\S+) (http://\S+)")
_STOP_S: Final = 30.0
"""To end cleanly: Spark takes some seconds."""
_INTERRUPTED_S: Final = 1.0
"""The same where nobody wants to wait."""
_CALL_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ServedEngine:
    """A running engine."""

    service_url: str
    """For Pulsar clients."""
    admin_url: str
    summary: str
    """Tier, offload method and retention, in its own words."""

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Call its admin API.

        Args:
            method: Of HTTP.
            path: Below ``/admin/v2``.
            body: Sent as JSON.

        Returns:
            The JSON of the answer; None where it is empty.

        Raises:
            AfterglowError: It refused, or does not answer.
        """
        request = urllib.request.Request(  # noqa: S310 - an address that the engine has just told us
            f"{self.admin_url}/admin/v2/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=_CALL_S) as answer:  # noqa: S310 - likewise
                content = answer.read()
        except urllib.error.HTTPError as error:
            said = error.read().decode("utf-8", "replace")
            raise AfterglowError(f"{method} {request.full_url} was answered with {error.code}: {said}") from error
        except OSError as error:
            raise AfterglowError(f"{method} {request.full_url} was not answered: {error}") from error
        return json.loads(content) if content else None


@contextmanager
def serving(home: Path, conf: Path) -> Iterator[ServedEngine]:
    """Run an engine with streaming on for the time of a ``with``, on free ports of this machine.

    It is ended cleanly, and killed with all its processes where it does not end or nobody wants to wait.

    Raises:
        AfterglowError: It does not start.
    """
    command = [sys.executable, "-m", "afterglow", "serve", "--home", str(home), "--streaming", "--conf", str(conf)]
    with (home / LOG_FILE).open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter
            [*command, "--listen", "127.0.0.1", "--port", "0", "--http-port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # Ctrl-C reaches us alone: clients are closed before their engine
        )
    stop_s = _STOP_S
    try:
        yield _ready(process, home / LOG_FILE)
    except (KeyboardInterrupt, SystemExit):
        stop_s = _INTERRUPTED_S
        raise
    finally:
        _end(process, stop_s)


def _ready(process: subprocess.Popen[str], log: Path) -> ServedEngine:
    """Wait for its two lines."""
    assert process.stdout is not None
    match = _READY.match(process.stdout.readline())
    if match is None:
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise AfterglowError(f"afterglow serve did not start: {said[-1] if said else f'see {log}'}")
    return ServedEngine(match[1], match[2], process.stdout.readline().strip())


def _end(process: subprocess.Popen[str], stop_s: float) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(stop_s)
    except BaseException as error:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.killpg(process.pid, signal.SIGKILL)  # it leads a group; workers of its Spark end when that does
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
    finally:
        assert process.stdout is not None
        process.stdout.close()
