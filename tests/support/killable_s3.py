"""A real S3 server that can be killed and started again on the same port, with its objects."""

from __future__ import annotations

import socket
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from tests.support.pulsar_cluster import low_port
from tests.support.servers import S3Server, ServerUnavailable, versitygw_binary

from afterglow.storage import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from afterglow.storage import ObjectStore

_START_S: Final = 60.0
_POLL_S: Final = 0.05


class KillableS3:
    """versitygw over a directory; a context manager.

    Args:
        directory: An existing directory of its own.

    Raises:
        ServerUnavailable: It cannot be built.
    """

    access_key: Final = "versity-access"
    secret_key: Final = "versity-secret"
    region: Final = "us-east-1"

    def __init__(self, directory: Path) -> None:
        self._data = directory / "data"
        self._data.mkdir()
        self._log = directory / "s3.log"
        self._port = low_port()
        keys = ["--access", self.access_key, "--secret", self.secret_key]
        self._command = [str(versitygw_binary()), "--port", f"127.0.0.1:{self._port}", *keys, "posix", str(self._data)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            ServerUnavailable: It does not start.
        """
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1):
                return
            time.sleep(_POLL_S)
        self.kill()
        raise ServerUnavailable(f"versitygw does not start: {self._log.read_text(errors='replace')[-1000:]}")

    def kill(self) -> None:
        """End it without warning, as a crash would; what it has stored stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def create_bucket(self, bucket: str) -> None:
        """Make a bucket."""
        S3Server(self.endpoint, self.access_key, self.secret_key, self.region).create_bucket(bucket)

    def store(self, tier: str) -> ObjectStore:
        """Open a tier on it."""
        options = {"endpoint": self.endpoint, "region": self.region}
        return open_store(tier, access_key=self.access_key, secret_key=self.secret_key, **options)
