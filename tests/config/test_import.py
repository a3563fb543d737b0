from __future__ import annotations

import subprocess
import sys


def test_importing_the_configuration_brings_in_nothing_heavy() -> None:
    code = "import sys, afterglow.config; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    heavy = {
        "numpy",
        "pyarrow",
        "numba",
        "google",
        "pyspark",
        "boto3",
        "typer",
        "rich",
        "asyncio",
        "importlib_metadata",
    }
    assert heavy & set(loaded.stdout.split()) == set()
