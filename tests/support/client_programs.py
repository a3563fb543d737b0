"""Programs written with the stock clients of four languages, built from their sources into the user's cache."""

from __future__ import annotations

import hashlib
import shutil
import sys
from typing import TYPE_CHECKING, Final

from tests.support.cache import cache_directory, made_once
from tests.support.commands import CommandFailed, run
from tests.support.java_tools import FLAGS, OPENED
from tests.support.pulsar_standalone import broker_class_path

from afterglow.errors import MissingDependency
from afterglow.spark.java import find_java

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_BUILD_S: Final = 1800.0
"""Go takes two minutes of CPU and Rust four; this is for two cores that have other work."""
_PROTOC: Final = '#!/bin/sh\nexec "{python}" -m grpc_tools.protoc "$@"\n'
"""The Rust client runs ``protoc`` when it is built; the wheel of grpcio-tools has one, but no program of that name."""


def python_program(source: Path) -> list[str]:
    """The command that runs a program of ``programs.py``."""
    return [sys.executable, "-u", str(source / "programs.py")]


def java_program(source: Path, name: str = "Programs", flags: Sequence[str] = FLAGS) -> list[str]:
    """The command that runs a Java program, with the client of the broker's version.

    Args:
        source: Its directory.
        name: Of its class.
        flags: Of the virtual machine.

    Raises:
        MissingDependency: There is no Java compiler, the client cannot be fetched, or the build fails.
    """
    class_path = broker_class_path()

    def build(scratch: Path) -> Path:
        _build("the Java program", "javac", ["-d", str(scratch / "classes"), "-cp", class_path, f"{name}.java"], source)
        return scratch / "classes"

    classes = made_once(f"programs-java/{_digest(source)}", build)
    java = str(find_java().home / "bin" / "java")
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED]
    return [java, *flags, *opened, "-cp", f"{classes}:{class_path}", name]


def go_program_of(source: Path) -> list[str]:
    """The command that runs the Go program.

    Raises:
        MissingDependency: There is no Go, or the build fails.
    """

    def build(scratch: Path) -> Path:
        _build("the Go program", "go", ["build", "-o", str(scratch / "programs"), "."], source)
        return scratch / "programs"

    return [str(made_once(f"programs-go/{_digest(source)}", build))]


def rust_program(source: Path) -> list[str]:
    """The command that runs the Rust program.

    Raises:
        MissingDependency: There is no Cargo, or the build fails.
    """

    def build(scratch: Path) -> Path:
        crate = scratch / "crate"  # Cargo writes a lock file beside the sources
        shutil.copytree(source, crate)
        environment = {"CARGO_TARGET_DIR": str(cache_directory() / "cargo-target")}
        if shutil.which("protoc") is None:
            protoc = scratch / "protoc"
            protoc.write_text(_PROTOC.format(python=sys.executable))
            protoc.chmod(0o755)
            environment["PROTOC"] = str(protoc)
        _build("the Rust program", "cargo", ["build", "--quiet"], crate, environment)
        shutil.copy2(cache_directory() / "cargo-target" / "debug" / "programs", scratch / "programs")
        return scratch / "programs"

    return [str(made_once(f"programs-rust/{_digest(source)}", build))]


def _build(
    what: str, tool: str, arguments: Sequence[str], directory: Path, environment: dict[str, str] | None = None
) -> None:
    path = shutil.which(tool)
    if path is None:
        raise MissingDependency(f"{what} is not in the cache and is built with {tool}: install {tool}")
    try:
        run([path, *arguments], limit_s=_BUILD_S, directory=directory, environment=environment)
    except CommandFailed as error:
        raise MissingDependency(f"{what} does not build: {error}") from error


def _digest(source: Path) -> str:
    """A digest of all files of a program: another source is another program in the cache."""
    digest = hashlib.sha256()
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(source)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
