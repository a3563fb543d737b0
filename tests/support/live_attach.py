"""A real ``afterglow attach`` process for tests, its Spark workers, and what it has done to the topics of a cluster."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from tests.support.served_topics import eventually

from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.format.proto.afterglow_pb2 import DeleteRecord
from afterglow.metadata.address import open_metadata
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.support.killable_s3 import KillableS3
    from tests.support.pulsar_cluster import PulsarCluster
    from tests.support.pulsar_standalone import PulsarStandalone
    from tests.support.servers import S3Server

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

CLUSTER: Final = "lab"
"""Name of the clusters of :mod:`tests.support.pulsar_cluster`."""
SUBSCRIPTION: Final = "afterglow"
_START_S: Final = 300.0
_STOP_S: Final = 120.0
_NOTED_LINES: Final = 200
_WORKER: Final = b"-m\0afterglow.spark.daemon"


class AttachedProcess:
    """``afterglow attach``, which can be killed and started again; a context manager.

    Args:
        admin_url: Admin API of the cluster.
        topics: Regular expression of topics.
        tier: Address of the tier.
        metadata: Address of our metadata.
        options: Further ones of the command.
        environ: Added to this process's own.
    """

    def __init__(
        self,
        admin_url: str,
        topics: str,
        tier: str,
        metadata: str,
        *options: str,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.lines: list[str] = []
        """What it has printed, over all its lives."""
        where = ["--topics", topics, "--tier", tier, "--metadata", metadata]
        self._command = [sys.executable, "-u", "-m", "afterglow", "attach", admin_url, *where, *options]
        self._environ = dict(environ or {})
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._ready = threading.Event()

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is not None:
            error.add_note("\n".join(("output of afterglow attach:", *self.lines[-_NOTED_LINES:])))
        self.kill()

    def launch(self) -> None:
        """Start it, without waiting until it is ready."""
        self._ready = ready = threading.Event()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **self._environ},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._listen, args=(self._process, ready), daemon=True)
        self._reader.start()

    def start(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            RuntimeError: It ended before; the message has what it said.
        """
        self.launch()
        if not self._ready.wait(_START_S) or not self.is_running:
            self.kill()
            raise RuntimeError("afterglow attach did not start:\n" + "\n".join(self.lines[-_NOTED_LINES:]))

    def refused(self) -> str:
        """Start it where it must not start; returns its error.

        Raises:
            AssertionError: It started, or ended without an error of one line.
        """
        self.launch()
        assert self._process is not None
        assert self._reader is not None
        code = self._process.wait(_START_S)
        self._reader.join(_STOP_S)
        errors = [line for line in self.lines if line.startswith("afterglow: ")]
        assert code in {1, 2}, (code, self.lines)
        assert len(errors) == 1, self.lines
        assert not any("Traceback" in line for line in self.lines), self.lines
        return errors[0].removeprefix("afterglow: ")

    def stop(self) -> int:
        """End it cleanly; returns its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(_STOP_S)

    def crash(self) -> None:
        """Kill the process alone, as ``kill -9`` does; its JVM and its Spark workers are left to themselves."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(_STOP_S)

    def kill(self) -> None:
        """Kill it and everything that it has started."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_STOP_S)

    def workers(self) -> tuple[int, ...]:
        """Process ids of its Spark workers that run tasks: the children of its daemon."""
        if self._process is None:
            return ()
        session = self._process.pid
        daemons = {pid: parent for pid, parent in _processes(session) if _WORKER in _command_line(pid)}
        return tuple(pid for pid, parent in daemons.items() if parent in daemons)

    def _listen(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line.rstrip())
            if re.match(r"ready ", line):
                ready.set()
        ready.set()


def _processes(session: int) -> Iterator[tuple[int, int]]:
    """Process ids of a session, each with that of its parent."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            pid, _, rest = path.read_text().partition(" ")
            _, parent, _, its_session, *_ = rest.rpartition(")")[2].split()
            if int(its_session) == session:
                yield int(pid), int(parent)


def _command_line(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def attach_options(
    s3: KillableS3 | S3Server, settings: Mapping[str, str] | None = None, *, segment_s: int = 3
) -> list[str]:
    """Options of ``afterglow attach`` for a tier on an S3 server, segments of a few seconds, and any free port."""
    wanted = {
        "s3ManagedLedgerOffloadServiceEndpoint": s3.endpoint,
        "s3ManagedLedgerOffloadRegion": s3.region,
        "s3ManagedLedgerOffloadCredentialId": s3.access_key,
        "s3ManagedLedgerOffloadCredentialSecret": s3.secret_key,
        "maxOffloadSegmentRolloverTimeInSeconds": str(segment_s),
        **(settings or {}),
    }
    return ["--http-port", "0", *(part for name, value in wanted.items() for part in ("--set", f"{name}={value}"))]


# --- what it has done -------------------------------------------------------------------------------------------------


def is_untouched(metadata: Path) -> bool:
    """Whether no record was written to a SQLite store."""
    if not metadata.exists():
        return True
    with closing(open_metadata(f"sqlite:{metadata}", read_only=True)) as store:
        return not store.children("/afterglow")


def ledgers_of(metadata: str, topic: str, cluster: str = CLUSTER) -> list[ManagedLedgerInfo.LedgerInfo]:
    """Our copy of a topic's ledger list; empty if it is not attached."""
    with closing(open_metadata(metadata, read_only=True)) as store:
        found = store.get(AfterglowPaths(cluster).managed_ledger(TopicName.parse(topic).managed_ledger_name))
        return [] if found is None or not found.value else list(parse_managed_ledger(found.value).ledgerInfo)


def unfinished_of(metadata: str, topic: str, cluster: str = CLUSTER) -> list[str]:
    """Paths of a topic's uploads, and of pending deletes of objects that were committed."""
    name, paths = TopicName.parse(topic).managed_ledger_name, AfterglowPaths(cluster)
    with closing(open_metadata(metadata, read_only=True)) as store:
        uploads, deletes = (
            [f"{node}/{child}" for child in store.children(node)] for node in (paths.uploads(name), paths.deletes(name))
        )
        intents = {path: found for path in deletes if (found := store.get(path)) is not None}
    return uploads + [path for path, found in intents.items() if not DeleteRecord.FromString(found.value).unfinished]


def backlog_of(cluster: PulsarCluster | PulsarStandalone, topic: str) -> int | None:
    """Messages that the subscription of attach still holds back; None if there is no such subscription."""
    stats: dict[str, Any] = cluster.admin("GET", f"{topic.replace('://', '/')}/stats")
    found = stats["subscriptions"].get(SUBSCRIPTION)
    return None if found is None else int(found["msgBacklog"])


def wait_for_tier(cluster: PulsarCluster | PulsarStandalone, topics: Sequence[str], limit_s: float = 300.0) -> None:
    """Wait until attach holds nothing back: every entry is in committed segments.

    Raises:
        AssertionError: Some are not, in time.
    """
    for topic in topics:
        eventually(
            lambda topic=topic: backlog_of(cluster, topic) == 0,  # type: ignore[misc]
            lambda topic=topic: f"{topic}: {backlog_of(cluster, topic)} messages are held back",  # type: ignore[misc]
            limit_s,
        )


def verified(source: str, metadata: str, s3: KillableS3 | S3Server, *options: str) -> str:
    """Run ``afterglow verify`` on what attach has written; returns what it printed.

    Raises:
        AssertionError: It found a fault.
    """
    command = [sys.executable, "-m", "afterglow", "verify", source, "--metadata", metadata, "--grace", "0s", *options]
    environ = {**os.environ, "ACCESS_KEY_ID": s3.access_key, "ACCESS_KEY_SECRET": s3.secret_key, "COLUMNS": "200"}
    done = subprocess.run(command, env=environ, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
