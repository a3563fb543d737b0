"""The README's programs run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from afterglow.spark.java import find_java
from afterglow.storage import open_store
from afterglow.testing.homes import EngineHome
from afterglow.testing.ledgers import message
from afterglow.testing.sample import sample_objects

README = Path(__file__).parents[2] / "README.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def program(marker: str) -> str:
    found: list[str] = [text for text in PROGRAMS if marker in text]
    assert len(found) == 1
    return found[0]


def test_every_program_is_run_here() -> None:
    assert len(PROGRAMS) == 4


def test_the_broker_program(tmp_path: Path) -> None:
    pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
    from afterglow.testing.serving import serving

    with serving(tmp_path) as served:
        text = program("import pulsar").replace("pulsar://127.0.0.1:6650", served.service_url)
        assert "b'hello'" in run(text)


def test_the_program_that_reads_a_topic(tmp_path: Path) -> None:
    pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
    from afterglow.testing.serving import serving

    with serving(tmp_path) as served:
        run(program("import pulsar").replace("pulsar://127.0.0.1:6650", served.service_url))
        assert run(program("afterglow.connect").replace("./home", str(tmp_path))) == "1 messages\n"


def test_the_program_that_makes_a_data_frame(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="the extra afterglow[spark] is not installed")
    with EngineHome(tmp_path) as home:
        home.write("my-topic", [message(b"hello")])
    shown = run(
        program("pyspark").replace("./home", str(tmp_path)),
        JAVA_HOME=str(find_java().home),
        SPARK_LOCAL_IP="127.0.0.1",
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # as in an environment that is activated
    )
    assert "|null| hot|    1|" in shown.replace("NULL", "null")


def test_the_arrow_program(tmp_path: Path) -> None:
    key, _ = sample_objects(open_store(tmp_path.as_uri()), 30, 1)
    text = program("decode_messages")
    text = text.replace("file:///var/tier", tmp_path.as_uri()).replace(
        "457d7db4-cd64-462a-8bf4-884af839cf0a-ledger-4", key
    )
    assert run(text) == "30 messages all readable\n"


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
