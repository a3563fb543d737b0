from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from tests.support.offloaded import OffloadedTopic, random_entries
from tests.support.servers import start_moto

from afterglow.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers import S3Server


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with start_moto() as server:
        yield server


@pytest.fixture
def world() -> OffloadedTopic:
    """An empty one in memory."""
    return OffloadedTopic()


@pytest.fixture(params=["memory", "directory", "s3"])
def any_world(request: pytest.FixtureRequest, tmp_path: Path) -> OffloadedTopic:
    """An empty one on each kind of store."""
    if request.param == "memory":
        return OffloadedTopic()
    if request.param == "directory":
        return OffloadedTopic(open_store((tmp_path / "tier").as_uri(), create="true"))
    moto: S3Server = request.getfixturevalue("moto")
    bucket = f"verify-{uuid.uuid4()}"
    moto.create_bucket(bucket)
    return OffloadedTopic(open_store(f"s3://{bucket}/below", **moto.options()))


@pytest.fixture
def v1(world: OffloadedTopic) -> str:
    """Ledger 5 with 60 entries in several blocks, its hot copy gone."""
    world.ledger(5, random_entries(60))
    key = world.offload(5, block_bytes=4096)
    world.free(5)
    return key


@pytest.fixture
def v2(world: OffloadedTopic) -> str:
    """A segment over the ends of ledger 5 and the whole of ledger 6."""
    world.ledger(5, random_entries(60))
    world.ledger(6, random_entries(30, seed=1))
    key = world.segment([(5, 0, 59), (6, 0, 29)], block_bytes=4096)
    world.free(5)
    world.free(6)
    return key
