"""A packed Python environment with this package, for executors that have nothing installed but Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.cache import made_once
from tests.support.pages import Page

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = Page.read(ROOT / "docs" / "spark-cluster.md")


def spark_only() -> Path:
    """The home of a PySpark as it is installed here, in an environment without anything else."""
    import pyspark

    def make(scratch: Path) -> Path:
        _uv("venv", "--quiet", "--python", sys.executable, str(scratch / "spark"))
        python = str(scratch / "spark" / "bin" / "python")
        _uv("pip", "install", "--quiet", "--python", python, f"pyspark=={pyspark.__version__}")
        return scratch / "spark"

    environment = made_once(f"spark-only/{pyspark.__version__}", make)
    (home,) = environment.glob("lib/python3*/site-packages/pyspark")
    return home


def pack(directory: Path) -> Path:
    """Run the commands of the page that pack an environment, with the wheel of these sources; returns the archive."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=900)
    (commands,) = [each.text for each in PAGE.listings() if "venv-pack" in each.text and each.language == "sh"]
    script = f"set -e\n{commands}"
    path = f"{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-c", script],
        check=False,
        cwd=directory,
        env={**_plain_environment(), "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return directory / "environment.tar.gz"


def _plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}


def _uv(*arguments: str) -> None:
    command: Sequence[str] = [str(Path(sys.executable).with_name("uv")), *arguments]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
