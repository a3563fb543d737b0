from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.serving import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.serving import Served

pulsar = pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("home")) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[Any]:
    client = pulsar.Client(
        served.service_url,
        operation_timeout_seconds=20,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    yield client
    # The client drops its connection when a topic is terminated; closing fails while its producer reconnects.
    with suppress(pulsar.NotConnected):
        client.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t-{uuid.uuid4().hex[:10]}"
