"""A Spark standalone cluster on this machine: a master and workers from PySpark's own wheel, each a JVM of its own.

Its executors can be kept from seeing directories of this machine, as if they ran on another.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.support.servers import running

from afterglow.spark.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["can_hide", "standalone_cluster"]


@contextmanager
def standalone_cluster(directory: Path, *, workers: int = 2, hidden: Path | None = None) -> Iterator[str]:
    """Run a cluster on 127.0.0.1 until the block ends.

    Args:
        directory: Where workers keep their files.
        workers: How many, of one core each.
        hidden: A directory that executors see empty; :func:`can_hide` tells whether that can be.

    Yields:
        The master's address. Workers register with it in their own time.

    Raises:
        ServerUnavailable: It does not start.
        MissingDependency: PySpark or a Java is missing.
    """
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {"JAVA_HOME": str(find_java().home), "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    deploy = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy"]
    listen = ["--host", "127.0.0.1", "--webui-port", "0", "--port"]

    def master(port: int) -> Sequence[str]:
        return [deploy[0], f"{deploy[1]}.master.Master", *listen, str(port)]

    with ExitStack() as stack:
        url = f"spark://127.0.0.1:{stack.enter_context(running(master, environment))}"
        for number in range(workers):

            def worker(port: int, number: int = number) -> Sequence[str]:
                room = ["--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"worker-{number}")]
                command = [deploy[0], f"{deploy[1]}.worker.Worker", *listen, str(port), *room, url]
                return command if hidden is None else _hiding(hidden, command)

            stack.enter_context(running(worker, environment))
        yield url


@cache
def can_hide() -> str | None:
    """Why directories cannot be hidden from a process on this machine; None where they can."""
    if shutil.which("unshare") is None:
        return "there is no unshare(1) on this machine"
    with TemporaryDirectory() as directory:
        probe = Path(directory, "probe")
        probe.touch()
        found = subprocess.run(
            _hiding(Path(directory), ["test", "!", "-e", str(probe)]), capture_output=True, text=True, check=False
        )
    return None if found.returncode == 0 else f"no mount of one's own can be had here: {found.stderr.strip()}"


def _hiding(hidden: Path, command: Sequence[str]) -> Sequence[str]:
    """The command with mounts of its own, in which a directory is empty; as root in its own eyes, if need be."""
    mount = f"mount -t tmpfs tmpfs {shlex.quote(str(hidden))} && exec {shlex.join(command)}"
    return ["unshare", "--mount", "--map-root-user", "sh", "-c", mount]
