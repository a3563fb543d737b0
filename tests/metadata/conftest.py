from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from tests.support.zookeeper import ZooKeeperServer, maven_jars, spark_jars

from afterglow.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Iterator

_numbers = itertools.count()


@pytest.fixture(scope="session", params=["pyspark", pytest.param("maven", marks=pytest.mark.pulsar)])
def zookeeper_jars(request: pytest.FixtureRequest) -> str:
    try:
        return spark_jars() if request.param == "pyspark" else maven_jars()
    except MissingDependency as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def zookeeper(zookeeper_jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server that many tests share: none may stop it."""
    yield from _running(zookeeper_jars, tmp_path_factory)


@pytest.fixture
def own_zookeeper(zookeeper_jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server of the test's own, to be paused and killed."""
    yield from _running(zookeeper_jars, tmp_path_factory)


@pytest.fixture
def chroot() -> str:
    """A node of the shared server for one test, whose access list no other test inherits."""
    return f"/tests-{next(_numbers)}"


def _running(jars: str, directories: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    try:
        with ZooKeeperServer(jars, directories.mktemp("zookeeper")) as server:
            yield server
    except MissingDependency as reason:
        pytest.skip(str(reason))
