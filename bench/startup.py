"""How long a new process takes to import the package, and to decode its first block with kernels from disk."""

from __future__ import annotations

import subprocess
import sys
import time

from bench.measure import ROUNDS, keep

GOALS = {"import afterglow, s": 0.3, "first decode in a second process, s": 0.3}

DECODE = """
from afterglow.format.columns import decode_messages
from afterglow.format.frames import scan_frames
data = bytes.fromhex(
    "0000001d0000000000000000" "0e018129e7f10000000e0a03702d3010001880d095ffbc3168656c6c6f"
)
(messages,) = decode_messages(data, scan_frames(data, 0), 1)
assert messages.batch.column("value").to_pylist() == [b"hello"]
"""


def best(program: str) -> float:
    found = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True)
        found = min(found, time.perf_counter() - start)
    return round(found, 3)


def main() -> None:
    figures = {
        "bare interpreter, s": best("pass"),
        "import afterglow, s": best("import afterglow"),
        "import pyarrow and numpy, s": best("import numpy, pyarrow"),
        "first decode in a second process, s": best(DECODE),
    }
    keep("startup", figures, GOALS)
