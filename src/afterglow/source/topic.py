"""Topic of a source: its ledgers and segments, its entries and messages, and seek by time."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Unpack

import pyarrow as pa

from afterglow.config.broker import SETTINGS
from afterglow.config.choices import ReadPriority
from afterglow.errors import ConfigError, NotSupported
from afterglow.format.schema import ENTRIES, MESSAGES, choose
from afterglow.metadata.store import wall_clock_ms
from afterglow.read.messages import EntryBatches, MessageBatches, log_skipped
from afterglow.read.retained import on_missing
from afterglow.read.scan_range import ScanRange, parse_time
from afterglow.read.split_reader import check_include
from afterglow.read.splits import SPLIT_BYTES
from afterglow.read.typed import TypedBatches, TypedColumns
from afterglow.source.partition import SourcePartition
from afterglow.source.row_scan import RANGE_BYTES, RowScan
from afterglow.source.tables import select_rows, to_duckdb, to_pandas, to_polars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    import duckdb
    import pandas as pd
    import polars as pl

    from afterglow.errors import CorruptEntry
    from afterglow.format.position import Position
    from afterglow.format.schema import SchemaVersion
    from afterglow.metadata.names import TopicName
    from afterglow.read.copies import ServedRun
    from afterglow.read.retained import OnMissing
    from afterglow.read.scan_range import PositionLike, TimeLike
    from afterglow.read.split_reader import Include
    from afterglow.read.splits import Split
    from afterglow.source.directory import SourceLedger, SourceSegment
    from afterglow.source.partition import SourceContext
    from afterglow.source.row_scan import SharedReadState
    from afterglow.source.tables import BatchReader, ScanOptions

_log = logging.getLogger(__name__)

_PRIORITY: Final = SETTINGS["managedLedgerOffloadedReadPriority"].value_type
_MAX_ROWS_WITHOUT_PREFETCH: Final = 1_000
"""A scan with a smaller limit reads a few entries at a time."""


class SourceTopic:
    """A topic, or all partitions of a partitioned topic in order. Made by :meth:`Source.topic`. Thread-safe."""

    def __init__(self, name: TopicName, partitions: tuple[TopicName, ...], context: SourceContext) -> None:
        self.name = str(name)
        """Full name."""
        self.partitions = tuple(map(str, partitions))
        """Full names of the topics that hold its messages: its partitions, or itself."""
        self._readers = tuple(SourcePartition(partition, context) for partition in partitions)

    def __repr__(self) -> str:
        return f"SourceTopic({self.name!r})"

    def ledgers(self) -> tuple[SourceLedger, ...]:
        """Its ledgers, by partition and id.

        Raises:
            TopicMissing: It was deleted.
            MetadataError: The metadata cannot be read.
        """
        return tuple(chain.from_iterable(partition.ledgers() for partition in self._readers))

    def segments(self) -> tuple[SourceSegment, ...]:
        """Its offloaded segments, by partition and position.

        Raises:
            MetadataError: The metadata cannot be read.
            CorruptMetadata: A record is damaged.
        """
        return tuple(chain.from_iterable(partition.segments() for partition in self._readers))

    def schemas(self) -> tuple[SchemaVersion, ...]:
        """Every version of its schema, oldest first; partitions share one schema.

        Raises:
            MetadataError: The source cannot be reached.
            NotSupported: The source has no schemas.
        """
        return self._readers[0].schemas() if self._readers else ()

    def seek(self, time: datetime | str | int) -> Position:
        """Position of the first entry written at or after a time, else the position after the last entry.

        Args:
            time: RFC 3339, epoch milliseconds, an age, or a datetime.

        Raises:
            ConfigError: The time is not valid.
            NotSupported: The topic is partitioned: each partition has its own positions.
            AfterglowError: An entry that the search needs cannot be read.
        """
        return self._only_partition("seek").seek(parse_time(time, wall_clock_ms()))

    def first_undecided(self, start: Position, end: Position) -> Position | None:
        """Position of the first message of an open transaction. A streaming reader must stop before it.

        Reads the range, unless the namespace never had transactions, and entries after it while transactions are open.

        Args:
            start: First position, inclusive.
            end: End position, exclusive.

        Raises:
            NotSupported: The topic is partitioned: each partition has its own positions.
            AfterglowError: Entries cannot be read.
        """
        return self._only_partition("read").first_undecided(start, end)

    def tiered_end(self) -> Position | None:
        """Position of the first entry that no tier has; None if the tier has every ledger whole.

        A streaming reader of tiers alone must stop before it.

        Raises:
            NotSupported: The topic is partitioned: each partition has its own positions.
            TopicMissing: It was deleted.
            MetadataError: The metadata cannot be read.
        """
        return self._only_partition("read").tiered_end()

    def entries(
        self,
        start: PositionLike = None,
        end: PositionLike = None,
        read_priority: ReadPriority | str | None = None,
        *,
        scan: bool = True,
        fail_on_data_loss: bool = False,
    ) -> Iterator[ServedRun]:
        """Raw entries in runs, each with the copy that served it.

        Args:
            start: First position, inclusive: a position or its text. With a batch index, its whole entry is included.
            end: End position, exclusive.
            read_priority: Read priority; None: that of the topic's policy.
            scan: Read in bulk, prefetched. Pass False for a few entries.
            fail_on_data_loss: See :meth:`scan`.

        Raises:
            InvalidName: A position is not valid.
            ConfigError: The priority is not valid.
            EntriesMissing: See :meth:`scan`.
            AfterglowError: No copy of an entry can be read; the runs before it are valid.
        """
        scan_range, missing = self._requested(ScanRange.of(start, end, None, None, 0), fail=fail_on_data_loss)
        priority = _priority(read_priority)
        return chain.from_iterable(
            partition.runs(scan_range, priority, partition.pin_for(scan_range, missing), scan=scan)
            for partition in self._readers
        )

    def messages(
        self,
        start: PositionLike = None,
        end: PositionLike = None,
        since: TimeLike = None,
        until: TimeLike = None,
        columns: Iterable[str] | str | None = None,
        *,
        read_priority: ReadPriority | str | None = None,
        scan: bool = True,
        report: Callable[[CorruptEntry], None] = log_skipped,
        fail_on_data_loss: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Messages in Arrow batches, in the order partition, then position.

        A message is included if its position is in [start, end) and its broker time, else its publish time, is in
        [since, until). A chunked message has the position of its last chunk. Messages of transactions that were
        aborted, or have no outcome in the topic, are skipped.

        Args:
            start: First position, inclusive: a position or its text.
            end: End position, exclusive.
            since: Earliest time, inclusive: RFC 3339, epoch milliseconds, an age, or a datetime.
            until: Latest time, exclusive.
            columns: Name of a column, or names in the wanted order; None: all columns. No other column is decoded.
            read_priority: Read priority; None: that of the topic's policy.
            scan: Prefetch, and decode on all cores. Pass False for a few messages.
            report: Called with each message that lacks chunks, and, if ``damagedDataPolicy`` is to skip them, with each
                entry that is not a readable message.
            fail_on_data_loss: See :meth:`scan`.

        Raises:
            InvalidName: A position is not valid.
            ConfigError: A time, a column or the priority is not valid.
            EntriesMissing: See :meth:`scan`.
            CorruptEntry: An entry is damaged; the batches before it are valid.
            AfterglowError: No copy of an entry can be read; the batches before it are valid.
        """
        scan_range, missing = self._requested(
            ScanRange.of(start, end, since, until, wall_clock_ms()), fail=fail_on_data_loss
        )
        names = choose(MESSAGES, _names(columns)).names
        rows = self._rows(scan_range, names, _priority(read_priority), report, missing)
        return rows.parallel() if scan else rows.sequential()

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
        """Splits of what :meth:`messages` would read, for other processes, such as the tasks of a Spark job.

        Missing positions are not reported; see :meth:`check_range`.

        Arguments as for :meth:`messages`, and ``published_ms``: least and greatest publish time, both inclusive, which
        only prune: other messages may be returned; ``split_bytes``: bytes of a split, unless a block is larger.

        Raises:
            InvalidName: A position is not valid.
            ConfigError: A time or the priority is not valid.
            AfterglowError: The index of an object cannot be read.
        """
        earliest, latest = published_ms
        scan_range = ScanRange.of(start, end, since, until, wall_clock_ms())
        scan_range = replace(scan_range, published_from_ms=earliest, published_to_ms=latest)
        priority = _priority(read_priority)
        return chain.from_iterable(partition.splits(scan_range, priority, split_bytes) for partition in self._readers)

    def scan(  # noqa: PLR0917 - the public interface fixes their order
        self,
        start: PositionLike = None,
        end: PositionLike = None,
        since: TimeLike = None,
        until: TimeLike = None,
        columns: Iterable[str] | str | None = None,
        read_priority: ReadPriority | str | None = None,
        include: Include = "messages",
        *,
        filter: Any = None,  # noqa: A002 - the word of pyarrow and pandas
        limit: int | None = None,
        decode: bool | Sequence[SchemaVersion] = False,
        scan: bool = True,
        report: Callable[[CorruptEntry], None] = log_skipped,
        fail_on_data_loss: bool = False,
    ) -> BatchReader:
        """Messages, or raw entries, as a ``pyarrow.RecordBatchReader``; arguments and errors as for :meth:`messages`.

        An entry is included if one of its messages is. With times, entries that are not readable messages are skipped.

        Further arguments:

        * ``columns``: with ``decode`` also ``_corrupt``, the reason why a row could not be decoded.
        * ``include``: ``messages`` or ``entries``.
        * ``filter``: a ``pyarrow.compute`` expression over the selected columns. Rows that do not match are read and
          then omitted; positions and times prune.
        * ``limit``: maximum number of rows; nothing after them is read.
        * ``decode``: whether to decode values, and keys of pairs, by the topic's schemas; or the schemas, if the source
          has none.
        * ``fail_on_data_loss``: whether it is an error that positions between ``start`` and ``end`` were trimmed or
          never written. If not, they are logged as a warning, and the rest is read.

        Raises:
            EntriesMissing: Positions of the range are missing, and ``fail_on_data_loss`` is set.
            ConfigError: ``include`` is neither ``messages`` nor ``entries``, ``decode`` is set for entries, ``limit``
                is negative, or ``filter`` cannot be evaluated.
            NotSupported: The source has no schemas.
        """
        check_include(include)
        columns = _names(columns)
        scan_range, missing = self._requested(
            ScanRange.of(start, end, since, until, wall_clock_ms()), fail=fail_on_data_loss
        )
        priority = _priority(read_priority)
        if decode is not False:
            if include == "entries":
                raise ConfigError("decode is for messages, not with include='entries'; omit one of them")
            typed = TypedColumns({self.name: self.schemas() if decode is True else decode}, columns)
            schema, rows = typed.schema, self._rows(scan_range, typed.needed, priority, report, missing, typed=typed)
        elif include == "messages":
            schema = choose(MESSAGES, columns)
            rows = self._rows(scan_range, schema.names, priority, report, missing)
        else:
            schema = choose(ENTRIES, columns)
            rows = RowScan(
                self._readers,
                lambda partition, *_: EntryBatches(partition.name, scan_range, schema.names),
                scan_range,
                priority,
                report,
                missing,
            )
        few = limit is not None and limit <= _MAX_ROWS_WITHOUT_PREFETCH and filter is None
        batches = select_rows(rows.sequential() if few or not scan else rows.parallel(), schema, filter, limit)
        reader: BatchReader = pa.RecordBatchReader.from_batches(schema, batches)
        return reader

    def count(
        self,
        start: PositionLike = None,
        end: PositionLike = None,
        since: TimeLike = None,
        until: TimeLike = None,
        *,
        fail_on_data_loss: bool = False,
    ) -> int:
        """Number of messages in a range; arguments and errors as for :meth:`scan`."""
        batches = self.scan(start, end, since, until, "entry_id", fail_on_data_loss=fail_on_data_loss)
        return sum(batch.num_rows for batch in batches)

    def to_pandas(self, **options: Unpack[ScanOptions]) -> pd.DataFrame:
        """The rows of a scan as a DataFrame of pandas; arguments and errors as for :meth:`scan`.

        Raises:
            MissingDependency: pandas is not installed.
        """
        return to_pandas(self.scan(**options))

    def to_polars(self, **options: Unpack[ScanOptions]) -> pl.DataFrame:
        """The rows of a scan as a DataFrame of Polars; arguments and errors as for :meth:`scan`.

        Raises:
            MissingDependency: Polars is not installed.
        """
        return to_polars(self.scan(**options))

    def to_duckdb(self, **options: Unpack[ScanOptions]) -> duckdb.DuckDBPyRelation:
        """The rows of a scan as a relation of DuckDB, in memory; arguments and errors as for :meth:`scan`.

        For data larger than memory pass the result of :meth:`scan` to DuckDB, which reads it once.

        Raises:
            MissingDependency: DuckDB is not installed.
        """
        return to_duckdb(self.scan(**options))

    def check_range(
        self,
        start: PositionLike = None,
        end: PositionLike = None,
        since: TimeLike = None,
        until: TimeLike = None,
        *,
        fail_on_data_loss: bool = False,
    ) -> None:
        """Report missing positions of a range, in every partition; arguments and errors as for :meth:`scan`.

        Called after :meth:`splits`, it reports everything that they miss: trimmed entries do not come back.
        """
        scan_range, missing = self._requested(
            ScanRange.of(start, end, since, until, wall_clock_ms()), fail=fail_on_data_loss
        )
        if not fail_on_data_loss and scan_range.has_positions:
            for partition in self._readers:
                partition.pin_for(scan_range, missing)

    def _requested(self, scan_range: ScanRange, *, fail: bool) -> tuple[ScanRange, OnMissing]:
        """The requested range, and the callback for its missing positions.

        Raises:
            EntriesMissing: Positions are missing, and ``fail`` is set: before any row is returned.
        """
        if (why := scan_range.empty_reason) is not None:
            _log.warning("the requested range is empty: %s: %s; swap the two", self.name, why)
        missing = on_missing(fail=fail)
        if fail:
            for partition in self._readers:
                partition.pin_for(scan_range, missing).check_gaps(scan_range)
        return scan_range, missing

    def _only_partition(self, verb: str) -> SourcePartition:
        if len(self._readers) != 1 or self.partitions != (self.name,):
            raise NotSupported(f"{self.name} is partitioned: {verb} in one partition, such as {self.name}-partition-0")
        return self._readers[0]

    def _rows(
        self,
        scan_range: ScanRange,
        columns: Sequence[str],
        priority: ReadPriority | None,
        report: Callable[[CorruptEntry], None],
        missing: OnMissing,
        *,
        typed: TypedColumns | None = None,
    ) -> RowScan:
        """Scan of messages, with typed columns if given."""
        skips_damage = cache(SourcePartition.skips_damage)

        def make_decoder(
            partition: SourcePartition, shared: SharedReadState, on_error: Callable[[CorruptEntry], None]
        ) -> MessageBatches | TypedBatches:
            messages = MessageBatches(
                partition.name,
                scan_range,
                columns,
                on_error if skips_damage(partition) else None,
                shared.neighbours,
                on_incomplete=on_error,
                transactions=shared.transactions,
                batch_bytes=RANGE_BYTES,
            )
            return messages if typed is None else TypedBatches(messages, typed, self.name)

        return RowScan(self._readers, make_decoder, scan_range, priority, report, missing)


def _names(columns: Iterable[str] | str | None) -> Iterable[str] | None:
    return (columns,) if isinstance(columns, str) else columns


def _priority(given: ReadPriority | str | None) -> ReadPriority | None:
    """Parse a read priority, in any of its spellings.

    Raises:
        ConfigError: It is not valid.
    """
    if given is None:
        return None
    try:
        return ReadPriority(_PRIORITY.parse(given))
    except ValueError as error:
        raise ConfigError(f"read priority {given!r} is not {_PRIORITY.description}") from error
