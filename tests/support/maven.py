"""Jars of published Java programs with everything they depend on, fetched by Maven into the user's cache."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final, TypeAlias

from tests.support.cache import made_once
from tests.support.commands import CommandFailed, run

from afterglow.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Artifact: TypeAlias = tuple[str, str, str]
"""Group, name and version."""

_FETCH_S: Final = 600.0
"""A Pulsar is 235 MB in 320 jars: three minutes where none is in Maven's own cache."""


def maven_class_path(
    name: str,
    artifacts: Sequence[Artifact],
    *,
    pinned: Sequence[Artifact] = (),
    excluded: Sequence[str] = (),
) -> str:
    """The class path of some artifacts and their dependencies.

    Args:
        name: A name and version for the directory in the cache, which no other set of artifacts has.
        artifacts: What is wanted.
        pinned: Versions that dependencies have, whatever the artifacts' own descriptions say.
        excluded: Names of dependencies to leave out.

    Raises:
        MissingDependency: There is no Maven, or it could not fetch.
    """

    def fetch(scratch: Path) -> Path:
        maven = shutil.which("mvn")
        if maven is None:
            raise MissingDependency(f"{name} is fetched by Maven: install mvn")
        (scratch / "pom.xml").write_text(_pom(artifacts, pinned, excluded))
        (scratch / "settings.xml").write_text(_settings(scratch / "nothing"))
        goal = ["dependency:copy-dependencies", "-DoutputDirectory=lib", "-DincludeScope=runtime"]
        try:
            run([maven, "-q", "-B", "-gs", "settings.xml", *goal], limit_s=_FETCH_S, directory=scratch)
        except CommandFailed as error:
            raise MissingDependency(f"Maven could not fetch {name}: {error}") from error
        return scratch / "lib"

    return str(made_once(name, fetch) / "*")


def _pom(artifacts: Sequence[Artifact], pinned: Sequence[Artifact], excluded: Sequence[str]) -> str:
    without = "".join(
        f"<exclusion><groupId>*</groupId><artifactId>{name}</artifactId></exclusion>" for name in excluded
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion>"
        "<groupId>afterglow</groupId><artifactId>fetched</artifactId><version>1</version>"
        f"<dependencyManagement><dependencies>{''.join(map(_dependency, pinned))}</dependencies></dependencyManagement>"
        f"<dependencies>{''.join(_dependency(artifact, without) for artifact in artifacts)}</dependencies></project>"
    )


def _dependency(artifact: Artifact, without: str = "") -> str:
    group, name, version = artifact
    exclusions = f"<exclusions>{without}</exclusions>" if without else ""
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        f"{exclusions}</dependency>"
    )


def _settings(nothing: Path) -> str:
    """Have Maven ask the central repository only: some artifacts name others, which are gone or slow to say no.

    These are settings of the installation; the user's own, with a mirror or a proxy, go before them.
    """
    nothing.mkdir()
    mirror = f"<mirror><id>none</id><mirrorOf>*,!central</mirrorOf><url>{nothing.as_uri()}</url></mirror>"
    return f"<settings><mirrors>{mirror}</mirrors></settings>"
