"""A real Pulsar cluster for tests: ZooKeeper, several bookies and a broker, each a process on 127.0.0.1, from Maven.

All together need 1.3 GB of memory and 20 seconds to start. What cannot be had is a ``MissingDependency`` whose message
is fit to be the reason of a skipped test.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from tests.support.java_tools import OPENED, VERSION
from tests.support.maven import maven_class_path
from tests.support.pulsar_standalone import broker_class_path
from tests.support.zookeeper import ZooKeeperServer

from afterglow.errors import HotLogUnavailable
from afterglow.spark.java import find_java

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_START_S: Final = 180.0
"""A process is up in 2 to 8 seconds; this is for machines that are busy beyond reason."""
_STOP_S: Final = 60.0
_POLL_S: Final = 0.1
_DRIVERS: Final = tuple(
    f"-Dbookkeeper.metadata.{side.lower()}.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadata{side}Driver"
    for side in ("Bookie", "Client")
)
_FLAGS: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED),
)
_OLD_BOOKIE: Final = (
    ("org.apache.bookkeeper", "bookkeeper-server", "4.16.6"),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)
"""The last release without batch reads."""


class JavaProcess:
    """One server in Java, which can be ended and started again.

    Args:
        name: For its log.
        directory: Where it runs.
        memory: Options of the JVM.
        main: Its class and arguments.
        class_path: Its jars, without Pulsar's drivers of metadata; None: those of the broker.
        version: Release of the broker.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        memory: Sequence[str],
        main: Sequence[str],
        *,
        class_path: str | None = None,
        version: str = VERSION,
    ) -> None:
        java = str(find_java().home / "bin" / "java")
        drivers = _DRIVERS if class_path is None else ()
        self._command = [java, *memory, *_FLAGS, *drivers, "-cp", class_path or broker_class_path(version), *main]
        self._name = name
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Start it, without waiting until it answers."""
        with (self._directory / f"{self._name}.log").open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self._directory
            )

    def start(self, port: int) -> None:
        """Start it, and wait until it listens on a port."""
        self.launch()
        deadline = time.monotonic() + _START_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
                return
            self.check(deadline)
            time.sleep(_POLL_S)

    def check(self, deadline: float) -> None:
        """Raise an error with the end of its output if it has ended, or a deadline has passed."""
        if self.is_running and time.monotonic() < deadline:
            return
        self.kill()
        said = (self._directory / f"{self._name}.log").read_text(errors="replace")
        raise HotLogUnavailable(f"{self._name} in {self._directory} did not start: {said[-3000:]}")

    def finish(self) -> None:
        """Wait until it ends by itself."""
        assert self._process is not None
        code = self._process.wait(_START_S)
        assert code == 0, (self._directory / f"{self._name}.log").read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        """End it cleanly; where that takes too long, at once."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End it without warning, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class RealBookie:
    """One bookie.

    Args:
        number: Unique in its cluster.
        directory: Directory of the cluster.
        zookeeper: Hosts of the cluster's ZooKeeper.
        settings: Of ``bookkeeper.conf``, beside those that every test needs.
        properties: Of the JVM.
        version: Release of Pulsar whose jars it is started from.
    """

    def __init__(
        self,
        number: int,
        directory: Path,
        zookeeper: str,
        settings: Mapping[str, str] | None = None,
        properties: Sequence[str] = (),
        *,
        version: str = VERSION,
    ) -> None:
        self.port = low_port()
        own = settings or {}
        self.bookie_id = own.get("bookieId", f"127.0.0.1:{self.port}")
        conf = _write_conf(
            directory / f"bookie{number}.conf",
            {
                "bookiePort": str(self.port),
                "listeningInterface": "lo",
                "allowLoopback": "true",
                "advertisedAddress": "127.0.0.1",
                "metadataServiceUri": f"metadata-store:zk:{zookeeper}",
                "journalDirectory": str(directory / f"bookie{number}" / "journal"),
                "ledgerDirectories": str(directory / f"bookie{number}" / "ledgers"),
                "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
                "dbStorage_writeCacheMaxSizeMb": "32",
                "dbStorage_readAheadCacheMaxSizeMb": "32",
                "dbStorage_rocksDB_blockCacheSize": "10485760",
                "journalSyncData": "false",
                "journalPreAllocSizeMB": "4",
                "nettyMaxFrameSizeBytes": "5253120",
                "diskUsageThreshold": "0.99",  # above it a bookie takes no entries
                "diskUsageWarnThreshold": "0.98",
                **own,
            },
        )
        memory = ("-Xmx192m", "-XX:MaxDirectMemorySize=256m", *properties)
        main = ("org.apache.bookkeeper.server.Main", "--conf", str(conf))
        self._process = JavaProcess(f"bookie{number}", directory, memory, main, version=version)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process.start(self.port)

    def kill(self) -> None:
        """End it without warning."""
        self._process.kill()


class OldBookie:
    """A cluster of one bookie without batch reads, in the ZooKeeper of another one; a context manager.

    Args:
        directory: An existing directory of its own.
        zookeeper: Hosts of ZooKeeper.
        root: Root of its ledgers.
    """

    def __init__(self, directory: Path, zookeeper: str, root: str) -> None:
        self._directory = directory
        self._class_path = maven_class_path("bookkeeper-server-4.16.6", _OLD_BOOKIE)
        self._port = low_port()
        self._conf = _write_conf(
            directory / "old.conf",
            {
                "bookiePort": str(self._port),
                "listeningInterface": "lo",
                "allowLoopback": "true",
                "advertisedAddress": "127.0.0.1",
                "metadataServiceUri": f"zk+hierarchical://{zookeeper}{root}",
                "journalDirectory": str(directory / "old" / "journal"),
                "ledgerDirectories": str(directory / "old" / "ledgers"),
                "journalPreAllocSizeMB": "4",
                "diskUsageThreshold": "0.99",
            },
        )
        self._server = self._java("old", "org.apache.bookkeeper.server.Main", "--conf", str(self._conf))

    def __enter__(self) -> Self:
        self._shell("initnewcluster")
        self._server.start(self._port)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()

    def write_ledger(self, entries: int) -> None:
        """Write a ledger with id 0 and delete it, with the test of BookKeeper's own shell; the bookie serves it on."""
        self._shell("simpletest", "-ensemble", "1", "-writeQuorum", "1", "-ackQuorum", "1", "-numEntries", str(entries))

    def _shell(self, *command: str) -> None:
        shell = self._java("shell", "org.apache.bookkeeper.bookie.BookieShell", "-conf", str(self._conf), *command)
        shell.launch()
        shell.finish()

    def _java(self, name: str, *main: str) -> JavaProcess:
        return JavaProcess(name, self._directory, ("-Xmx192m",), main, class_path=self._class_path)


class PulsarCluster:
    """One cluster, with everything it keeps in a directory of the caller's; a context manager.

    Args:
        directory: An existing directory of its own.
        bookies: Settings of each bookie, beside those that every test needs.
        settings: Of ``broker.conf``, likewise.
        version: Release of Pulsar.
    """

    def __init__(
        self,
        directory: Path,
        bookies: Sequence[Mapping[str, str]],
        settings: Mapping[str, str] | None = None,
        *,
        version: str = VERSION,
    ) -> None:
        self.directory = directory
        self._version = version
        (directory / "zookeeper").mkdir()
        self.zookeeper = ZooKeeperServer(broker_class_path(version), directory / "zookeeper")
        self._bookie_settings = bookies
        self._settings = dict(settings or {})
        self._web_port, self._broker_port = low_port(), low_port()
        self.bookies: dict[str, RealBookie] = {}
        """By their ids."""
        self._broker: JavaProcess | None = None

    @property
    def service_url(self) -> str:
        """Where its broker speaks Pulsar's protocol."""
        return f"pulsar://127.0.0.1:{self._broker_port}"

    @property
    def admin_url(self) -> str:
        """Where its admin API answers."""
        return f"http://127.0.0.1:{self._web_port}"

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of broker and bookies."""
        assert self._broker is not None
        return self._broker.pid, *(bookie.pid for bookie in self.bookies.values())

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill every process: nothing of them is needed any more."""
        if self._broker is not None:
            self._broker.kill()
        for bookie in self.bookies.values():
            bookie.kill()
        self.zookeeper.kill()

    def add_bookie(self, settings: Mapping[str, str], properties: Sequence[str] = ()) -> RealBookie:
        """Start one more bookie."""
        number = len(self.bookies) + 1
        bookie = RealBookie(number, self.directory, self.zookeeper.hosts, settings, properties, version=self._version)
        self.bookies[bookie.bookie_id] = bookie
        bookie.start()
        return bookie

    def start_broker(self, settings: Mapping[str, str] | None = None) -> None:
        """Start the broker and wait until it is well; also after it was killed, perhaps with other settings."""
        store = f"zk:{self.zookeeper.hosts}"
        conf = _write_conf(
            self.directory / "broker.conf",
            {
                "clusterName": "lab",
                "metadataStoreUrl": store,
                "configurationMetadataStoreUrl": store,
                "brokerServicePort": str(self._broker_port),
                "webServicePort": str(self._web_port),
                "bindAddress": "127.0.0.1",
                "advertisedAddress": "127.0.0.1",
                "managedLedgerDefaultEnsembleSize": "3",
                "managedLedgerDefaultWriteQuorum": "2",
                "managedLedgerDefaultAckQuorum": "2",
                "managedLedgerMinLedgerRolloverTimeMinutes": "0",
                "managedLedgerMaxEntriesPerLedger": "50000",
                "managedLedgerCacheSizeMB": "32",
                "defaultRetentionTimeInMinutes": "-1",
                "defaultRetentionSizeInMB": "-1",
                "allowAutoTopicCreation": "true",
                "webSocketServiceEnabled": "false",
                "narExtractionDirectory": str(self.directory / "nar"),
                **self._settings,
                **(settings or {}),
            },
        )
        memory = ("-Xmx512m", "-XX:MaxDirectMemorySize=512m")
        main = ("org.apache.pulsar.PulsarBrokerStarter", "--broker-conf", str(conf))
        self._broker = JavaProcess("broker", self.directory, memory, main, version=self._version)
        self._broker.launch()
        deadline = time.monotonic() + _START_S
        while not self._is_well():
            self._broker.check(deadline)
            time.sleep(_POLL_S)

    def kill_broker(self) -> None:
        """End the broker without warning."""
        assert self._broker is not None
        self._broker.kill()

    def stop_broker(self) -> None:
        """End the broker cleanly."""
        assert self._broker is not None
        self._broker.stop()

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """Call the admin API below ``/admin/v2/``; returns the parsed JSON, or None if the body is empty."""
        data = None if body is None else json.dumps(body).encode()
        call = urllib.request.Request(
            f"{self.admin_url}/admin/v2/{path}",
            data,
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(call, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def _start(self) -> None:
        self.zookeeper.start()
        store = f"zk:{self.zookeeper.hosts}"
        arguments = {
            "--cluster": "lab",
            "--metadata-store": store,
            "--configuration-metadata-store": store,
            "--web-service-url": self.admin_url,
            "--broker-service-url": self.service_url,
            "--initial-num-stream-storage-containers": "0",
            "--initial-num-transaction-coordinators": "1",
        }
        main = ["org.apache.pulsar.PulsarClusterMetadataSetup", *(part for pair in arguments.items() for part in pair)]
        setup = JavaProcess("setup", self.directory, ("-Xmx256m",), main, version=self._version)
        setup.launch()
        setup.finish()
        for settings in self._bookie_settings:
            self.add_bookie(settings)
        self.start_broker()

    def _is_well(self) -> bool:
        url = f"{self.admin_url}/admin/v2/brokers/health"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return bool(answer.read() == b"ok")
        except (OSError, urllib.error.URLError):
            return False


def low_port() -> int:
    """A free port of 127.0.0.1 that the system does not give to outgoing connections while its server is down."""
    while True:
        port = random.randint(20_000, 32_000)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def _write_conf(path: Path, settings: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path
