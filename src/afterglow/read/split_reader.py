"""Reader of splits in any process, used by the tasks of a Spark job and the threads of a scan.

The process needs network access to the tier and credentials from its own environment: no metadata, no server and no
home directory. Where the preferred copy does not serve, the other one does, as for any other read.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from afterglow.errors import (
    ConfigError,
    EntriesMissing,
    HotLogUnavailable,
    LedgerMissing,
    ObjectMissing,
    TopicChanged,
)
from afterglow.read.copies import HotCopy, Tier
from afterglow.read.counters import ReadCounters
from afterglow.read.fallback import Copies, FallbackReader
from afterglow.read.messages import EntryBatches, MessageBatches, warn
from afterglow.read.neighbours import SplitNeighbours
from afterglow.read.tier_source import TierSource
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
    """Insist on a kind of row.

    Raises:
        ConfigError: It is neither ``messages`` nor ``entries``.
    """
    if include not in get_args(Include):
        raise ConfigError(f"include {include!r} is unknown; there are {' and '.join(get_args(Include))}")


class SplitReader:
    """Reads splits; one of these serves all splits of a process. Thread-safe.

    Args:
        config: Credentials and budgets, as the environment of this process has them.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.counters = ReadCounters()
        """Which tier has served what."""
        self._config = config
        self._tiers = TierSource(Tiers(), config)

    def batches(
        self,
        split: Split,
        columns: Iterable[str] | None = None,
        include: Include = "messages",
        report: Callable[[CorruptEntry], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The wanted rows of a split as Arrow batches, in order.

        Args:
            split: What to read.
            columns: Names of columns in the order wanted; all of them for None. No other is decoded.
            include: One row per message, or one per raw entry.
            report: Called with each message that lacks chunks, and with each entry that is not a readable message,
                where the topic leaves such entries out; None: they are logged.

        Raises:
            ConfigError: A column or ``include`` is unknown.
            OutOfReach: A message needs entries further away than the split knows of.
            CorruptEntry: An entry is damaged; batches before it are good.
            TopicChanged: The entries are in no copy any more.
            AfterglowError: They cannot be read; batches before that are good.
        """
        check_include(include)
        rows: MessageBatches | EntryBatches
        if include == "entries":
            rows = EntryBatches(split.topic, split.window, columns)
        else:
            report = report or warn
            bad = report if split.skips_damage else None
            around = SplitNeighbours(split, self)
            rows = MessageBatches(split.topic, split.window, columns, bad, around, incomplete=report)
        return (batch for served in self.read(split) for batch in rows.of(served))

    def read(self, split: Split, *, scan: bool = True) -> Iterator[ServedRun]:
        """The entries of a split, in runs.

        Args:
            split: What to read.
            scan: Large reads, read ahead. For a few entries say False.

        Raises:
            HotLogUnavailable: Only a hot log has them, and none can be reached.
            TopicChanged: They are in no copy any more.
            AfterglowError: They cannot be read; runs before that are good.
        """
        if not split.order:
            raise HotLogUnavailable(
                f"{split.topic}: entries {split.ledger_id}:{split.first} to {split.last} are in a hot log that cannot "
                "be reached from here"
            )
        through = FallbackReader(split.topic, self.counters)
        copies = self._copies(split)
        try:
            if scan:
                yield from through.scan(lambda _: copies, split.first, split.last)
            else:
                yield from through.walk(lambda _: copies, split.first, split.last, READ_BYTES)
        except (LedgerMissing, EntriesMissing, ObjectMissing) as error:
            raise TopicChanged(
                f"{split.topic}: entries {split.ledger_id}:{split.first} to {split.last} are not there any more: "
                f"{error}; the topic has changed since this read of it began, by retention, by offload or by deletion: "
                "start the read again, and if that fails too, `afterglow verify` tells what is missing"
            ) from error

    def close(self) -> None:
        """Stop reading ahead, and wait for what is under way."""
        self._tiers.close()

    def _copies(self, split: Split) -> Copies:
        return Copies(
            split.ledger_id,
            split.last,
            split.order,
            split.skips_damage,
            split.located,
            partial(self._copy, split),
            partial(self._failed, split),
        )

    def _copy(self, split: Split, tier: Tier) -> LedgerCopy:
        if tier is Tier.HOT:
            assert split.hot is not None
            return HotCopy(split.hot.open(split.ledger_id, split.last), split.ledger_id)
        assert split.located is not None
        return self._tiers.copy(
            split.located,
            split.ledger_id,
            self._config,
            self.counters,
            lenient=split.skips_damage,
            impatient=split.order == (Tier.TIERED, Tier.HOT),
        )

    def _failed(self, split: Split, tier: Tier, error: AfterglowError) -> None:
        if tier is Tier.TIERED and split.located is not None:
            self._tiers.failed(split.located, error)
