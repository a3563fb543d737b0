"""Apache Pulsar's own ``pulsar-admin``, many commands in one JVM.

A JVM for each command costs two to four seconds, most of it loading classes. Here one JVM stays, and each command is
what the tool's ``main`` does: a new tool from the settings file, run with the arguments. Py4J, which comes with Spark,
calls it. The tool's own switch for tests keeps it from ending the JVM.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from tests.support.java_tools import FLAGS, OPENED, tools_class_path

from afterglow.errors import MissingDependency
from afterglow.spark.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_TOOL: Final = "org.apache.pulsar.admin.cli.PulsarAdminTool"
_TEST_MODE: Final = "Exit code is "
"""Begins the line that the tool prints in place of ending the JVM."""
LATE: Final = 124
"""The code of a command that did not end in time, as of ``timeout``."""
_LIMIT_S: Final = 60.0
"""A command takes a tenth of a second; the tool itself would wait 300 for an answer that it cannot read."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended."""

    code: int
    """What the process would have ended with."""
    output: str
    errors: str


class AdminTool:
    """The tool, set up for one broker; a context manager that starts and ends its JVM.

    Args:
        service_url: Where the broker speaks Pulsar's protocol.
        admin_url: Where it answers admin calls.
        directory: An existing directory, for the tool's settings.
    """

    def __init__(self, service_url: str, admin_url: str, directory: Path) -> None:
        self._conf = directory / "client.conf"
        self._conf.write_text(f"brokerServiceUrl={service_url}\nwebServiceUrl={admin_url}\n")
        self._gateway: Any = None
        self._process: Any = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the JVM.

        Raises:
            MissingDependency: There is no Java, no Py4J, or the tools cannot be fetched.
        """
        try:
            import pyspark
            from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
        except ImportError as error:
            raise MissingDependency.of_extra("Py4J comes with Spark, which is not installed", "spark") from error
        (py4j,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
        port, token, self._process = launch_gateway(
            jarpath=str(py4j),
            classpath=tools_class_path(),
            javaopts=[*FLAGS, *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED)],
            java_path=str(find_java().home / "bin" / "java"),
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
        self._field(self._class, "allowSystemExit").setBoolean(None, False)  # noqa: FBT003 - Java has no keywords

    def stop(self) -> None:
        """End the JVM."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._gateway.close()
            self._process = self._gateway = None

    def run(self, *arguments: str) -> Outcome:
        """Run one command; one that does not end in time is ended, and the next one has a new JVM."""
        late = threading.Event()

        def end() -> None:
            late.set()
            self._process.kill()

        clock = threading.Timer(_LIMIT_S, end)
        clock.start()
        try:
            return self._run(arguments)
        except Exception:
            if not late.is_set():
                raise
            self.stop()
            self.start()
            return Outcome(LATE, "", f"did not end within {_LIMIT_S:g} s")
        finally:
            clock.cancel()

    def commands(self) -> Iterator[tuple[str, str]]:
        """Every command the tool has, as group and name; second names of a command are left out."""
        properties = self._gateway.jvm.java.util.Properties()
        tool = self._gateway.jvm.org.apache.pulsar.admin.cli.PulsarAdminTool(properties)
        line = self._field(self._class, "commander").get(tool)
        for group, inner in line.getSubcommands().items():
            for name, command in inner.getSubcommands().items():
                if name == command.getCommandName() and not command.getCommandSpec().usageMessage().hidden():
                    yield group, name

    @property
    def _class(self) -> Any:
        return self._gateway.jvm.java.lang.Class.forName(_TOOL)

    @staticmethod
    def _field(of: Any, name: str) -> Any:
        found = of.getDeclaredField(name)
        found.setAccessible(True)
        return found

    def _run(self, arguments: tuple[str, ...]) -> Outcome:
        jvm = self._gateway.jvm
        given = self._gateway.new_array(jvm.java.lang.String, len(arguments) + 1)
        for location, argument in enumerate((str(self._conf), *arguments)):
            given[location] = argument
        output, errors = (jvm.java.io.ByteArrayOutputStream() for _ in range(2))
        jvm.java.lang.System.setOut(jvm.java.io.PrintStream(output))
        jvm.java.lang.System.setErr(jvm.java.io.PrintStream(errors))
        supplier = jvm.org.apache.pulsar.admin.cli.PulsarAdminTool.execute(given).getPulsarAdminSupplier()
        # The process would take its connections and threads with it.
        if (made := self._field(supplier.getClass(), "admin").get(supplier)) is not None:
            made.close()
        said = output.toString().splitlines(keepends=True)
        return Outcome(
            self._field(self._class, "lastExitCode").getInt(None),
            "".join(line for line in said if not line.startswith(_TEST_MODE)),
            errors.toString(),
        )
