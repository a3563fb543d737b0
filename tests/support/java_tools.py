"""The command line tools of Apache Pulsar, as published: ``pulsar-client``, ``pulsar-perf`` and ``pulsar-admin``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.support.commands import run
from tests.support.maven import maven_class_path

from afterglow.spark.java import find_java

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

VERSION: Final = "4.0.8"

_ARTIFACTS: Final = (
    ("org.apache.pulsar", "pulsar-client-tools", VERSION),
    ("org.apache.pulsar", "pulsar-testclient", VERSION),
    # The tools leave the choice of a logging library to the program that runs them.
    ("org.apache.logging.log4j", "log4j-slf4j2-impl", "2.23.1"),
    ("org.apache.logging.log4j", "log4j-core", "2.23.1"),
)
PINNED: Final = (("org.apache.pulsar", "pulsar-opentelemetry", "4.0.7"),)
"""4.0.8 of it cannot be had."""
EXCLUDED: Final = ("jetcd-core-shaded",)
"""Is in no repository that can be reached; only brokers with etcd need it."""

_TOKEN_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"

_CLIENT: Final = "org.apache.pulsar.client.cli.PulsarClientTool"
_PERF: Final = "org.apache.pulsar.testclient.PulsarPerfTestTool"
_ADMIN: Final = "org.apache.pulsar.admin.cli.PulsarAdminTool"
_SHELL: Final = "org.apache.pulsar.shell.PulsarShell"

OPENED: Final = (
    "java.base/java.io",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.base/sun.net",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
"""Packages of the JDK into which the tools and Netty reach."""

# 512 MiB: the histograms of pulsar-perf do not fit into half of it. One compiler, for programs of a few seconds.
FLAGS: Final = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dio.netty.tryReflectionSetAccessible=true",
)

_LIMIT_S: Final = 90.0
"""A command takes from 2 to 6 seconds; pulsar-admin would wait 300 for an answer that it cannot read."""


def tools_class_path() -> str:
    """Where the tools' classes are.

    Raises:
        MissingDependency: They cannot be fetched.
    """
    return maven_class_path(f"pulsar-tools-{VERSION}", _ARTIFACTS, pinned=PINNED, excluded=EXCLUDED)


class JavaTools:
    """The tools, set up for one broker.

    Args:
        service_url: Where the broker speaks Pulsar's protocol.
        admin_url: Where it answers admin calls.
        directory: An existing directory, for the tools' settings.
        token: Proves a role; none where nothing is to be proved.

    Raises:
        MissingDependency: There is no Java, or the tools cannot be fetched.
    """

    def __init__(self, service_url: str, admin_url: str, directory: Path, token: str | None = None) -> None:
        java = str(find_java().home / "bin" / "java")
        opened = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED]
        self._java = [java, *FLAGS, *opened, "-cp", tools_class_path()]
        self._directory = directory
        self._conf = directory / "client.conf"
        proof = "" if token is None else f"authPlugin={_TOKEN_PLUGIN}\nauthParams=token:{token}\n"
        self._conf.write_text(f"brokerServiceUrl={service_url}\nwebServiceUrl={admin_url}\n{proof}")

    def client(self, *arguments: str) -> str:
        """Run ``pulsar-client``; returns what it printed, its log included.

        Raises:
            CommandFailed: It failed or did not end in time.
        """
        return self._run(_CLIENT, arguments)

    def perf(self, *arguments: str) -> str:
        """Run ``pulsar-perf``; returns what it printed, its log included.

        Raises:
            CommandFailed: It failed or did not end in time.
        """
        return self._run(_PERF, arguments)

    def admin(self, *arguments: str) -> str:
        """Run ``pulsar-admin``; returns what it printed.

        Raises:
            CommandFailed: It failed or did not end in time.
        """
        return self._run(_ADMIN, arguments)

    def admin_all(self, commands: Sequence[str]) -> str:
        """Run commands of ``pulsar-admin`` one after another, in one process of ``pulsar-shell``.

        Returns:
            What they printed, after a line ``[N/COUNT] Executing admin …`` each; one that fails tells why and does not
            end the others.

        Raises:
            CommandFailed: The shell failed or did not end in time.
        """
        script = self._directory / "commands"
        script.write_text("".join(f"admin {command}\n" for command in commands))
        home = f"-Duser.home={self._directory}"  # where it keeps its history
        java, *options = self._java
        arguments = [java, home, *options, _SHELL, "-c", str(self._conf), "-np", "-f", str(script)]
        return run(arguments, limit_s=_LIMIT_S, directory=self._directory)

    def _run(self, main: str, arguments: tuple[str, ...]) -> str:
        return run([*self._java, main, str(self._conf), *arguments], limit_s=_LIMIT_S, directory=self._directory)
