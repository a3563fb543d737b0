"""Results of ``make spark-matrix``, and the script that writes them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

from afterglow.spark.datasource.releases import CAPABILITIES, OLDEST

ROOT = Path(__file__).parents[2]
RESULTS: dict[str, Any] = json.loads((ROOT / "tests" / "spark" / "releases.json").read_text())
RELEASES = [name for name in RESULTS if name != "lowest"]


def number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_supports_what_the_table_of_capabilities_says(release: str) -> None:
    found = RESULTS[release]["capabilities"]
    expected = {each.name: "yes" if number(release) >= number(each.since) else "no" for each in CAPABILITIES}
    assert found == expected


def test_the_oldest_and_the_locked_release_have_results() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert OLDEST in RELEASES
    assert f"pyspark=={RESULTS[RELEASES[-1]]['versions']['pyspark']} " in lock


def test_an_unknown_release_is_refused_before_anything_is_installed() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "spark_matrix.py"],
        env={"AFTERGLOW_SPARK": "4.0,3.5", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "unknown release of Spark in AFTERGLOW_SPARK: 3.5; give 4.0, 4.1, 4.2, 4.3, lowest" in done.stderr


def test_a_capability_with_a_failed_test_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import spark_matrix

    assert spark_matrix.summary({"passed": 3, "failed": 1}) == "failed"
    assert spark_matrix.summary({"passed": 1, "skipped": 1}) == "yes"
    assert spark_matrix.summary({"skipped": 2}) == "no"


def test_the_versions_of_an_environment_are_the_locked_ones_except_those_of_spark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import spark_matrix

    spark_matrix.constraints("4.0", tmp_path / "constraints.txt")
    lines = (tmp_path / "constraints.txt").read_text().splitlines()
    names = [line.partition("==")[0] for line in lines]
    assert {"pyarrow", "protobuf", "numpy"} <= set(names)
    assert not {"pyspark", "py4j"} & set(names)
    assert all(line.partition(" ;")[0] in (ROOT / "requirements.lock").read_text() for line in lines)
