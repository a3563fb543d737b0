"""A Spark standalone cluster on this machine: a master and workers from PySpark's own wheel, each a JVM of its own.

Its executors can be kept from seeing directories of this machine, as if they ran on another.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.support.servers import running

from afterglow.spark.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["StandaloneCluster", "can_hide", "standalone_cluster"]


@dataclass(frozen=True, slots=True)
class StandaloneCluster:
    """A running cluster."""

    url: str
    """The master's address."""
    workers: tuple[Path, ...]
    """Files with the process ids of workers."""

    def kill_worker(self, number: int) -> None:
        """Kill a worker with its executors, as the end of its machine would."""
        os.killpg(int(self.workers[number].read_text()), signal.SIGKILL)


@contextmanager
def standalone_cluster(
    directory: Path,
    *,
    workers: int = 2,
    hidden: Sequence[Path] = (),
    spark_home: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[StandaloneCluster]:
    """Run a cluster on 127.0.0.1 until the block ends. Workers register with the master in their own time.

    Args:
        directory: Where workers keep their files.
        workers: How many, of one core each.
        hidden: Directories that executors see empty; :func:`can_hide` tells whether that can be.
        spark_home: The PySpark of master and workers; None: that of this process.
        environment: Variables of workers beside our own.

    Raises:
        ServerUnavailable: It does not start.
        MissingDependency: PySpark or a Java is missing.
    """
    import pyspark

    home = spark_home or Path(pyspark.__file__).parent
    variables = {"JAVA_HOME": str(find_java().home), "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    deploy = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy"]
    listen = ["--host", "127.0.0.1", "--webui-port", "0", "--port"]

    def master(port: int) -> Sequence[str]:
        return [deploy[0], f"{deploy[1]}.master.Master", *listen, str(port)]

    with ExitStack() as stack:
        url = f"spark://127.0.0.1:{stack.enter_context(running(master, variables))}"
        pids = tuple(directory / f"worker-{number}.pid" for number in range(workers))
        for number in range(workers):

            def worker(port: int, number: int = number) -> Sequence[str]:
                room = ["--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"worker-{number}")]
                command = [deploy[0], f"{deploy[1]}.worker.Worker", *listen, str(port), *room, url]
                # The process keeps its id through every exec, and leads its process group.
                noted = ["sh", "-c", f'echo $$ > {shlex.quote(str(pids[number]))} && exec "$@"', "sh"]
                return [*noted, *(_hiding(hidden, command) if hidden else command)]

            stack.enter_context(running(worker, {**variables, **(environment or {})}))
        yield StandaloneCluster(url, pids)


@cache
def can_hide() -> str | None:
    """Why directories cannot be hidden from a process on this machine; None where they can."""
    if shutil.which("unshare") is None:
        return "there is no unshare(1) on this machine"
    with TemporaryDirectory() as directory:
        probe = Path(directory, "probe")
        probe.touch()
        found = subprocess.run(
            _hiding([Path(directory)], ["test", "!", "-e", str(probe)]), capture_output=True, text=True, check=False
        )
    return None if found.returncode == 0 else f"no mount of one's own can be had here: {found.stderr.strip()}"


def _hiding(hidden: Sequence[Path], command: Sequence[str]) -> Sequence[str]:
    """The command with mounts of its own, in which directories are empty; as root in its own eyes, if need be."""
    mounts = [f"mount -t tmpfs tmpfs {shlex.quote(str(directory))}" for directory in hidden]
    return ["unshare", "--mount", "--map-root-user", "sh", "-c", " && ".join([*mounts, f"exec {shlex.join(command)}"])]
