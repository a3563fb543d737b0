"""A Python interpreter for Linux on aarch64, with packages, that runs under qemu's user-mode emulation.

Interpreter and packages are downloaded once: Debian's packages with an apt state of its own, without root and without a
change of this machine, and wheels from the package index in the versions of this environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest
from tests.support.cache import made_once

PACKAGES: Final = ("numpy", "pyarrow", "crc32c", "protobuf", "avro", "typing-extensions")
DEBIAN: Final = ("python3", "libstdc++6", "zlib1g")
_PLATFORMS: Final = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")


@dataclass(frozen=True)
class Emulated:
    """An interpreter under emulation."""

    qemu: str
    system: Path
    """Root of the other machine's files."""
    packages: Path

    def run(self, program: Path, package: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program with the package of a directory; fails if the program does."""
        root = Path(__file__).parents[2]
        done = subprocess.run(
            [self.qemu, "-L", str(self.system), str(next(self.system.glob("usr/bin/python3.??"))), str(program)],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join(map(str, (package, self.packages, root))),
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
        return done


def emulated() -> Emulated:
    """Return the interpreter; skips the test where one of the tools is missing."""
    qemu = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if qemu is None:
        pytest.skip("code for aarch64 is not run: qemu-aarch64 is not installed (apt-get install qemu-user)")
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        pytest.skip("code for aarch64 is not run: apt-get, which downloads an interpreter for it, is not installed")
    try:
        system = made_once("aarch64/system", _unpack_system)
        name = "-".join(f"{package}{metadata.version(package)}" for package in PACKAGES)
        packages = made_once(f"aarch64/{name}", lambda scratch: _unpack_packages(scratch, system))
    except subprocess.CalledProcessError as error:
        said = str(error.stderr or error.stdout or b"")[-500:]
        pytest.skip(f"code for aarch64 is not run: {error.cmd[0]} cannot download an interpreter for it: {said}")
    return Emulated(qemu, system, packages)


def _unpack_system(scratch: Path) -> Path:
    state = scratch / "apt"
    for directory in ("state/lists/partial", "cache/archives/partial", "debs"):
        (state / directory).mkdir(parents=True)
    (state / "status").touch()
    options = [
        *("-o", f"Dir::State={state}/state", "-o", f"Dir::Cache={state}/cache"),
        *("-o", f"Dir::State::status={state}/status", "-o", "APT::Sandbox::User="),
        *("-o", "APT::Architecture=arm64", "-o", "APT::Architectures=arm64"),
    ]
    _run("apt-get", *options, "update", "-qq")
    kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances", "pre-depends")
    without = [f"--no-{kind}" for kind in kinds]
    listed = _run("apt-cache", *options, "depends", "--recurse", *without, *DEBIAN)
    names = sorted({line for line in listed.splitlines() if line[:1].isalnum()})
    _run("apt-get", *options, "download", *names, cwd=state / "debs")
    system = scratch / "system"
    system.mkdir()
    for package in (state / "debs").glob("*.deb"):
        _run("dpkg", "-x", str(package), str(system))
    return system


def _unpack_packages(scratch: Path, system: Path) -> Path:
    (python,) = system.glob("usr/bin/python3.??")
    requirements = [f"{package}=={metadata.version(package)}" for package in PACKAGES]
    platforms = [text for name in _PLATFORMS for text in ("--platform", f"{name}_aarch64")]
    chosen = ["--python-version", python.name.removeprefix("python"), "--only-binary", ":all:", "--no-deps"]
    wheels = scratch / "wheels"
    _run(sys.executable, "-m", "pip", "download", "-q", *platforms, *chosen, "-d", str(wheels), *requirements)
    packages = scratch / "packages"
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as opened:
            opened.extractall(packages)
    return packages


def _run(*command: str, cwd: Path | None = None) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=cwd, timeout=600).stdout
