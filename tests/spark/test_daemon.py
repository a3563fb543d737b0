from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

IMPORTED = """
import json, sys
import afterglow.spark.daemon
print(json.dumps(sorted(name for name in sys.modules if "." not in name)))
"""


def test_the_daemon_imports_the_modules_of_tasks_and_none_that_starts_threads() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    imported = set(json.loads(done.stdout))
    assert {"afterglow", "crc32c", "numpy", "pyspark"} <= imported
    assert not imported & {"boto3", "llvmlite", "numba", "obstore", "pandas", "pyarrow"}


CLOSED = """
import os, sys
import afterglow.spark.daemon as daemon

def worker(connection, authenticated):
    outfile = os.fdopen(os.dup(connection), "wb", 65536)
    outfile.write(b"result")
    outfile.flush()

class Fails:
    def __del__(self):
        raise ValueError("ours")

sys.unraisablehook = daemon.report_unraisable
reader, connection = os.pipe()
os.close(reader)
print(daemon.work(worker, connection, True))
Fails()
"""


def test_a_worker_whose_connection_is_closed_prints_no_stack() -> None:
    # In development mode earlier versions of Python report errors of finalizers as Python 3.13 always does.
    done = subprocess.run([sys.executable, "-X", "dev", "-c", CLOSED], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert "BrokenPipeError" not in done.stderr
    assert "ValueError: ours" in done.stderr
