"""Planning of a stream: from offset to offset over topics that grow, move and are trimmed.

An offset is a position of every topic, never a place: a batch that is planned again, after a restart or much later,
reads the same entries from wherever they are then.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from afterglow.errors import EntriesMissing, TopicMissing
from afterglow.format.position import LATEST, Position
from afterglow.spark.datasource.points import START, Point
from afterglow.spark.datasource.schema import schemas_for
from afterglow.spark.datasource.selected_topics import connected, topics_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from afterglow.read.splits import Split
    from afterglow.source.connect import SourceTopic
    from afterglow.source.directory import SourceLedger
    from afterglow.spark.datasource.options import SourceOptions
    from afterglow.spark.datasource.schema import Shape
    from afterglow.spark.datasource.tasks import Schemas


@dataclass(frozen=True, slots=True)
class Limit:
    """What a micro-batch may hold; None: no bound."""

    size_bytes: int | None = None
    """Of blocks, or of entries in the hot log. Kept to an entry of each topic and what blocks differ in themselves."""
    entries: int | None = None
    """Kept."""

    @property
    def spent(self) -> bool:
        """Whether nothing fits any more."""
        return any(bound is not None and bound <= 0 for bound in (self.size_bytes, self.entries))

    def part(self, of: int) -> Limit:
        """One of so many equal parts, at least one entry and one byte."""
        return Limit(*(None if bound is None else max(bound // of, 1) for bound in (self.size_bytes, self.entries)))

    def less(self, size_bytes: int, entries: int) -> Limit:
        """What is left of it."""
        return Limit(
            None if self.size_bytes is None else self.size_bytes - size_bytes,
            None if self.entries is None else self.entries - entries,
        )


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a topic has that was not read yet."""

    topic: str
    """Full name, with the partition."""
    end: Point
    """Where it ends."""
    entries: int
    """About so many; at least one."""
    splits: Callable[[], Iterable[Split]]
    """The same cut, in order; made as it is looked at."""


def admit(waiting: Sequence[Waiting], limit: Limit, turn: int = 0) -> dict[str, Point]:
    """How far each topic goes in the next micro-batch; those that must wait are left out.

    Topics with little give what they do not need to those with more. Where there are more topics than entries may be
    read, they take turns.

    Args:
        waiting: What there is.
        limit: For all together.
        turn: Goes up by one with every micro-batch.
    """
    first = turn % max(len(waiting), 1)
    fair = None if limit.entries is None else limit.entries // max(len(waiting), 1)
    order = sorted(
        [*waiting[first:], *waiting[:first]],
        key=lambda topic: topic.entries if fair is None else min(topic.entries, fair),
    )
    found: dict[str, Point] = {}
    for number, topic in enumerate(order):
        if limit.spent:
            break
        found[topic.topic], size_bytes, entries = _reached(topic, limit.part(len(order) - number))
        limit = limit.less(size_bytes, entries)
    return found


def _reached(topic: Waiting, limit: Limit) -> tuple[Point, int, int]:
    """How far a limit reaches, and the bytes and entries up to there: at least one entry, however large it is."""
    size_bytes = entries = 0
    for split in topic.splits():
        count = fitting = split.last - split.first + 1
        if limit.entries is not None:
            fitting = min(fitting, limit.entries - entries)
        if limit.size_bytes is not None and size_bytes + split.size_bytes > limit.size_bytes:
            fitting = min(fitting, count * (limit.size_bytes - size_bytes) // split.size_bytes)
        if fitting < count:
            fitting = max(fitting, 0 if entries else 1)
            point = Point(Position(split.ledger_id, split.first + fitting))
            return min(point, topic.end), size_bytes + split.size_bytes * fitting // count, entries + fitting
        size_bytes += split.size_bytes
        entries += count
    return topic.end, size_bytes, entries


LENIENT: Final = "set failOnDataLoss=false (export: --no-fail-on-data-loss)"
"""How to go on without data that is gone."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where one topic began and ended at one moment."""

    topic: str
    """Full name, with the partition."""
    ledgers: tuple[tuple[int, int], ...]
    """Ids, ascending, each with the number of entries that can be read."""

    @classmethod
    def of(cls, topic: str, ledgers: Iterable[SourceLedger]) -> Extent:
        """The extent of a topic whose ledgers those are, ascending."""
        seen: list[tuple[int, int]] = []
        known = True  # whether the ledger before has come to an end that is known
        for ledger in ledgers:
            if known or ledger.entries:  # entries are in view only where all before them are
                seen.append((ledger.ledger_id, ledger.entries))
                known = ledger.closed_ms is not None
        return cls(topic, tuple(seen))

    @property
    def end(self) -> Point:
        """Behind the last entry: in the last ledger, though it may be empty."""
        return Point(Position(*self.ledgers[-1])) if self.ledgers else START

    def entries(self, begin: Point, end: Point) -> int:
        """How many stand from one point to another; one of which a part does counts."""
        count = 0
        for ledger_id, entries in self.ledgers:
            first = max(begin.position.entry_id, 0) if ledger_id == begin.position.ledger_id else 0
            last = (
                min(end.position.entry_id + bool(end.batch), entries)
                if ledger_id == end.position.ledger_id
                else entries
            )
            if begin.position.ledger_id <= ledger_id <= end.position.ledger_id:
                count += max(last - first, 0)
        return count

    def check(self, begin: Point) -> None:
        """Check that nothing is gone from ``begin`` on.

        Ledgers leave a topic from its front. Where the ledger of ``begin`` has left, entries behind ``begin`` may have
        left with it, and nothing tells any more whether it had some.

        Raises:
            EntriesMissing: Entries may be gone, or the topic has never reached so far.
        """
        if begin == START:
            return
        if begin > self.end:
            raise EntriesMissing(
                f"{self.topic} was read up to {begin} and ends at {self.end} now: it was made anew, or the source is "
                f"another one; begin anew with another checkpointLocation, or {LENIENT} to wait until it comes so far"
            )
        first = self.ledgers[0][0]
        if begin.position.ledger_id < first:
            raise EntriesMissing(
                f"{self.topic} was read up to {begin} and begins at ledger {first} now: what stood between was trimmed "
                f"before it was read; keep data longer (retention), and {LENIENT} to go on with what is left"
            )


_log = logging.getLogger(__name__)

_CURE: Final = f"{LENIENT} to go on without"


class StreamPlan:
    """Plans the micro-batches of one query. Not thread-safe.

    Args:
        options: What to read.

    Raises:
        AfterglowError: The source cannot be reached.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._stack = ExitStack()
        self._source = self._stack.enter_context(connected(options))
        self._began: Mapping[str, Point] | None = None
        self._target: Mapping[str, Point] | None = None
        self._turn = 0
        self._told: set[tuple[str, Point]] = set()
        self.latest: Mapping[str, Point] = {}
        """Where topics ended when they were last looked at."""

    def close(self) -> None:
        """Let go of the source."""
        self._stack.close()

    def begin(self) -> dict[str, Point]:
        """Where a new query begins.

        Spark does not keep it, and asks again if the first batch was not finished. Where the answer would be another
        one then, the first batch is empty: its end, which Spark does keep, is this.

        Raises:
            AfterglowError: The topics cannot be found.
        """
        topics = self._topics()
        if self._options.start.position == LATEST:
            self._began = self._ends(topics, self._extents(topics))
            return dict(self._began)
        return dict.fromkeys(topics, self._options.start)

    def stop_growing(self) -> None:
        """Read what is there now, and nothing that comes later."""
        topics = self._topics()
        self._target = self._ends(topics, self._extents(topics))

    def end(self, begin: Mapping[str, Point], limit: Limit | None) -> dict[str, Point]:
        """Where a micro-batch ends that begins at an offset: there where nothing is to be read.

        Raises:
            EntriesMissing: Entries that were not read are gone, or a topic with all of them.
            AfterglowError: The topics cannot be looked at.
        """
        topics = self._topics()
        extents = self._extents(topics)
        self.latest = self._ends(topics, extents)
        if self._began is not None:
            began, self._began = self._began, None
            if began == begin:
                return dict(begin)
        for name in begin.keys() - topics.keys():
            error = EntriesMissing(f"{name} is not there any more, and was read up to {begin[name]}; {_CURE}")
            self._lost(error, name, begin[name])
        ahead = {
            name: end
            for name, end in self.latest.items()
            if self._follows(begin.get(name, START), extents[name], topics[name]) and end > begin.get(name, START)
        }
        if limit is not None:
            self._turn += 1
            ahead = admit(
                [
                    Waiting(name, end, extents[name].entries(since, end), partial(self._cut, topics[name], since, end))
                    for name, end in ahead.items()
                    for since in (begin.get(name, START),)
                ],
                limit,
                self._turn,
            )
        decided = {name: self._decided(topics[name], begin.get(name, START), end) for name, end in ahead.items()}
        return {**begin, **decided}

    def splits(self, begin: Mapping[str, Point], end: Mapping[str, Point]) -> Iterator[Split]:
        """What stands between two offsets, in the order of topic and position.

        Raises:
            EntriesMissing: Entries are gone that were to be read.
            AfterglowError: The topics cannot be looked at.
        """
        self._began = None  # a batch is under way: its end is on record
        for name, until in end.items():
            since = begin.get(name, START)
            if since >= until:
                continue
            try:
                topic = self._source.topic(name)
                extent = Extent.of(name, topic.ledgers())
            except TopicMissing as error:
                gone = EntriesMissing(f"{name} was to be read from {since} to {until}: {error}; {_CURE}")
                self._lost(gone, name, since)
                continue
            self._follows(since, extent, topic)
            self._follows(until, extent, topic)
            yield from self._cut(topic, since, until)

    def schemas(self, shape: Shape) -> Schemas | None:
        """What values are decoded by, in all topics alike; see :func:`schemas_for`."""
        return schemas_for(self._options, self._topics().values(), shape) if self._options.decode else None

    def _decided(self, topic: SourceTopic, begin: Point, end: Point) -> Point:
        """An end that stands before all messages of transactions that are open: once committed, they must follow."""
        if self._options.include == "entries":
            return end  # these come as they are
        first = topic.first_undecided(begin.position, end.position.next() if end.batch else end.position)
        return end if first is None else max(begin, min(end, Point(first)))

    def _cut(self, topic: SourceTopic, begin: Point, end: Point) -> Iterator[Split]:
        options = self._options
        return topic.splits(
            start=str(begin),
            end=str(end),
            since=options.since_ms,
            until=options.until_ms,
            read_priority=options.read_priority,
            split_bytes=options.max_partition_bytes,
        )

    # --- topics ---

    def _topics(self) -> dict[str, SourceTopic]:
        """Those of now: partitions and topics are found that came later."""
        return {topic.name: topic for topic in topics_of(self._source, self._options)}

    @staticmethod
    def _extents(topics: Mapping[str, SourceTopic]) -> dict[str, Extent]:
        return {name: Extent.of(name, topic.ledgers()) for name, topic in topics.items()}

    def _ends(self, topics: Mapping[str, SourceTopic], extents: Mapping[str, Extent]) -> dict[str, Point]:
        """Where topics end: not behind the option, nor behind what was there if the query is to end there.

        Where tiers alone are read, not behind an entry that none has either: it may come there, and a stream does not
        go back.
        """
        ends = {name: extent.end for name, extent in extents.items()}
        if self._options.hot == "skip":
            gaps = {name: topics[name].tiered_end() for name in ends}
            ends = {name: end if (gap := gaps[name]) is None else min(end, Point(gap)) for name, end in ends.items()}
        if self._options.end is not None:
            ends = {name: min(end, self._options.end) for name, end in ends.items()}
        if self._target is not None:
            ends = {name: min(end, self._target[name]) for name, end in ends.items() if name in self._target}
        return ends

    # --- what is gone ---

    def _follows(self, point: Point, extent: Extent, topic: SourceTopic) -> bool:
        """Make sure that nothing is gone behind a point; returns True."""
        options = self._options
        if point == options.end:  # need not be a place of the topic
            return True
        is_start = point == options.start  # which somebody has written down; the stream has not come there by itself
        try:
            if is_start:
                topic.check_range(str(point), fail_on_data_loss=True)
            else:
                extent.check(point)
        except EntriesMissing as error:
            self._lost(error, extent.topic, point, by_default=not is_start)
        return True

    def _lost(self, error: EntriesMissing, topic: str, point: Point, *, by_default: bool = True) -> None:
        """Fail because of what is gone, or go on without; ``by_default``: which, where no option says it."""
        given = self._options.fail_on_data_loss
        if by_default if given is None else given:
            raise error
        if (topic, point) not in self._told:  # it stays so, trigger after trigger
            self._told.add((topic, point))
            _log.warning("goes on with what is left: %s", error)
