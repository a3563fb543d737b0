"""Programs in Go, built from their published modules into the user's cache; among them the Go client's perf tool."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING, Final

from tests.support.cache import made_once
from tests.support.commands import CommandFailed, run

from afterglow.errors import MissingDependency

if TYPE_CHECKING:
    from pathlib import Path

_BUILD_S: Final = 900.0
_PERF: Final = "github.com/apache/pulsar-client-go/perf"
_PERF_VERSION: Final = "v0.19.0"


def go_perf() -> Path:
    """The perf tool of Pulsar's Go client: half a minute of CPU, once.

    Raises:
        MissingDependency: There is no Go, or the build fails.
    """
    return go_program("pulsar-perf-go", _PERF, _PERF_VERSION)


def go_program(name: str, package: str, version: str) -> Path:
    """Find a program in the cache, or build it.

    Args:
        name: What it is called in the cache.
        package: Its main package; the last part is the name that Go gives the program.
        version: As Go writes it, with a ``v``.

    Raises:
        MissingDependency: There is no Go, or the build fails.
    """

    def build(scratch: Path) -> Path:
        go = shutil.which("go")
        if go is None:
            raise MissingDependency(f"{name} is not in the cache and is built with Go: install go")
        try:
            run([go, "install", f"{package}@{version}"], limit_s=_BUILD_S, environment={"GOBIN": str(scratch)})
        except CommandFailed as error:
            raise MissingDependency(f"{name} {version} does not build: {error}") from error
        return scratch / package.rpartition("/")[2]

    return made_once(f"bin/{name}-{version}", build)


def go_source(directory: Path) -> Path:
    """Build a program of our own that uses Pulsar's Go client; it is built anew where its source has changed.

    Args:
        directory: Has its ``main.go`` and its ``go.mod``, which names the client's version.

    Raises:
        MissingDependency: There is no Go, or the build fails.
    """
    sources = {name: (directory / name).read_bytes() for name in ("main.go", "go.mod")}
    digest = hashlib.sha256(b"".join(sources.values())).hexdigest()[:12]

    def build(scratch: Path) -> Path:
        go = shutil.which("go")
        if go is None:
            raise MissingDependency(f"{directory.name} is not in the cache and is built with Go: install go")
        module = scratch / "module"
        module.mkdir()
        for name, content in sources.items():
            (module / name).write_bytes(content)
        try:
            run([go, "build", "-C", str(module), "-mod=mod", "-o", str(scratch / "program"), "."], limit_s=_BUILD_S)
        except CommandFailed as error:
            raise MissingDependency(f"{directory.name} does not build: {error}") from error
        return scratch / "program"

    return made_once(f"bin/{directory.name}-{digest}", build)
