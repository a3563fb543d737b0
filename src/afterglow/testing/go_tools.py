"""Programs in Go, built from their published modules into the user's cache; among them the Go client's perf tool."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from afterglow.errors import MissingDependency
from afterglow.testing.cache import made_once
from afterglow.testing.commands import CommandFailed, run

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
