"""Planner of the micro-batches of a stream over topics that grow, are offloaded and are trimmed.

An offset is a position in every topic, never a location: a batch that is planned again, after a restart or much later,
reads the same entries from the copies that exist then.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from afterglow.errors import EntriesMissing, TopicMissing
from afterglow.format.position import LATEST, Position
from afterglow.spark.datasource.offsets import START, Point
from afterglow.spark.datasource.schema import schemas_for
from afterglow.spark.datasource.selected_topics import connect_source, select_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from afterglow.read.splits import Split
    from afterglow.source.connect import SourceTopic
    from afterglow.source.directory import SourceLedger
    from afterglow.spark.datasource.options import SourceOptions
    from afterglow.spark.datasource.schema import OutputSchema
    from afterglow.spark.datasource.tasks import Schemas


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """Limits of a micro-batch; None: unlimited."""

    size_bytes: int | None = None
    """Of blocks, or of entries in the hot log. Approximate: entries of a block are taken to be of one size."""
    entries: int | None = None
    """Exact."""

    @property
    def is_used_up(self) -> bool:
        """Whether nothing fits any more."""
        return any(bound is not None and bound <= 0 for bound in (self.size_bytes, self.entries))

    def share(self, topics: int) -> BatchLimit:
        """The equal share of each of so many topics, at least one entry and one byte."""
        bounds = (self.size_bytes, self.entries)
        return BatchLimit(*(None if bound is None else max(bound // topics, 1) for bound in bounds))

    def minus(self, size_bytes: int, entries: int) -> BatchLimit:
        """The rest of the limit."""
        return BatchLimit(
            None if self.size_bytes is None else self.size_bytes - size_bytes,
            None if self.entries is None else self.entries - entries,
        )


@dataclass(frozen=True, slots=True)
class TopicBacklog:
    """Entries of a topic that were not read yet."""

    topic: str
    """Full name, with the partition."""
    end: Point
    """The end of the topic."""
    entries: int
    """Approximate number; at least one."""
    splits: Callable[[], Iterable[Split]]
    """Its splits in order, planned lazily."""


def admit(backlogs: Sequence[TopicBacklog], limit: BatchLimit, turn: int = 0) -> dict[str, Point]:
    """The end of each topic in the next micro-batch; topics that must wait for a later one are left out.

    The limit is shared fairly: topics with a small backlog leave the rest of their share to the others. If the limit
    has fewer entries than there are topics, topics take turns.

    Args:
        backlogs: Of all topics with unread entries.
        limit: For all topics together.
        turn: Number of the micro-batch.
    """
    first = turn % max(len(backlogs), 1)
    fair = None if limit.entries is None else limit.entries // max(len(backlogs), 1)
    order = sorted(
        [*backlogs[first:], *backlogs[:first]],
        key=lambda topic: topic.entries if fair is None else min(topic.entries, fair),
    )
    admitted: dict[str, Point] = {}
    for number, topic in enumerate(order):
        if limit.is_used_up:
            break
        admitted[topic.topic], size_bytes, entries = _take(topic, limit.share(len(order) - number))
        limit = limit.minus(size_bytes, entries)
    return admitted


def _take(topic: TopicBacklog, limit: BatchLimit) -> tuple[Point, int, int]:
    """The end of what fits into a limit, with its bytes and entries: at least one entry, however large it is."""
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


IGNORE_LOSS: Final = "set failOnDataLoss=false (export: --no-fail-on-data-loss)"
"""Advice for users who accept the loss of data."""


@dataclass(frozen=True, slots=True)
class TopicExtent:
    """Ledgers of one topic at one time."""

    topic: str
    """Full name, with the partition."""
    ledgers: tuple[tuple[int, int], ...]
    """Ids, ascending, each with the number of entries that can be read."""

    @classmethod
    def of(cls, topic: str, ledgers: Iterable[SourceLedger]) -> TopicExtent:
        """The extent of a topic with these ledgers, ascending."""
        readable: list[tuple[int, int]] = []
        is_closed = True  # the ledger before this one
        for ledger in ledgers:
            # Entries are readable only if all entries before them are: an open ledger is the last one until then.
            if is_closed or ledger.entries:
                readable.append((ledger.ledger_id, ledger.entries))
                is_closed = ledger.closed_ms is not None
        return cls(topic, tuple(readable))

    @property
    def end(self) -> Point:
        """The point behind the last entry: in the last ledger, even if that is empty."""
        return Point(Position(*self.ledgers[-1])) if self.ledgers else START

    def entries(self, begin: Point, end: Point) -> int:
        """Number of entries between two points; an entry of which only a part is between them counts."""
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
        """Verify that no entry from ``begin`` on was trimmed.

        Topics are trimmed from their front. If the ledger of ``begin`` was trimmed, entries behind ``begin`` may have
        been trimmed with it; whether it had any is not known any more.

        Raises:
            EntriesMissing: Entries may be missing, or the topic ends before ``begin``.
        """
        if begin == START:
            return
        if begin > self.end:
            raise EntriesMissing(
                f"{self.topic} was read up to {begin} and ends at {self.end} now: it was deleted and created again, or "
                f"the source is another one; start again with a new checkpointLocation, or {IGNORE_LOSS} to wait until "
                "it reaches that position"
            )
        first = self.ledgers[0][0]
        if begin.position.ledger_id < first:
            raise EntriesMissing(
                f"{self.topic} was read up to {begin} and begins at ledger {first} now: entries between them were "
                f"trimmed before they were read; increase the retention, and {IGNORE_LOSS} to continue with the rest"
            )


_log = logging.getLogger(__name__)

_IGNORE: Final = f"{IGNORE_LOSS} to continue without them"


class StreamPlan:
    """Plans the micro-batches of one query. Not thread-safe.

    Raises:
        AfterglowError: The source cannot be reached.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._stack = ExitStack()
        self._source = self._stack.enter_context(connect_source(options))
        self._began: Mapping[str, Point] | None = None
        self._target: Mapping[str, Point] | None = None
        self._turn = 0
        self._warned: set[tuple[str, Point]] = set()
        self.latest: Mapping[str, Point] = {}
        """The end of each topic when it was last read."""

    def close(self) -> None:
        """Close the source."""
        self._stack.close()

    def begin(self) -> dict[str, Point]:
        """The offset at which a new query begins.

        Spark does not store it, and asks again if the first batch was not finished. If the answer could differ then,
        as for ``latest``, the first batch is empty: its end, which Spark does store, is this offset.

        Raises:
            AfterglowError: The topics cannot be read.
        """
        topics = self._topics()
        if self._options.start.position == LATEST:
            self._began = self._ends(topics, self._extents(topics))
            return dict(self._began)
        return dict.fromkeys(topics, self._options.start)

    def stop_growing(self) -> None:
        """Make the current end of the topics the end of the query."""
        topics = self._topics()
        self._target = self._ends(topics, self._extents(topics))

    def end(self, begin: Mapping[str, Point], limit: BatchLimit | None) -> dict[str, Point]:
        """The end of the micro-batch that begins at an offset; the same offset if there is nothing to read.

        Raises:
            EntriesMissing: Entries were trimmed before they were read, or a topic was deleted.
            AfterglowError: The topics cannot be read.
        """
        topics = self._topics()
        extents = self._extents(topics)
        self.latest = self._ends(topics, extents)
        if self._began is not None:
            began, self._began = self._began, None
            if began == begin:
                return dict(begin)
        starts = {name: begin.get(name, START) for name in topics}
        for name in begin.keys() - topics.keys():
            error = EntriesMissing(f"{name} does not exist any more, and was read up to {begin[name]}; {_IGNORE}")
            self._on_data_loss(error, name, begin[name])
        ends = {
            name: end
            for name, end in self.latest.items()
            if self._require_available(starts[name], extents[name], topics[name]) and end > starts[name]
        }
        if limit is not None:
            self._turn += 1
            backlogs = [
                TopicBacklog(
                    name,
                    end,
                    extents[name].entries(starts[name], end),
                    partial(self._splits, topics[name], starts[name], end),
                )
                for name, end in ends.items()
            ]
            ends = admit(backlogs, limit, self._turn)
        decided = {name: self._before_open_transactions(topics[name], starts[name], end) for name, end in ends.items()}
        return {**begin, **decided}

    def splits(self, begin: Mapping[str, Point], end: Mapping[str, Point]) -> Iterator[Split]:
        """The splits between two offsets, in the order of topic and position.

        Raises:
            EntriesMissing: Entries between them were trimmed, or a topic was deleted.
            AfterglowError: The topics cannot be read.
        """
        self._began = None  # Spark has stored the end of the batch
        for name, until in end.items():
            since = begin.get(name, START)
            if since >= until:
                continue
            try:
                topic = self._source.topic(name)
                extent = TopicExtent.of(name, topic.ledgers())
            except TopicMissing as error:
                missing = EntriesMissing(f"{name} cannot be read from {since} to {until}: {error}; {_IGNORE}")
                self._on_data_loss(missing, name, since)
                continue
            self._require_available(since, extent, topic)
            self._require_available(until, extent, topic)
            yield from self._splits(topic, since, until)

    def schemas(self, output: OutputSchema) -> Schemas | None:
        """Schemas of all topics, by which values are decoded; see :func:`schemas_for`."""
        return schemas_for(self._options, self._topics().values(), output) if self._options.decode else None

    def _before_open_transactions(self, topic: SourceTopic, begin: Point, end: Point) -> Point:
        """Limit an end to the first message of an open transaction: once committed, its messages must be read."""
        if self._options.include == "entries":
            return end  # raw entries do not depend on transactions
        first = topic.first_undecided(begin.position, end.position.next() if end.batch else end.position)
        return end if first is None else max(begin, min(end, Point(first)))

    def _splits(self, topic: SourceTopic, begin: Point, end: Point) -> Iterator[Split]:
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
        """The current topics, with partitions and topics that were added since the last batch."""
        return {topic.name: topic for topic in select_topics(self._source, self._options)}

    @staticmethod
    def _extents(topics: Mapping[str, SourceTopic]) -> dict[str, TopicExtent]:
        return {name: TopicExtent.of(name, topic.ledgers()) for name, topic in topics.items()}

    def _ends(self, topics: Mapping[str, SourceTopic], extents: Mapping[str, TopicExtent]) -> dict[str, Point]:
        """The ends of topics, limited by the option ``end`` and by the end of a query that reads available data only.

        With ``hot=skip`` a topic ends before the first entry that no tier has: the entry may be offloaded later, and a
        stream does not go back.
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

    # --- data loss ---

    def _require_available(self, point: Point, extent: TopicExtent, topic: SourceTopic) -> bool:
        """Verify that no entry behind a point was trimmed; returns True."""
        options = self._options
        if point == options.end:  # the option need not be a position of the topic
            return True
        is_option = point == options.start  # given by the user, not reached by the stream
        try:
            if is_option:
                topic.check_range(str(point), fail_on_data_loss=True)
            else:
                extent.check(point)
        except EntriesMissing as error:
            self._on_data_loss(error, extent.topic, point, by_default=not is_option)
        return True

    def _on_data_loss(self, error: EntriesMissing, topic: str, point: Point, *, by_default: bool = True) -> None:
        """Raise the error, or log it and continue; ``by_default``: whether to raise without ``failOnDataLoss``."""
        given = self._options.fail_on_data_loss
        if by_default if given is None else given:
            raise error
        if (topic, point) not in self._warned:  # once, not with every trigger
            self._warned.add((topic, point))
            _log.warning("continuing after data loss: %s", error)
