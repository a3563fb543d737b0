"""The perf tool of Pulsar's Go client, unmodified, against a real process."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from tests.support.commands import started
from tests.support.go_tools import go_perf

from afterglow.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.commands import Running
    from tests.support.serving import Served

# The first run builds the tool, which takes minutes.
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(1200)]

LIMIT_S = 60.0
POLL_S = 0.1
RATE = 2000


@pytest.fixture(scope="module")
def perf() -> Path:
    try:
        return go_perf()
    except MissingDependency as error:
        pytest.skip(str(error))


def until(condition: Callable[[], Any], *programs: Running) -> None:
    """Wait until something holds, while programs run that end only on request."""
    give_up_at = time.monotonic() + LIMIT_S
    while not condition():
        for program in programs:
            if program.process.poll() is not None:
                raise program.failure("ended by itself")
            if time.monotonic() > give_up_at:
                raise program.failure(f"did not get so far within {LIMIT_S:g} s")
        time.sleep(POLL_S)


@pytest.mark.parametrize("kind", ["0", "1"], ids=["exclusive", "shared"])
def test_the_go_client_produces_and_consumes_at_the_same_time(
    perf: Path, served: Served, client: Any, topic: str, kind: str
) -> None:
    path = f"persistent/{topic.removeprefix('persistent://')}"
    served.admin("PUT", f"{path}/subscription/s")
    common = [str(perf), "-u", served.service_url, "--metrics", "-1"]
    with (
        started([*common, "consume", topic, "-s", "s", "-t", kind]) as consumer,
        started([*common, "produce", topic, "-r", str(RATE), "-s", "1024"]) as producer,
    ):
        # Each tells every ten seconds how it goes.
        until(lambda: "Stats - Consume rate" in consumer.errors, consumer, producer)
        until(lambda: "Stats - Publish rate" in producer.errors, consumer, producer)
        rate = re.search(r"Publish rate: *([0-9.]+) msg/s", producer.errors)
        assert rate is not None
        assert RATE / 2 < float(rate[1]) < RATE * 2
        producer.interrupt()
        producer.wait(LIMIT_S)  # its exit code says nothing: it publishes on while it closes, and fails at that
        until(lambda: served.admin("GET", f"{path}/stats")["subscriptions"]["s"]["msgBacklog"] == 0, consumer)
        consumer.interrupt()
        assert consumer.wait(LIMIT_S) == 0

    stats = served.admin("GET", f"{path}/stats")
    sent = stats["msgInCounter"]
    assert sent >= 10 * RATE / 2
    assert stats["subscriptions"]["s"]["msgOutCounter"] == sent
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    sizes = []
    while reader.has_message_available():
        sizes.append(len(reader.read_next(20_000).data()))
    assert sizes == [1024] * sent
