"""The first half of the demo, while the engine runs: messages are sent, segments leave, and a client seeks by time."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.engine.demo_engine import serving
from afterglow.engine.demo_traffic import WAVE, Traffic, connected, entries_of, seek_by_client
from afterglow.engine.demo_watch import watching
from afterglow.errors import AfterglowError
from afterglow.metadata.clock import wall_clock_ms

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from afterglow.engine.demo_engine import ServedEngine
    from afterglow.engine.demo_watch import Look, Show, Watch
    from afterglow.format.position import Position
    from afterglow.metadata.names import TopicName

_SENDING_S: Final = 15.0
"""Messages are spread over so long that people can see segments leave."""
_LEAST_RATE: Final = 500.0
"""Messages per second; a few of them need no 15 s."""
_FIRST_SHARE: Final = 0.3
"""Of the messages: more than the first segment holds, whatever compression spares."""
_LEAST_TO_WATCH: Final = 10_000
"""With fewer, segments are smaller than a part: there is little to see."""
_MOMENTS: Final = 4
"""At which seeks are made."""
_OFFLOAD_S: Final = 180.0
"""More than any machine takes that can start Spark at all."""
_FREE_S: Final = 15.0
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Streamed:
    """What was sent, and what the engine answered while it ran."""

    sent: pa.Table
    """Positions and digests, in order."""
    moments: list[int]
    """While messages were sent, epoch milliseconds."""
    sought: list[Position]
    """Where the stock client found itself at these."""


def stream(home: Path, conf: Path, topic: TopicName, messages: int, show: Show) -> Streamed:
    """Run an engine, send messages to a topic, and leave all of it in the tier.

    Raises:
        AfterglowError: The engine did not start, refused something, or did not get done.
    """
    show.say("Starting an engine: afterglow serve --streaming")
    with ExitStack() as stack:
        engine = stack.enter_context(serving(home, conf))
        show.say(f"It serves stock Pulsar clients at {engine.service_url}; {engine.summary}.")
        client = stack.enter_context(connected(engine.service_url))
        traffic = Traffic(client, str(topic))
        scene = _Scene(stack.enter_context(watching(home, topic)), show, entries_of(messages))
        moments = _send(traffic, messages, scene)
        _offload(engine, topic, scene)
        sought = seek_by_client(client, str(topic), moments)
        _await_freed(scene)
        scene.draw("the engine stops")
        return Streamed(traffic.table(), moments, sought)
    raise AssertionError("unreachable: the block returns or raises")


@dataclass(frozen=True, slots=True)
class _Scene:
    """What is watched, and by whom."""

    watch: Watch
    show: Show
    entries: int
    """That the log will have, about."""

    def draw(self, now: str) -> Look:
        """Show the topic as it is."""
        look = self.watch.look()
        self.show.picture(look, self.entries, f"{now}; {len(look.offloaded)} segments in the tier")
        return look

    def wait(self, done: Callable[[Look], bool], limit_s: float, now: str) -> Look | None:
        """Show the topic until something has come; None where it has not come in time."""
        deadline = time.monotonic() + limit_s
        while not done(look := self.draw(now)):
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)
        return look

    def reasons(self) -> str:
        """Why it has not come."""
        return "; ".join(self.watch.look().errors) or "give --home DIR and see serve.log there"


def _send(traffic: Traffic, messages: int, scene: _Scene) -> list[int]:
    """Send all messages, no faster than planned; returns some moments on the way."""
    moments: list[int] = []
    rate = max(messages / _SENDING_S, _LEAST_RATE)
    pause_at = messages * _FIRST_SHARE if messages >= _LEAST_TO_WATCH else messages
    began = time.monotonic()
    while traffic.sent < messages:
        if traffic.sent >= len(moments) * messages / _MOMENTS:
            moments.append(wall_clock_ms())
        traffic.wave(min(WAVE, messages - traffic.sent))
        look = scene.draw(f"{traffic.sent:,} of {messages:,} messages sent")
        if pause_at <= traffic.sent < messages:
            pause_at = messages
            began += _first_segment(scene)
        time.sleep(max(began + traffic.sent / rate - time.monotonic(), 0))
    took = time.monotonic() - began
    scene.show.say(
        f"A stock client sent {messages:,} messages, {traffic.value_bytes / 1e6:.1f} MB, batched and not, at "
        f"{messages / took:,.0f} messages/s. Meanwhile {len(look.ledgers) - 1} ledgers were closed, and "
        f"{len(look.offloaded)} segments completed in the tier."
    )
    return moments


def _first_segment(scene: _Scene) -> float:
    """Wait for the first segment, so that the others can be seen to leave; returns the seconds that it took."""
    began = time.monotonic()
    if scene.wait(lambda look: bool(look.offloaded), _OFFLOAD_S, "the engine starts Spark") is None:
        raise AfterglowError(f"no segment was offloaded within {_OFFLOAD_S:g} s: {scene.reasons()}")
    took = time.monotonic() - began
    scene.show.say(
        f"The first segment was full, and {took:.1f} s later in the tier: the engine had to start Spark for it."
    )
    return took


def _offload(engine: ServedEngine, topic: TopicName, scene: _Scene) -> None:
    """Have the engine bring everything up to the log end of now to the tier."""
    path = f"persistent/{topic.namespace}/{topic.local_name}/offload"
    last = scene.watch.look().ledgers[-1].ledger_id
    began = time.monotonic()
    engine.call("PUT", path, {"ledgerId": last, "entryId": 0, "partitionIndex": -1})

    def ended(_: Look) -> bool:
        status = engine.call("GET", path)
        if status["status"] == "ERROR":
            raise AfterglowError(f"the manual offload of {topic} failed: {status['lastError']}")
        return bool(status["status"] == "SUCCESS")

    if scene.wait(ended, _OFFLOAD_S, "a manual offload closes the last segment") is None:
        raise AfterglowError(f"the manual offload of {topic} did not end within {_OFFLOAD_S:g} s: {scene.reasons()}")
    took = time.monotonic() - began
    look = scene.watch.look()
    size_bytes = sum(segment.bytes for segment in look.offloaded)
    scene.show.say(
        f"A manual offload closed the last one; {took:.1f} s later all {len(look.offloaded)} segments were in the "
        f"tier, {size_bytes / 1e6:.1f} MB of {look.entries:,} entries."
    )


def _await_freed(scene: _Scene) -> None:
    """Wait for closed ledgers to leave the hot log; the one that is open stays."""

    def freed(look: Look) -> bool:
        return not any(ledger.hot for ledger in look.ledgers[:-1])

    scene.wait(freed, _FREE_S, "hot copies go once the tier has them whole")
    ledgers = scene.watch.look().ledgers
    gone = sum(not ledger.hot for ledger in ledgers)
    scene.show.say(f"{gone} of {len(ledgers)} ledgers have left the hot log; the newest is still open.")
