from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import copyfile, copytree

ROOT = Path(__file__).parents[2]


def generate(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = root / "scripts" / "generate_docs.py"
    return subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, check=False, timeout=300
    )


def test_the_generated_pages_are_current() -> None:
    result = generate(ROOT, "--check")
    assert result.returncode == 0, result.stderr


def test_a_stale_page_is_named_with_the_command_that_updates_it(tmp_path: Path) -> None:
    for directory in ("scripts", "src"):
        copytree(ROOT / directory, tmp_path / directory)
    (tmp_path / "tests" / "spark").mkdir(parents=True)
    for name in (".importlinter", "DEVELOP.md", "pyproject.toml", "tests/spark/releases.json"):
        copyfile(ROOT / name, tmp_path / name)
    page = tmp_path / "docs" / "configuration.md"
    page.parent.mkdir()
    page.write_text("stale")
    checked = generate(tmp_path, "--check")
    assert (checked.returncode, page.read_text()) == (1, "stale")
    pages = ("configuration", "metrics", "architecture", "spark-releases", "python-api", "cli", "rest-api")
    stale = ", ".join((*(f"docs/{name}.md" for name in pages), "docs/openapi.json"))
    assert f"stale: {stale}; run `make docs`" in checked.stderr
    assert generate(tmp_path).returncode == 0
    assert generate(tmp_path, "--check").returncode == 0
    assert "streamingOffloadEnabled" in page.read_text("utf-8")
    assert "pulsar_storage_offloaded_size" in (tmp_path / "docs" / "metrics.md").read_text("utf-8")
