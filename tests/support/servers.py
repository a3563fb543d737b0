"""Real servers for tests, each a process of its own on 127.0.0.1 that ends with the ``with`` block.

What cannot be had on this machine raises :class:`ServerUnavailable` with the reason, for a test to skip with.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.support.go_tools import go_program

from afterglow.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "S3Server",
    "ServerUnavailable",
    "free_port",
    "running",
    "start_minio",
    "start_moto",
    "start_versitygw",
    "versitygw_binary",
]

_START_S: Final = 60.0
"""A loaded machine takes long; a server that is up is noticed at once."""
_STOP_S: Final = 10.0
_POLL_S: Final = 0.02
_ATTEMPTS: Final = 3
_VERSITYGW: Final = "v1.8.0"
_MINIO: Final = "v0.0.0-20260212201848-7aac2a2c5b7c"


class ServerUnavailable(Exception):
    """A server cannot be had or does not start; the message says why."""


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server that speaks S3."""

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)
    region: str = "us-east-1"

    def options(self) -> dict[str, str]:
        """Give what :func:`afterglow.storage.open_store` needs to reach it."""
        return {
            "endpoint": self.endpoint,
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "region": self.region,
        }

    def create_bucket(self, bucket: str) -> None:
        """Make a bucket."""
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
        )
        client.create_bucket(Bucket=bucket)


@contextmanager
def start_moto() -> Iterator[S3Server]:
    """Run moto's S3: from pip alone, in memory, lenient (it checks no signatures and no checksums).

    Raises:
        ServerUnavailable: It does not start.
    """

    def command(port: int) -> Sequence[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]

    with running(command) as port:
        yield S3Server(f"http://127.0.0.1:{port}", "moto-access", "moto-secret")


@contextmanager
def start_versitygw(directory: Path) -> Iterator[S3Server]:
    """Run versitygw, a real S3 server, over a directory.

    Raises:
        ServerUnavailable: It cannot be built or does not start.
    """
    binary = versitygw_binary()
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    server = S3Server("", "versity-access", "versity-secret")

    def command(port: int) -> Sequence[str]:
        keys = ["--access", server.access_key, "--secret", server.secret_key]
        return [str(binary), "--port", f"127.0.0.1:{port}", *keys, "posix", str(data)]

    with running(command) as port:
        yield S3Server(f"http://127.0.0.1:{port}", server.access_key, server.secret_key)


def versitygw_binary() -> Path:
    """Find versitygw in the user's cache, or build it there with Go: about 90 s of CPU, once.

    Raises:
        ServerUnavailable: There is no Go, or the build fails.
    """
    try:
        return go_program("versitygw", "github.com/versity/versitygw/cmd/versitygw", _VERSITYGW)
    except MissingDependency as error:
        raise ServerUnavailable(str(error)) from error


@contextmanager
def start_minio(directory: Path) -> Iterator[S3Server]:
    """Run MinIO, the reference that others compare with, over a directory: about 5 minutes of CPU, once, to build it.

    Raises:
        ServerUnavailable: It cannot be built or does not start.
    """
    try:
        binary = go_program("minio", "github.com/minio/minio", _MINIO)
    except MissingDependency as error:
        raise ServerUnavailable(str(error)) from error
    server = S3Server("", "minio-access", "minio-secret")
    keys = {"MINIO_ROOT_USER": server.access_key, "MINIO_ROOT_PASSWORD": server.secret_key}

    def command(port: int) -> Sequence[str]:
        return [str(binary), "server", "--quiet", "--address", f"127.0.0.1:{port}", str(directory / "data")]

    with running(command, keys) as port:
        yield S3Server(f"http://127.0.0.1:{port}", server.access_key, server.secret_key)


def free_port() -> int:
    """Find a port of 127.0.0.1 that nobody listens on right now; another process may still be faster."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(command: Callable[[int], Sequence[str]], environment: Mapping[str, str] | None = None) -> Iterator[int]:
    """Run a server on a free port, in a process group of its own, until the block ends.

    Args:
        command: From the port to the command line.
        environment: Variables beside our own.

    Yields:
        The port, once it answers.

    Raises:
        ServerUnavailable: The server ends or stays silent; the message has the end of its output.
    """
    with tempfile.TemporaryFile() as output:
        for _ in range(_ATTEMPTS):
            port = free_port()
            process = subprocess.Popen(
                command(port),
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                if _answers(process, port):
                    yield port
                    return
            finally:
                _stop(process, port)
        output.seek(0)
        tail = output.read()[-1_000:].decode(errors="replace")
        raise ServerUnavailable(f"{command(0)[0]} does not start: {tail}")


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    give_up_at = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < give_up_at:
        if _listens(port):
            return True
        time.sleep(_POLL_S)
    return False


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _stop(process: subprocess.Popen[bytes], port: int) -> None:
    """End the whole process group, for some servers are scripts that start the real one; then nobody listens."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    with suppress(ProcessLookupError):  # those who outlived the first of the group, or would not end
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    give_up_at = time.monotonic() + _STOP_S
    while _listens(port) and time.monotonic() < give_up_at:
        time.sleep(_POLL_S)
