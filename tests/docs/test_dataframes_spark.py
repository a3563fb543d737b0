"""The programs of the part on Spark in docs/dataframes.md run, one behind the other as a reader would try them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from afterglow.spark.java import find_java
from afterglow.testing.homes import EngineHome, batch
from afterglow.testing.ledgers import message

pytest.importorskip("pyspark", reason="the extra afterglow[spark] is not installed")

from afterglow.spark.source_options import OPTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "dataframes.md").read_text()
SPARK = re.split(r"^## ", PAGE, flags=re.MULTILINE)


def test_the_programs_run_and_say_what_they_found(tmp_path: Path) -> None:
    (part,) = [text for text in SPARK if text.startswith("Spark\n")]
    programs = re.findall(r"```python\n(.*?)```", part, re.DOTALL)
    assert len(programs) == 4
    home = tmp_path / "home"
    home.mkdir()
    now_ms = time.time_ns() // 1_000_000
    with EngineHome(home) as engine:
        engine.clock.set_now_ms(now_ms - 86_400_000)
        old, _ = engine.write("orders", [message(b"old", now_ms - 86_400_000)] * 5, [message(b"", now_ms)])
        engine.offload("orders", old)
        engine.clock.set_now_ms(now_ms)
        engine.write("orders", [batch([b"1", b"2", b"3"], now_ms)])
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(programs)],
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # as in an environment that is activated
            "JAVA_HOME": str(find_java().home),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "|tiered|    5|" in done.stdout
    assert "|   hot|    4|" in done.stdout
    assert "3 messages in the last four hours" in done.stdout
    assert "4 messages in the last hour" in done.stdout
    assert "9 messages in Parquet" in done.stdout


def test_every_option_is_explained() -> None:
    explained = {
        name for row in re.findall(r"^\| (`[^|]*`) \|", PAGE, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert explained == set(OPTIONS)
