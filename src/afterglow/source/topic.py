"""A topic of a source: its ledgers and segments, its entries and messages, and the search by time."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from afterglow.config.broker import SETTINGS
from afterglow.config.choices import ReadPriority
from afterglow.errors import ConfigError, NotSupported
from afterglow.format.schema import ENTRIES, MESSAGES, choose
from afterglow.metadata.store import wall_clock_ms
from afterglow.read.messages import EntryBatches, MessageBatches, warn
from afterglow.read.retained import on_missing
from afterglow.read.split_reader import check_include
from afterglow.read.splits import SPLIT_BYTES
from afterglow.read.typed import TypedBatches, TypedColumns
from afterglow.read.window import Window, parse_time
from afterglow.source.partition import Part
from afterglow.source.scan import RANGE_BYTES, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from afterglow.errors import CorruptEntry
    from afterglow.format.position import Position
    from afterglow.format.schema import SchemaVersion
    from afterglow.metadata.names import TopicName
    from afterglow.read.copies import ServedRun
    from afterglow.read.retained import OnMissing
    from afterglow.read.split_reader import Include
    from afterglow.read.splits import Split
    from afterglow.read.window import PositionLike, TimeLike
    from afterglow.source.directory import SourceLedger, SourceSegment
    from afterglow.source.partition import Rooms
    from afterglow.source.scan import Beside

_log = logging.getLogger(__name__)

_PRIORITY: Final = SETTINGS["managedLedgerOffloadedReadPriority"].value_type


class SourceTopic:
    """A topic; a partitioned one is all its partitions, in order. Made by :meth:`Source.topic`. Thread-safe."""

    def __init__(self, name: TopicName, partitions: tuple[TopicName, ...], rooms: Rooms) -> None:
        self.name = str(name)
        """Full name."""
        self.partitions = tuple(map(str, partitions))
        """Full names of the topics that hold its messages: its partitions, or itself."""
        self._parts = tuple(Part(partition, rooms) for partition in partitions)

    def __repr__(self) -> str:
        return f"SourceTopic({self.name!r})"

    def ledgers(self) -> tuple[SourceLedger, ...]:
        """Its ledgers, by partition and id.

        Raises:
            TopicMissing: It was deleted.
            MetadataError: The metadata cannot be read.
        """
        return tuple(chain.from_iterable(part.ledgers() for part in self._parts))

    def segments(self) -> tuple[SourceSegment, ...]:
        """Its offloaded segments, by partition and position.

        Raises:
            MetadataError: The metadata cannot be read.
            CorruptMetadata: A record is damaged.
        """
        return tuple(chain.from_iterable(part.segments() for part in self._parts))

    def schemas(self) -> tuple[SchemaVersion, ...]:
        """Every version of its schema, oldest first; partitions have one schema.

        Raises:
            MetadataError: The source cannot be asked.
            NotSupported: The source cannot tell.
        """
        return self._parts[0].schemas() if self._parts else ()

    def seek(self, time: datetime | str | int) -> Position:
        """The first entry that was written at or after a moment, else the position behind the last one.

        Args:
            time: RFC 3339, epoch milliseconds, an age, or a datetime.

        Raises:
            ConfigError: The time is none.
            NotSupported: The topic is partitioned: each partition has a position of its own.
            AfterglowError: An entry that must be looked at cannot be read.
        """
        return self._only_part("seek").seek(parse_time(time, wall_clock_ms()))

    def first_undecided(self, start: Position, end: Position) -> Position | None:
        """The first message of a transaction that is still open: who reads on from offset to offset stops before it.

        Reads the stretch, except where brokers take no transactions, and entries behind it while transactions are open.

        Args:
            start: First position, inclusive.
            end: End position, exclusive.

        Raises:
            NotSupported: The topic is partitioned: each partition has positions of its own.
            AfterglowError: Entries cannot be read.
        """
        return self._only_part("look").first_undecided(start, end)

    def tiered_end(self) -> Position | None:
        """Where the first entry stands that no tier has: who reads tiers alone from offset to offset stops before it.

        None where a tier has every ledger whole.

        Raises:
            NotSupported: The topic is partitioned: each partition has positions of its own.
            TopicMissing: It was deleted.
            MetadataError: The metadata cannot be read.
        """
        return self._only_part("look").tiered_end()

    def entries(
        self,
        start: PositionLike = None,
        end: PositionLike = None,
        read_priority: ReadPriority | str | None = None,
        *,
        scan: bool = True,
        fail_on_data_loss: bool = False,
    ) -> Iterator[ServedRun]:
        """Raw entries in runs, each with the tier that served it.

        Args:
            start: First position, inclusive: a position or its text. An entry of which a part is asked for is in.
            end: End position, exclusive.
            read_priority: Which copy serves while both exist; None: what the topic's policy says.
            scan: Large reads, read ahead. For a few entries say False.
            fail_on_data_loss: See :meth:`scan`.

        Raises:
            InvalidName: A position is none.
            ConfigError: The priority is none.
            EntriesMissing: See :meth:`scan`.
            AfterglowError: Entries cannot be read from any copy; runs before that are good.
        """
        window, missing = self._asked(Window.of(start, end, None, None, 0), fail=fail_on_data_loss)
        priority = _priority(read_priority)
        return chain.from_iterable(
            part.runs(window, priority, part.pin_for(window, missing), scan=scan) for part in self._parts
        )

    def messages(
        self,
        start: PositionLike = None,
        end: PositionLike = None,
        since: TimeLike = None,
        until: TimeLike = None,
        columns: Iterable[str] | None = None,
        *,
        read_priority: ReadPriority | str | None = None,
        scan: bool = True,
        report: Callable[[CorruptEntry], None] = warn,
        fail_on_data_loss: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Messages in Arrow batches, in the order partition, then position.

        A message is in iff it stands in [start, end) and its broker time, else its publish time, is in [since, until).
        One that came in chunks stands where its last chunk does. Those of transactions that were aborted, or of which
        the topic does not tell how they ended, are left out.

        Args:
            start: First position, inclusive: a position or its text.
            end: End position, exclusive.
            since: Earliest time, inclusive: RFC 3339, epoch milliseconds, an age, or a datetime.
            until: Latest time, exclusive.
            columns: Names of columns in the order wanted; all of them for None. No other is decoded.
            read_priority: Which copy serves while both exist; None: what the topic's policy says.
            scan: Read and decode ahead, on all cores. For a few messages say False.
            report: Told of each message that lacks chunks, and of each entry that is no readable message, where
                ``damagedDataPolicy`` is to leave such out.
            fail_on_data_loss: See :meth:`scan`.

        Raises:
            InvalidName: A position is none.
            ConfigError: A time, a column or the priority is none.
            EntriesMissing: See :meth:`scan`.
            CorruptEntry: An entry is damaged; batches before it are good.
            AfterglowError: Entries cannot be read from any copy; batches before that are good.
        """
        window, missing = self._asked(Window.of(start, end, since, until, wall_clock_ms()), fail=fail_on_data_loss)
        rows = self._rows(window, choose(MESSAGES, columns).names, _priority(read_priority), report, missing)
        return rows.on_all_cores() if scan else rows.by_one()

    def splits(
        self,
        start: PositionLike = None,
        end: PositionLike = None,
        since: TimeLike = None,
        until: TimeLike = None,
        *,
        published_ms: tuple[int | None, int | None] = (None, None),
        read_priority: ReadPriority | str | None = None,
        split_bytes: int = SPLIT_BYTES,
    ) -> Iterator[Split]:
        """What :meth:`messages` would read, cut for other processes to read, such as tasks of a Spark job.

        Nothing is said of positions that are not there; see :meth:`check_range`.

        Args:
            start: First position, inclusive: a position or its text.
            end: End position, exclusive.
            since: Earliest time, inclusive: RFC 3339, epoch milliseconds, an age, or a datetime.
            until: Latest time, exclusive.
            published_ms: First and last publish time, both inclusive, of what must be read. Only prunes: more may come.
            read_priority: Which copy is read while both exist; None: what the topic's policy says.
            split_bytes: Of one split in a tier, unless a single block is larger.

        Raises:
            InvalidName: A position is none.
            ConfigError: A time or the priority is none.
            AfterglowError: The index of an object cannot be read.
        """
        earliest, latest = published_ms
        window = Window.of(start, end, since, until, wall_clock_ms())
        window = replace(window, published_from_ms=earliest, published_to_ms=latest)
        priority = _priority(read_priority)
        return chain.from_iterable(part.splits(window, priority, split_bytes) for part in self._parts)

    def scan(  # noqa: PLR0917 - all of these have their place in the outside contract
        self,
        start: PositionLike = None,
        end: PositionLike = None,
        since: TimeLike = None,
        until: TimeLike = None,
        columns: Iterable[str] | None = None,
        read_priority: ReadPriority | str | None = None,
        include: Include = "messages",
        *,
        decode: bool | Sequence[SchemaVersion] = False,
        scan: bool = True,
        report: Callable[[CorruptEntry], None] = warn,
        fail_on_data_loss: bool = False,
    ) -> pa.RecordBatchReader:
        """Messages, or raw entries, as a stream of Arrow batches; arguments and errors as of :meth:`messages`.

        An entry is in iff one of its messages is. With times, what is no readable message is out.

        Args:
            start: See :meth:`messages`, as for the others that are not told of here.
            end: See there.
            since: See there.
            until: See there.
            columns: See there; with ``decode`` also ``_corrupt``, which tells why a row could not be decoded.
            read_priority: See there.
            include: ``messages`` or ``entries``.
            decode: Give values, and keys of pairs, as the topic's schemas describe them; or the schemas, where the
                source cannot tell them.
            scan: See there.
            report: See there.
            fail_on_data_loss: Whether it is an error that positions from ``start`` to ``end`` are not there: trimmed,
                or never written. Else a warning tells of them, and the rest is read.

        Raises:
            EntriesMissing: Positions of the range are not there, and ``fail_on_data_loss`` is set.
            ConfigError: ``include`` is neither ``messages`` nor ``entries``, or entries are to be decoded.
            NotSupported: The source cannot tell the schemas.
        """
        check_include(include)
        window, missing = self._asked(Window.of(start, end, since, until, wall_clock_ms()), fail=fail_on_data_loss)
        priority = _priority(read_priority)
        if decode is not False:
            if include == "entries":
                raise ConfigError("decode is for messages, not with include='entries'; leave one of them out")
            typed = TypedColumns({self.name: self.schemas() if decode is True else decode}, columns)
            schema, rows = typed.schema, self._rows(window, typed.needed, priority, report, missing, typed=typed)
        elif include == "messages":
            schema = choose(MESSAGES, columns)
            rows = self._rows(window, schema.names, priority, report, missing)
        else:
            schema = choose(ENTRIES, columns)
            rows = Rows(
                self._parts,
                lambda part, *_: EntryBatches(part.name, window, schema.names),
                window,
                priority,
                report,
                missing,
            )
        return pa.RecordBatchReader.from_batches(schema, rows.on_all_cores() if scan else rows.by_one())

    def check_range(
        self,
        start: PositionLike = None,
        end: PositionLike = None,
        since: TimeLike = None,
        until: TimeLike = None,
        *,
        fail_on_data_loss: bool = False,
    ) -> None:
        """Check that the positions of a range are there, in every partition; arguments and errors as of :meth:`scan`.

        Called after :meth:`splits`, it tells of all that these did not find: what was trimmed does not come back.
        """
        window, missing = self._asked(Window.of(start, end, since, until, wall_clock_ms()), fail=fail_on_data_loss)
        if not fail_on_data_loss:
            self._check(window, missing)

    def _asked(self, window: Window, *, fail: bool) -> tuple[Window, OnMissing]:
        """A window that was asked for, and what is told of positions in it that are not there.

        Raises:
            EntriesMissing: They are not, and that is to fail: before any row is given.
        """
        if (why := window.contradiction) is not None:
            _log.warning("nothing can be in the range asked for: %s: %s; swap the two", self.name, why)
        missing = on_missing(fail=fail)
        if fail:
            self._check(window, missing)
        return window, missing

    def _check(self, window: Window, missing: OnMissing) -> None:
        for part in self._parts if window.bounded else ():
            part.pin_for(window, missing)

    def _only_part(self, verb: str) -> Part:
        if len(self._parts) != 1 or self.partitions != (self.name,):
            raise NotSupported(f"{self.name} is partitioned: {verb} in one partition, such as {self.name}-partition-0")
        return self._parts[0]

    def _rows(
        self,
        window: Window,
        columns: Sequence[str],
        priority: ReadPriority | None,
        report: Callable[[CorruptEntry], None],
        missing: OnMissing,
        *,
        typed: TypedColumns | None = None,
    ) -> Rows:
        """Messages, with typed columns where they are to be."""
        skips = cache(Part.skips_damage)

        def make(part: Part, beside: Beside, told: Callable[[CorruptEntry], None]) -> MessageBatches | TypedBatches:
            bad = told if skips(part) else None
            messages = MessageBatches(
                part.name,
                window,
                columns,
                bad,
                beside.around,
                incomplete=told,
                transactions=beside.transactions,
                batch_bytes=RANGE_BYTES,
            )
            return messages if typed is None else TypedBatches(messages, typed, self.name)

        return Rows(self._parts, make, window, priority, report, missing)


def _priority(given: ReadPriority | str | None) -> ReadPriority | None:
    """A read priority in any of its spellings.

    Raises:
        ConfigError: It is none.
    """
    if given is None:
        return None
    try:
        return ReadPriority(_PRIORITY.parse(given))
    except ValueError as error:
        raise ConfigError(f"read priority {given!r} is not {_PRIORITY.description}") from error
