"""The history of rates that the server keeps for plots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pulsar
import pytest

from afterglow.pipeline.metrics import history as history_module
from afterglow.pipeline.metrics.history import FIELDS, SAMPLES, RateHistory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.admin.conftest import Admin

TOPIC = "persistent/public/default/t"


@pytest.fixture
def client(admin: Admin) -> Iterator[pulsar.Client]:
    client = pulsar.Client(admin.service.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def sample(admin: Admin) -> None:
    admin.run(admin.process.history.sample())


def test_a_plot_has_the_past_of_a_topic_and_of_all_topics(admin: Admin, client: pulsar.Client) -> None:
    assert admin.get("afterglow/history") == []
    producer = client.create_producer("t", batching_enabled=False)
    sample(admin)
    for _ in range(10):
        producer.send(bytes(1000))
    sample(admin)
    both = admin.get(f"{TOPIC}/history"), admin.get("afterglow/history")
    for samples in both:
        before, after = samples
        assert before["at_ms"] <= after["at_ms"]
        assert after["messages_in"] > before["messages_in"] == 0
        assert after["bytes_in"] >= 1000 * after["messages_in"] > 0
        assert after["lag_bytes"] > 10_000
        assert set(after) == {"at_ms", *FIELDS}
    assert both[0][1]["lag_seconds"] is not None
    assert admin.get("persistent/public/default/other/history") == []


def test_the_history_of_very_many_topics_is_bounded(admin: Admin) -> None:
    for number in range(4):
        admin.do("PUT", f"persistent/public/default/t{number}")
        admin.do("PUT", f"persistent/public/default/t{number}/subscription/s", "latest")  # opens the topic
    history = RateHistory(admin.process.overview, max_topics=2)
    names = [f"persistent://public/default/t{number}" for number in range(4)]
    for _ in range(SAMPLES + 5):
        admin.run(history.sample())
    assert [len(history.samples(name)) for name in names].count(SAMPLES) == 2
    assert len(history.samples()) == SAMPLES
    kept = [name for name in names if history.samples(name)]
    # a topic that is gone leaves its place to another
    admin.do("DELETE", kept[0].replace("://", "/"))
    admin.run(history.sample())
    assert history.samples(kept[0]) == []
    assert [len(history.samples(name)) for name in names].count(1) == 1
    assert history_module.MAX_TOPICS * SAMPLES * len(FIELDS) * 4 < 4 << 20
