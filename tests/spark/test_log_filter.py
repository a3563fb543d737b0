from __future__ import annotations

import logging
import os
import subprocess
import sys
from unittest.mock import Mock

import pytest
from py4j import protocol
from py4j.java_gateway import GatewayClient, GatewayParameters
from py4j.protocol import Py4JNetworkError

from afterglow.spark.log_filter import filter_lines, is_not_py4j_chatter

DISCONNECT = """\
Traceback (most recent call last):
  File "runner.py", line 265, in main
EOFError

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "runner.py", line 299, in main
    return self._sock.send(b)
           ^^^^^^^^^^^^^^^^^^
BrokenPipeError: [Errno 32] Broken pipe
"""
STACK = """\
Traceback (most recent call last):
  File "runner.py", line 265, in main

ValueError: two lines
"""
UNRAISABLE = "Exception ignored in: <_io.BufferedWriter name=4>\n"
CHAIN = (
    DISCONNECT.rpartition("BrokenPipeError")[0]
    + """\
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "x.py", line 1, in x
RuntimeError: why
"""
)


@pytest.mark.parametrize(
    ("printed", "passed"),
    [
        ("", ""),
        ("a\n\n  b\n", "a\n\n  b\n"),
        ("WARNING: Using incubator modules: jdk.incubator.vector\na\n", "a\n"),
        (DISCONNECT, ""),
        (f"a\n{DISCONNECT}b\n", "a\nb\n"),
        (f"{DISCONNECT}{DISCONNECT}{STACK}a\n", f"{STACK}a\n"),
        (STACK, STACK),
        (f"{CHAIN}{DISCONNECT}", CHAIN),
        (f"a\n{STACK.rpartition('ValueError')[0]}", "a\n"),
        ("BrokenPipeError: alone\n", "BrokenPipeError: alone\n"),
        (f"a\n{UNRAISABLE}{DISCONNECT}b\n", "a\nb\n"),
        (f"{DISCONNECT}{UNRAISABLE}{STACK}", f"{UNRAISABLE}{STACK}"),
        (f"{UNRAISABLE}a\nb\n", f"{UNRAISABLE}a\nb\n"),
    ],
)
def test_stacks_of_closed_connections_are_dropped_and_other_lines_pass(printed: str, passed: str) -> None:
    assert "".join(filter_lines(printed.splitlines(keepends=True))) == passed


def test_stacks_pass_where_only_the_warning_of_java_is_dropped() -> None:
    lines = ["WARNING: Using incubator modules: jdk.incubator.vector\n", *DISCONNECT.splitlines(keepends=True)]
    assert "".join(filter_lines(lines, drop_stacks=False)) == DISCONNECT


def test_the_stderr_of_a_process_is_filtered() -> None:
    program = (
        "import os, subprocess, sys, threading\n"
        "from afterglow.spark.log_filter import THREAD_NAME, filtered_stderr\n"
        "out = filtered_stderr()\n"
        "lines = 'Using incubator modules', 'a word'\n"
        "subprocess.run([sys.executable, '-c', f'import sys; sys.stderr.write({chr(10).join(lines)!r})'], stderr=out)\n"
        "os.close(out)\n"
        "[thread.join() for thread in threading.enumerate() if thread.name == THREAD_NAME]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True, env=os.environ
    )
    assert (done.stdout, done.stderr) == ("", "a word")


@pytest.mark.parametrize("retried", [True, False])
def test_commands_that_the_end_of_the_jvm_interrupts_are_not_logged(
    caplog: pytest.LogCaptureFixture, *, retried: bool
) -> None:
    client = GatewayClient(gateway_parameters=GatewayParameters())
    client._get_connection = Mock(return_value=Mock(send_command=Mock(side_effect=Py4JNetworkError("empty"))))
    client._should_retry = Mock(side_effect=[retried, False])
    with caplog.at_level(logging.INFO):
        assert client.send_command("c") == protocol.ERROR
    assert {record.name for record in caplog.records} == {"root"}
    assert not any(is_not_py4j_chatter(record) for record in caplog.records)
    assert is_not_py4j_chatter(logging.LogRecord("root", logging.INFO, __file__, 1, "ours", (), None))
    assert is_not_py4j_chatter(logging.LogRecord("py4j", logging.ERROR, "py4j/x.py", 1, "theirs", (), None))
