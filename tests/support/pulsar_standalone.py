"""A real Apache Pulsar for tests: one process with broker, bookie and ZooKeeper, on 127.0.0.1, from Maven.

Its ledgers are small, so that a few hundred messages make several that can be offloaded. What cannot be had is a
``MissingDependency`` whose message is fit to be the reason of a skipped test.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from tests.support.java_tools import EXCLUDED, OPENED, PINNED, VERSION
from tests.support.maven import maven_class_path
from tests.support.servers import free_port

from afterglow.errors import HotLogUnavailable
from afterglow.spark.java import find_java

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

_BROKER_LIBRARIES: Final = (
    ("org.apache.logging.log4j", "log4j-slf4j2-impl", "2.23.1"),
    ("org.apache.logging.log4j", "log4j-core", "2.23.1"),
    ("org.xerial.snappy", "snappy-java", "1.1.10.5"),
)
NEWER: Final = "4.2.4"
"""The newest release that tests know."""
_TELEMETRY: Final = ("common", "sdk-common", "sdk-extension-autoconfigure-spi", "sdk-logs", "sdk-metrics", "sdk-trace")
_PINNED: Final = {
    VERSION: PINNED,
    # Its own description leaves these parts at a version that the others do not work with.
    NEWER: tuple(("io.opentelemetry", f"opentelemetry-{name}", "1.62.0") for name in _TELEMETRY),
}
_OFFLOADERS: Final = (
    ("org.apache.pulsar", "tiered-storage-jcloud", VERSION),
    ("org.apache.pulsar", "tiered-storage-file-system", VERSION),
)
_MAIN: Final = "org.apache.pulsar.PulsarStandaloneStarter"
_FLAGS: Final = (
    "-Xmx768m",
    "-XX:MaxDirectMemorySize=1g",
    "-XX:+UseSerialGC",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dzookeeper.admin.enableServer=false",
)
_SETTINGS: Final = {
    "advertisedAddress": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "clusterName": "standalone",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "systemTopicEnabled": "true",
    "topicLevelPoliciesEnabled": "true",
    "allowAutoTopicCreation": "true",
    "webSocketServiceEnabled": "false",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "managedLedgerMaxEntriesPerLedger": "40",
    "managedLedgerOffloadAutoTriggerSizeThresholdBytes": "-1",
    "managedLedgerOffloadMaxBlockSizeInBytes": "5242880",
    "managedLedgerDataReadPriority": "tiered-storage-first",
    "journalSyncData": "false",
    "dbStorage_writeCacheMaxSizeMb": "128",
    "dbStorage_readAheadCacheMaxSizeMb": "128",
}
_START_S: Final = 180.0
"""It is up in 7 to 18 seconds; this is for machines that are busy beyond reason."""
_STOP_S: Final = 60.0
_POLL_S: Final = 0.2


def broker_class_path(version: str = VERSION) -> str:
    """The classes of the broker of a release, among them those of the Java client.

    Raises:
        MissingDependency: They cannot be fetched.
    """
    artifacts = (("org.apache.pulsar", "pulsar-broker", version), *_BROKER_LIBRARIES)
    return maven_class_path(f"pulsar-broker-{version}", artifacts, pinned=_PINNED[version], excluded=EXCLUDED)


def offloaders(parent: Path) -> Path:
    """A new directory with the offload drivers: what is published as a jar is the archive that the broker wants.

    Raises:
        MissingDependency: They cannot be fetched.
    """
    found = maven_class_path(f"pulsar-offloaders-{VERSION}", _OFFLOADERS, excluded=("*",))
    directory = parent / "offloaders"
    directory.mkdir(exist_ok=True)
    for jar in Path(found).parent.glob("*.jar"):
        shutil.copy(jar, directory / f"{jar.stem}.nar")
    return directory


class PulsarStandalone:
    """One Pulsar, with everything it keeps in a directory of the caller's; a context manager that starts and ends it.

    Args:
        directory: An existing directory of its own. ZooKeeper's data are in ``zookeeper/data``, where a
            :class:`~tests.support.zookeeper.ZooKeeperServer` on ``zookeeper`` finds them once Pulsar has ended.
        settings: Of ``broker.conf``, beside those that every test needs.
        environ: Added to this process's own.
        token: Of a superuser, where the settings ask for one.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        token: str | None = None,
    ) -> None:
        self._directory = directory
        self._settings = dict(settings or {})
        self._environ = dict(environ or {})
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._ports = {name: free_port() for name in ("web", "broker", "zookeeper", "bookie")}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def admin_url(self) -> str:
        """Where its admin API answers."""
        return f"http://127.0.0.1:{self._ports['web']}"

    @property
    def service_url(self) -> str:
        """Where it speaks Pulsar's protocol."""
        return f"pulsar://127.0.0.1:{self._ports['broker']}"

    @property
    def zookeeper(self) -> str:
        """Its ZooKeeper, as a source's address."""
        return f"zk://127.0.0.1:{self._ports['zookeeper']}"

    @property
    def zookeeper_directory(self) -> Path:
        """The directory in whose ``data`` its ZooKeeper keeps what it knows."""
        return self._directory / "zookeeper"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it is well.

        Raises:
            MissingDependency: There is no Java, or its jars cannot be fetched.
            HotLogUnavailable: It ended or was not well in time; its last words are in the message.
        """
        command = self._command()
        environ = {**os.environ, "PULSAR_STANDALONE_USE_ZOOKEEPER": "1", **self._environ}
        with (self._directory / "output.log").open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ, cwd=self._directory
            )
        deadline = time.monotonic() + _START_S
        while not self._is_well():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                said = (self._directory / "output.log").read_text(errors="replace")
                raise HotLogUnavailable(f"Apache Pulsar in {self._directory} did not start: {said[-3000:]}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """End it cleanly; where that takes too long, at once."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """Call the admin API below ``/admin/v2/``; returns the parsed JSON, or None if the body is empty."""
        data = None if body is None else json.dumps(body).encode()
        call = urllib.request.Request(
            f"{self.admin_url}/admin/v2/{path}",
            data,
            {"Content-Type": "application/json", **self._headers},
            method=method,
        )
        with urllib.request.urlopen(call, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def _is_well(self) -> bool:
        try:
            call = urllib.request.Request(f"{self.admin_url}/admin/v2/brokers/health", headers=self._headers)
            with urllib.request.urlopen(call, timeout=30) as answer:
                return bool(answer.read() == b"ok")
        except (OSError, urllib.error.URLError):
            return False

    def _command(self) -> list[str]:
        class_path = broker_class_path()
        conf = self._directory / "standalone.conf"
        keeper = f"zk:127.0.0.1:{self._ports['zookeeper']}"
        settings = {
            **_SETTINGS,
            "webServicePort": str(self._ports["web"]),
            "brokerServicePort": str(self._ports["broker"]),
            "metadataStoreUrl": keeper,
            "configurationMetadataStoreUrl": keeper,
            "narExtractionDirectory": str(self._directory),
            "offloadersDirectory": str(offloaders(self._directory)),
            **self._settings,
        }
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        opened = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED]
        arguments = {
            "--config": conf,
            "--zookeeper-port": self._ports["zookeeper"],
            "--zookeeper-dir": self.zookeeper_directory / "data",
            "--bookkeeper-port": self._ports["bookie"],
            "--bookkeeper-dir": self._directory / "bookkeeper",
            "--advertised-address": "127.0.0.1",
        }
        java = str(find_java().home / "bin" / "java")
        given = [str(part) for pair in arguments.items() for part in pair]
        return [java, *_FLAGS, *opened, "-cp", class_path, _MAIN, *given, "-nfw", "-nss"]
