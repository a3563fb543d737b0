"""Seek by time over offloaded topics of 1, 10 and 100 GiB, in segments of 64 MiB; see :mod:`bench.sparse`.

Cold: each seek by a source that was connected anew, and knows no index and no record. Warm: all by one source. Requests
are counted at the store. The answer of every seek is compared with what was written.

The search itself goes by bisection; whoever seeks also reads the topic's list, which names every segment. Growth is
compared with that of the logarithm: 1 where the time per doubling stays the same.

``BENCH_SEEK_GIB`` names the sizes, ``BENCH_SEEK_COUNT`` says how many seeks of each, 300 by default.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from afterglow.config import load_conf
from afterglow.engine.source import Source
from afterglow.engine.source_opening import SourceAddress, open_source
from afterglow.engine.source_part import Rooms
from afterglow.format.position import Position
from afterglow.read.counters import ReadCounters
from afterglow.read.places import Tiers
from afterglow.read.tier_source import TierSource
from afterglow.storage import CountingStore
from bench.measure import keep
from bench.offload import Target
from bench.sparse import LEDGER, PER_SEGMENT, sparse_topic, time_of
from bench.topics import SEGMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.storage.store import ObjectStore
    from bench.topics import Topic

SIZES = tuple(int(size) for size in os.environ.get("BENCH_SEEK_GIB", "1,10,100").split(","))
COUNT = int(os.environ.get("BENCH_SEEK_COUNT", "300"))
GOALS = {
    **{f"{size} GiB: index reads of a seek, most": 1 for size in SIZES},
    **{f"{size} GiB: ranged gets of a seek, most": 1 for size in SIZES},
}


class Counted:
    """Makes sources whose requests are counted."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._config = load_conf()
        self._stores: list[CountingStore] = []
        self.counters = ReadCounters()

    @contextmanager
    def source(self) -> Iterator[Source]:
        """A source that knows nothing yet; as :func:`afterglow.connect` makes it."""
        with ExitStack() as stack:
            directory, locator = open_source(SourceAddress(str(self._home)), self._config, None, stack)
            tiers = TierSource(Tiers(self._wrap), self._config, locator)
            stack.callback(tiers.close)
            with Source(Rooms(directory, tiers, self.counters), stack.pop_all()) as source:
                yield source

    def requests(self) -> tuple[int, int, int]:
        """Heads, gets of indexes, ranged gets of data, since this was asked last."""
        counts = [store.counts() for store in self._stores]
        heads, gets = (sum(each[name].requests for each in counts if name in each) for name in ("head", "get"))
        ranged = self.counters.counts().requests
        return heads, gets - ranged, ranged

    def _wrap(self, store: ObjectStore) -> ObjectStore:
        self._stores.append(CountingStore(store))
        return self._stores[-1]


def seek(source: Source, topic: Topic, number: int) -> float:
    """Seconds that it takes to find an entry by its time."""
    found_in = source.topic(topic.name)
    start = time.perf_counter()
    found = found_in.seek(time_of(number))
    seconds = time.perf_counter() - start
    if found != Position(number // (PER_SEGMENT * LEDGER) + 1, number % (PER_SEGMENT * LEDGER)):
        raise RuntimeError(f"the seek to entry {number} has found {found}")
    return seconds


def measure(size: int, directory: Path) -> dict[str, Any]:
    """Figures of a topic of so many GiB."""
    segments = (size << 30) // SEGMENT
    rng = random.Random(size)
    wanted = [rng.randrange(segments * PER_SEGMENT) for _ in range(COUNT)]
    tier = directory / "tier"
    tier.mkdir()
    topic = sparse_topic(directory / "home", tier, Target(tier.as_uri(), {}, {}), segments, wanted)
    counted = Counted(topic.home)
    cold: list[float] = []
    costs: list[tuple[int, ...]] = []
    for number in wanted:
        with counted.source() as source:
            before = counted.requests()
            cold.append(seek(source, topic, number))
            costs.append(tuple(b - a for a, b in zip(before, counted.requests(), strict=True)))
    with counted.source() as source:
        for number in wanted:  # after which every index is known that fits the cache
            seek(source, topic, number)
        warm = [seek(source, topic, number) for number in wanted]
    most = np.array(costs).max(axis=0).tolist()
    return {
        "segments": segments,
        **{f"cold, p{at}, ms": round(float(np.percentile(cold, at)) * 1000, 2) for at in (50, 99)},
        **{f"warm, p{at}, ms": round(float(np.percentile(warm, at)) * 1000, 2) for at in (50, 99)},
        "heads of a seek, most": most[0],
        "index reads of a seek, most": most[1],
        "ranged gets of a seek, most": most[2],
    }


def main() -> None:
    figures: dict[str, Any] = {}
    p50: dict[int, tuple[int, float]] = {}
    for size in SIZES:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
            found = measure(size, Path(name))
        p50[size] = (found["segments"], found["cold, p50, ms"])
        figures |= {f"{size} GiB: {figure}": value for figure, value in found.items()}
    least, *_, most = sorted(p50)
    segments, times = zip(p50[least], p50[most], strict=True)
    figures["growth of the cold p50 / of the logarithm of the segments"] = round(
        times[1] / times[0] / (math.log(segments[1]) / math.log(segments[0])), 2
    )
    keep("seek", figures, GOALS)
