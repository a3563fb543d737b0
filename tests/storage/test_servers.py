from __future__ import annotations

import os
import socket
import sys

import pytest
from tests.support.servers import ServerUnavailable, running

_LISTEN = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); "
_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_LISTEN + 'time.sleep(600)'!r}, sys.argv[1]])"


def test_a_server_ends_with_its_block_children_included() -> None:
    with running(lambda port: [sys.executable, "-c", _CHILD, str(port)]) as port:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_server_that_exits_at_once_is_reported_with_its_output() -> None:
    with (
        pytest.raises(ServerUnavailable, match="cannot find my disk"),
        running(lambda _: [sys.executable, "-c", "import sys; sys.exit('cannot find my disk')"]),
    ):
        raise AssertionError("it never ran")


def test_the_environment_reaches_the_server() -> None:
    code = _LISTEN + "import os; s.accept(); c, _ = s.accept(); c.sendall(os.environ['WORD'].encode())"
    assert "WORD" not in os.environ
    with (
        running(lambda port: [sys.executable, "-c", code, str(port)], {"WORD": "hello"}) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as connection,
    ):
        assert connection.recv(5) == b"hello"
