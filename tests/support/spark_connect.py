"""A server of Spark Connect on this machine, from PySpark's own wheel."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.servers import running

from afterglow.spark.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """Run a server on 127.0.0.1 with two workers, until the block ends.

    Args:
        directory: For its files.

    Yields:
        Its address.

    Raises:
        ServerUnavailable: It does not start.
    """
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_NO_DAEMONIZE": "1",
    }

    def server(port: int) -> Sequence[str]:
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
        }
        options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        submit = [str(home / "bin" / "spark-submit"), "--master", "local[2]", *options]
        return [*submit, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]

    with running(server, environment) as port:
        yield f"sc://127.0.0.1:{port}"
