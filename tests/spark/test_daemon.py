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
