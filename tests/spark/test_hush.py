from __future__ import annotations

import os
import subprocess
import sys

import pytest

from afterglow.spark.hush import hushed

FAREWELL = """\
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
    FAREWELL.rpartition("BrokenPipeError")[0]
    + """\
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "x.py", line 1, in x
RuntimeError: why
"""
)


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("", ""),
        ("a\n\n  b\n", "a\n\n  b\n"),
        ("WARNING: Using incubator modules: jdk.incubator.vector\na\n", "a\n"),
        (FAREWELL, ""),
        (f"a\n{FAREWELL}b\n", "a\nb\n"),
        (f"{FAREWELL}{FAREWELL}{STACK}a\n", f"{STACK}a\n"),
        (STACK, STACK),
        (f"{CHAIN}{FAREWELL}", CHAIN),
        (STACK.rpartition("ValueError")[0], STACK.rpartition("ValueError")[0]),
        ("BrokenPipeError: alone\n", "BrokenPipeError: alone\n"),
    ],
)
def test_farewells_are_kept_back_and_all_else_passes(printed: str, told: str) -> None:
    assert "".join(hushed(printed.splitlines(keepends=True))) == told


def test_a_process_prints_through_it() -> None:
    program = (
        "import os, subprocess, sys, threading\n"
        "from afterglow.spark.hush import hushed_stderr\n"
        "out = hushed_stderr()\n"
        "told = 'Using incubator modules', 'a word'\n"
        "subprocess.run([sys.executable, '-c', f'import sys; sys.stderr.write({chr(10).join(told)!r})'], stderr=out)\n"
        "os.close(out)\n"
        "[thread.join() for thread in threading.enumerate() if thread.name == 'hush']\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True, env=os.environ
    )
    assert (done.stdout, done.stderr) == ("", "a word")
