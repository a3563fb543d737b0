from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support import zookeeper

from afterglow.errors import MetadataUnavailable, MissingDependency

if TYPE_CHECKING:
    from pathlib import Path


def test_without_maven_the_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERGLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match="install mvn"):
        zookeeper.maven_jars()


def test_without_pyspark_the_pip_command_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingDependency, match=r"pulsar-afterglow\[spark\]: pip install 'pyspark"):
        zookeeper.spark_jars()


def test_a_fetch_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho no such artifact\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("AFTERGLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(MissingDependency, match="no such artifact"):
        zookeeper.maven_jars()
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_server_that_ends_at_once_is_reported_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(MetadataUnavailable, match="ZooKeeperServerMain"), zookeeper.ZooKeeperServer("none", tmp_path):
        pytest.fail("the server started without its classes")
