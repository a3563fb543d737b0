"""The programs of the part on Spark in docs/dataframes.md run in order, as a reader would try them."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from tests.support.homes import ServerHome, batch
from tests.support.ledgers import message
from tests.support.pages import Page, run_python

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

from afterglow.spark.datasource.options import OPTIONS

PAGE = Page.read(Path(__file__).parents[2] / "docs" / "dataframes.md")


def test_the_programs_run_and_print_their_results(tmp_path: Path) -> None:
    programs = PAGE.part("Spark").programs
    assert len(programs) == 4
    home = tmp_path / "home"
    home.mkdir()
    now_ms = time.time_ns() // 1_000_000
    with ServerHome(home) as server:
        server.clock.set_now_ms(now_ms - 86_400_000)
        old, _ = server.write("orders", [message(b"old", now_ms - 86_400_000)] * 5, [message(b"", now_ms)])
        server.offload("orders", old)
        server.clock.set_now_ms(now_ms)
        server.write("orders", [batch([b"1", b"2", b"3"], now_ms)])
    output = run_python("-c", "\n".join(programs), cwd=tmp_path)
    assert "|tiered|    5|" in output
    assert "|   hot|    4|" in output
    assert "3 messages in the last four hours" in output
    assert "4 messages in the last hour" in output
    assert "9 messages in Parquet" in output


def test_every_option_is_explained() -> None:
    explained = {
        name for row in re.findall(r"^\| (`[^|]*`) \|", PAGE.text, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert explained == set(OPTIONS)
