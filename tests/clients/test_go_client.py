"""Pulsar's Go client where it waited out a time-out: it retries errors, and does not come back after some of them."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.commands import run, started
from tests.support.go_tools import go_source

from afterglow.errors import MissingDependency

if TYPE_CHECKING:
    from tests.support.commands import Running
    from tests.support.serving import Served

# The first run builds the program, which takes minutes.
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(1200)]

LIMIT_S = 90.0
POLL_S = 0.05
SOON_MS = 15_000
"""Half of what the client waits for an answer before it gives up."""


@pytest.fixture(scope="module")
def program() -> Path:
    try:
        return go_source(Path(__file__).parent / "go_program")
    except MissingDependency as error:
        pytest.skip(str(error))


def ended(output: str) -> str:
    """The error that a call ended with, soon."""
    found = re.search(r"^ended after (\d+) ms: (.*)", output, re.MULTILINE | re.DOTALL)
    assert found is not None, output
    assert int(found[1]) < SOON_MS
    return found[2].strip()


def until(program: Running, text: str) -> None:
    """Wait until a program has printed something."""
    give_up_at = time.monotonic() + LIMIT_S
    while text not in program.output:
        if program.process.poll() is not None or time.monotonic() > give_up_at:
            raise program.failure(f"did not print {text!r}")
        time.sleep(POLL_S)


def test_a_transaction_is_refused_at_once_and_by_name(program: Path, served: Served) -> None:
    output = run([str(program), "transaction", served.service_url, ""], limit_s=LIMIT_S)
    assert "doesn't enable the transaction coordinator" in ended(output)


def test_a_pattern_in_a_namespace_that_does_not_exist_is_subscribed_to(program: Path, served: Served) -> None:
    output = run([str(program), "pattern", served.service_url, "persistent://public/absent/.*"], limit_s=LIMIT_S)
    assert ended(output) == "<nil>"


def test_a_producer_waits_for_an_exclusively_held_topic(program: Path, served: Served, topic: str) -> None:
    output = run([str(program), "wait", served.service_url, topic], limit_s=LIMIT_S)
    assert "sharing: server error: ProducerBusy" in output
    assert ended(output) == "<nil>"


def test_a_producer_learns_at_once_that_its_topic_was_terminated(program: Path, served: Served, topic: str) -> None:
    for number in range(5):  # the end finds it before, in and behind a message
        name = f"{topic}-{number}"
        with started([str(program), "produce", served.service_url, name]) as producer:
            until(producer, "sending")
            served.admin("POST", f"persistent/{name.removeprefix('persistent://')}/terminate")
            producer.wait(LIMIT_S)
            assert "TopicTerminated" in ended(producer.output)
