"""Seek by time over offloaded topics of 1, 100 and 1,600 segments of 64 MiB; see :mod:`bench.sparse`.

By two paths: the library (``topic.seek``), and a stock Pulsar client against ``afterglow serve``. Cold: each seek by a
source that was connected anew, or a broker that was started anew, and knows no index and no record. Warm: all by one
that has sought to the same entries before, as many as its cache holds.
Requests are counted at the store, by the broker's own metrics. The answer of every seek is compared with what was
written.

A client's seek ends when it has subscribed again, for which it waits 100 ms by itself.

The search itself goes by bisection; the seeking client also makes the broker read the topic's ledger list, which names
every segment. Growth is compared with that of the logarithm: 1 where the time per doubling stays the same.

``BENCH_SEEK_SEGMENTS`` names the sizes, ``BENCH_SEEK_COUNT`` says how many seeks of each by the library (300 by
default), and ``BENCH_SEEK_STARTS`` how many by a client, each with a start of the broker (12 by default).
"""

from __future__ import annotations

import math
import os
import random
import tempfile
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pulsar
from tests.support.serving import TierRequests, serving

from afterglow.config import load_conf
from afterglow.format.position import Position
from afterglow.read.counters import ReadCounters
from afterglow.read.tier_reader import TierReader
from afterglow.source.addresses import SourceAddress, open_source
from afterglow.source.connect import Source
from afterglow.source.partition import SourceContext
from afterglow.storage import CountingStore
from afterglow.tier.locations import Tiers
from bench.measure import keep
from bench.offload import Target
from bench.sparse import LEDGER, PER_SEGMENT, sparse_topic, time_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from tests.support.serving import Served

    from afterglow.storage.store import ObjectStore
    from bench.topics import Topic

SEGMENTS = tuple(int(count) for count in os.environ.get("BENCH_SEEK_SEGMENTS", "1,100,1600").split(","))
COUNT = int(os.environ.get("BENCH_SEEK_COUNT", "300"))
STARTS = int(os.environ.get("BENCH_SEEK_STARTS", "12"))
PATHS = ("library", "stock client")
WARM = 100  # blocks of 1 MiB, of which the cache holds 256 by default
REQUESTS = tuple(name.replace("_", " ") for name in TierRequests._fields)
CONF = "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"


def size_name(segments: int) -> str:
    """What figures of a size begin with."""
    return f"{segments:,} segment{'s' if segments > 1 else ''}"


GOALS = {
    f"{size_name(count)}, {path}: {what} of a seek, most": 1
    for count in SEGMENTS
    for path in PATHS
    for what in REQUESTS[1:]
}


def position_of(number: int) -> Position:
    """Where an entry stands, by its number in the topic."""
    return Position(number // (PER_SEGMENT * LEDGER) + 1, number % (PER_SEGMENT * LEDGER))


class Seeker(Protocol):
    """Something that knows nothing of a topic when it is made, and seeks in it."""

    def seek(self, time_ms: int) -> None:
        """Seek by time."""
        ...

    def found(self) -> Position:
        """Where the last seek has led to."""
        ...

    def requests(self) -> TierRequests:
        """Requests so far."""
        ...


class LibrarySeeker:
    """A source whose requests are counted; as :func:`afterglow.connect` makes it."""

    def __init__(self, topic: Topic, stack: ExitStack) -> None:
        config = load_conf()
        self._stores: list[CountingStore] = []
        self._counters = ReadCounters()
        directory, locator = open_source(SourceAddress(str(topic.home)), config, None, Tiers(), stack)
        tiers = TierReader(Tiers(self._wrap), config, locator)
        stack.callback(tiers.close)
        self._found = Position(-1, -1)
        self._topic = Source(SourceContext(directory, tiers, self._counters), ExitStack()).topic(topic.name)

    def seek(self, time_ms: int) -> None:
        """Seek by time; see the protocol."""
        self._found = self._topic.seek(time_ms)

    def found(self) -> Position:
        """Where that has led to; see the protocol."""
        return self._found

    def requests(self) -> TierRequests:
        """Requests so far; see the protocol."""
        counts = [store.counts() for store in self._stores]
        heads, gets = (sum(each[name].requests for each in counts if name in each) for name in ("head", "get"))
        ranged = self._counters.counts().requests
        return TierRequests(heads, gets - ranged, ranged)

    def _wrap(self, store: ObjectStore) -> ObjectStore:
        self._stores.append(CountingStore(store))
        return self._stores[-1]


class ClientSeeker:
    """A consumer of Pulsar's own client, connected to a broker that has just started."""

    def __init__(self, topic: Topic, served: Served, stack: ExitStack) -> None:
        self._served = served
        client = pulsar.Client(served.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        stack.callback(client.close)
        # Without a queue the client asks for no message before the program receives one: only the seek is counted.
        self._consumer = client.subscribe(topic.name, "bench", receiver_queue_size=0)

    def seek(self, time_ms: int) -> None:
        """Seek by time; see the protocol."""
        self._consumer.seek(time_ms)

    def found(self) -> Position:
        """Where that has led to; see the protocol."""
        received = self._consumer.receive().message_id()
        return Position(received.ledger_id(), received.entry_id())

    def requests(self) -> TierRequests:
        """Requests so far; see the protocol."""
        return self._served.tier_requests()


@contextmanager
def library(topic: Topic) -> Iterator[Seeker]:
    with ExitStack() as stack:
        yield LibrarySeeker(topic, stack)


@contextmanager
def stock_client(topic: Topic) -> Iterator[Seeker]:
    conf = topic.home.parent / "broker.conf"
    conf.write_text(CONF)
    with serving(topic.home, "--conf", str(conf)) as served, ExitStack() as stack:
        yield ClientSeeker(topic, served, stack)


def timed(seeker: Seeker, number: int) -> float:
    """Seconds that it takes to seek to an entry by its time."""
    start = time.perf_counter()
    seeker.seek(time_of(number))
    return time.perf_counter() - start


def measure(connect: Callable[[], AbstractContextManager[Seeker]], wanted: Sequence[int]) -> dict[str, Any]:
    """Figures of one path."""
    cold: list[float] = []
    costs: list[TierRequests] = []
    for number in wanted:
        with connect() as seeker:
            before = seeker.requests()
            cold.append(timed(seeker, number))
            costs.append(seeker.requests().since(before))
            if (found := seeker.found()) != (right := position_of(number)):
                raise RuntimeError(f"the seek to entry {number} has found {found}, not {right}")
    with connect() as seeker:
        for number in wanted[:WARM]:
            timed(seeker, number)
        before = seeker.requests()
        warm = [timed(seeker, number) for number in wanted[:WARM]]
        again = sum(seeker.requests().since(before))
    most = np.array(costs).max(axis=0).tolist()
    return {
        **{f"cold, p{at}, ms": round(float(np.percentile(cold, at)) * 1000, 2) for at in (50, 99)},
        **{f"warm, p{at}, ms": round(float(np.percentile(warm, at)) * 1000, 2) for at in (50, 99)},
        **{f"{what} of a seek, most": count for what, count in zip(REQUESTS, most, strict=True)},
        "requests of a warm seek, mean": round(again / len(warm), 2),
    }


def main() -> None:
    figures: dict[str, Any] = {}
    for segments in SEGMENTS:
        rng = random.Random(segments)
        wanted = [rng.randrange(segments * PER_SEGMENT) for _ in range(COUNT)]
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
            tier = Path(name, "tier")
            tier.mkdir()
            topic = sparse_topic(Path(name, "home"), tier, Target(tier.as_uri(), {}, {}), segments, wanted)
            for path, connect, count in ((PATHS[0], library, COUNT), (PATHS[1], stock_client, STARTS)):
                found = measure(partial(connect, topic), wanted[:count])
                figures |= {f"{size_name(segments)}, {path}: {figure}": value for figure, value in found.items()}
    few, many = min(count for count in SEGMENTS if count > 1), max(SEGMENTS)
    times = [figures[f"{size_name(segments)}, library: cold, p50, ms"] for segments in (few, many)]
    figures[f"library: growth of the cold p50 from {few:,} to {many:,} segments / of the logarithm"] = round(
        times[1] / times[0] / (math.log(many) / math.log(few)), 2
    )
    keep("seek", figures, GOALS)
