from __future__ import annotations

import os
import subprocess
import sys

import pytest

from afterglow.spark.log_filter import filter_lines

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
        (STACK.rpartition("ValueError")[0], STACK.rpartition("ValueError")[0]),
        ("BrokenPipeError: alone\n", "BrokenPipeError: alone\n"),
    ],
)
def test_stacks_of_closed_connections_are_dropped_and_other_lines_pass(printed: str, passed: str) -> None:
    assert "".join(filter_lines(printed.splitlines(keepends=True))) == passed


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
