"""Reader of splits in any process, such as the tasks of a Spark job.

The process needs network access to the tier and credentials from its own environment: no metadata, no server and no
home directory.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from afterglow.errors import (
    ConfigError,
    DataLost,
    EntriesMissing,
    HotLogUnavailable,
    LedgerMissing,
    ObjectMissing,
    TopicChanged,
)
from afterglow.read.copies import HotCopy, StorageTier
from afterglow.read.counters import ReadCounters
from afterglow.read.fallback import Copies, FallbackReader
from afterglow.read.messages import EntryBatches, MessageBatches, log_skipped
from afterglow.read.neighbours import SplitNeighbours
from afterglow.read.tier_reader import TierReader
from afterglow.read.topic_reader import READ_BYTES
from afterglow.tier.locations import Tiers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from afterglow.config import BrokerConfig
    from afterglow.errors import AfterglowError, CorruptEntry
    from afterglow.read.copies import LedgerCopy, ServedRun
    from afterglow.read.splits import Split

Include: TypeAlias = Literal["messages", "entries"]


def check_include(include: str) -> None:
    """Validate the kind of rows.

    Raises:
        ConfigError: It is neither ``messages`` nor ``entries``.
    """
    if include not in get_args(Include):
        raise ConfigError(f"include {include!r} is unknown; use {' or '.join(get_args(Include))}")


class SplitReader:
    """Reads splits; all splits of a process share one reader. Thread-safe.

    Args:
        config: Credentials and cache limits, from the environment of this process.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.counters = ReadCounters()
        """Counts of all its reads."""
        self._config = config
        self._tiers = TierReader(Tiers(), config)

    def batches(
        self,
        split: Split,
        columns: Iterable[str] | None = None,
        include: Include = "messages",
        report: Callable[[CorruptEntry], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a split as Arrow batches, in order.

        Args:
            split: The split.
            columns: Names of columns in the wanted order; None: all columns. No other column is decoded.
            include: One row per message, or one per raw entry.
            report: Called with each message that lacks chunks, and with each entry that is not a readable message, if
                the topic's policy is to skip them; None: they are logged.

        Raises:
            ConfigError: A column or ``include`` is unknown.
            OutOfReach: A message needs entries outside the split's neighbourhood.
            CorruptEntry: An entry is damaged; the batches before it are valid.
            TopicChanged: No copy has the entries any more.
            AfterglowError: The entries cannot be read; the batches before are valid.
        """
        check_include(include)
        rows: MessageBatches | EntryBatches
        if include == "entries":
            rows = EntryBatches(split.topic, split.scan_range, columns)
        else:
            report = report or log_skipped
            on_corrupt = report if split.skips_damage else None
            neighbours = SplitNeighbours(split, self)
            rows = MessageBatches(split.topic, split.scan_range, columns, on_corrupt, neighbours, on_incomplete=report)
        return (batch for served in self.read(split) for batch in rows.of(served))

    def read(self, split: Split, *, scan: bool = True) -> Iterator[ServedRun]:
        """The entries of a split, in runs.

        Args:
            split: The split.
            scan: Read in bulk, prefetched. Pass False for a few entries.

        Raises:
            HotLogUnavailable: Only a hot log has them, and it cannot be reached.
            TopicChanged: No copy has the entries any more.
            AfterglowError: The entries cannot be read; the runs before are valid.
        """
        if not split.order:
            raise HotLogUnavailable(
                f"{split.topic}: entries {split.ledger_id}:{split.first} to {split.last} are in a hot log that cannot "
                "be reached from this machine"
            )
        reader = FallbackReader(split.topic, self.counters)
        copies = Copies(
            split.ledger_id,
            split.last,
            split.order,
            split.skips_damage,
            split.tier_object,
            partial(self._copy, split),
            partial(self._failed, split),
        )
        try:
            if scan:
                yield from reader.scan(lambda _: copies, split.first, split.last)
            else:
                yield from reader.walk(lambda _: copies, split.first, split.last, READ_BYTES)
        except (DataLost, EntriesMissing, LedgerMissing, ObjectMissing) as error:
            raise TopicChanged(
                f"{split.topic}: entries {split.ledger_id}:{split.first} to {split.last} do not exist any more: "
                f"{error}; retention, offload or deletion has changed the topic since this read began: start the read "
                "again, and if that fails too, run `afterglow verify` to list what is missing"
            ) from error

    def close(self) -> None:
        """Stop prefetching, and wait for requests in progress."""
        self._tiers.close()

    def _copy(self, split: Split, tier: StorageTier) -> LedgerCopy:
        if tier is StorageTier.HOT:
            assert split.hot is not None
            return HotCopy(split.hot.open(split.ledger_id, split.last), split.ledger_id)
        assert split.tier_object is not None
        return self._tiers.copy(
            split.tier_object,
            split.ledger_id,
            self._config,
            self.counters,
            allow_truncated=split.skips_damage,
            fail_fast=split.order == (StorageTier.TIERED, StorageTier.HOT),
        )

    def _failed(self, split: Split, tier: StorageTier, error: AfterglowError) -> None:
        if tier is StorageTier.TIERED and split.tier_object is not None:
            self._tiers.failed(split.tier_object, error)
