"""Reader of raw entries of a topic from the broker that serves it, byte for byte as stored.

* **Every entry once, in order, without a hole.** Each received entry must be the next one. If the broker does not have
  it, that is an error which names the entry, after a second attempt.
* **Connections are replaced.** After an unloaded topic, a restarted broker or a broken connection the broker is looked
  up again, and reading continues at exactly the next entry, until the deadline passes without any.
* **Memory is bounded.** At most ``receive_bytes`` are buffered or in flight, except for one entry that is larger by
  itself. Permits limit the broker; a socket that is not read enforces it.

Byte for byte includes the broker entry metadata. Our own brokers send it to subscriptions that ask for raw entries;
Apache Pulsar does with ``exposingBrokerEntryMetadataToClientEnabled=true``, and strips it otherwise:
:attr:`RawReader.exposes_broker_metadata` says which. Apache Pulsar does not deliver markers of transactions and
replicated subscriptions: on topics with these the reader finds holes, unless ``fills_gaps`` is set. No checksum is
verified here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from afterglow.errors import AfterglowError, EntriesMissing, HotLogError, HotLogUnavailable
from afterglow.hot.pulsar.broker_connection import Deadline
from afterglow.hot.pulsar.lookup import Dialer, find_broker
from afterglow.hot.pulsar.raw_entries import ReadProgress, plan_ranges
from afterglow.hot.pulsar.raw_subscription import RawSubscription
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from afterglow.format.position import LedgerRange, Position
    from afterglow.hot.pulsar.address import PulsarAddress
    from afterglow.hot.pulsar.broker_connection import BrokerConnection
    from afterglow.hot.pulsar.raw_entries import RawEntries

DEFAULT_RECEIVE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class ReadStatistics:
    """Counters of a reader."""

    entries: int = 0
    size_bytes: int = 0
    """Bytes of the entries without frames."""
    with_broker_metadata: int = 0
    """Number of entries that began with broker entry metadata."""
    subscriptions: int = 0
    """One for each read, and one for each time that it had to subscribe again."""


class RawReader:
    """Reads one topic, or one partition of a partitioned one. Belongs to one thread; starts none.

    Args:
        address: The cluster.
        topic: Name of the topic, in any form.
        receive_bytes: Bytes that may be buffered and in flight; at most half of it is returned at once.
        timeout_s: Longest wait for a response, and silence after which a connection counts as lost.
        deadline_s: Longest time that one step of a read may take, with all its attempts.
        instance: Id of the hot log that the entries must come from, if the brokers are ours; None: any.
        offloads: Whether the entries are for an offload task, which brokers of ours count.
        fills_gaps: Whether entries that the broker skips are returned without any byte, instead of being missing. The
            caller must know that they were not trimmed.

    Raises:
        InvalidName: The topic's name is not well-formed.
    """

    def __init__(
        self,
        address: PulsarAddress,
        topic: str,
        *,
        receive_bytes: int = DEFAULT_RECEIVE_BYTES,
        timeout_s: float = 30.0,
        deadline_s: float = 120.0,
        instance: str | None = None,
        offloads: bool = False,
        fills_gaps: bool = False,
    ) -> None:
        self.topic = TopicName.parse(topic)
        self._half_bytes = receive_bytes // 2
        self._dialer = Dialer(address, self._half_bytes)
        self._timeout_s = timeout_s
        self._deadline_s = deadline_s
        self._instance = instance
        self._offloads = offloads
        self._fills_gaps = fills_gaps
        self._idle: BrokerConnection | None = None
        self._subscriptions: set[RawSubscription] = set()
        self._closed = False
        self._statistics = ReadStatistics()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def statistics(self) -> ReadStatistics:
        """Counters since the reader was made."""
        return self._statistics

    @property
    def exposes_broker_metadata(self) -> bool | None:
        """Whether entries carried broker entry metadata.

        None before the first entry. False if none had it: the broker strips it, or has never written any.
        """
        return self._statistics.with_broker_metadata > 0 if self._statistics.entries else None

    def read(self, begin: Position, end: Position, expected: Sequence[LedgerRange] = ()) -> Iterator[RawEntries]:
        """The entries from ``begin`` to ``end``, both inclusive, and none beyond.

        Both must be in the log already: the reader does not wait for entries to be written. The iterator connects at
        its first step. If its caller does other things for more than a minute, the broker may close the connection;
        another is opened then.

        Args:
            begin: The first entry.
            end: The last entry.
            expected: The entries of all ledgers from that of ``begin`` to that of ``end``, possibly beyond; needed if
                these are not the same ledger.

        Returns:
            Entries in order, each item of one ledger.

        Raises:
            InvalidPosition: The positions do not fit the expected ranges.

        Each step raises:
            EntriesMissing: The broker does not have the next entry.
            HotLogTimeout: No entry was received within ``deadline_s``.
            TopicMissing, AccessDenied, ConfigError, NotSupported: The broker refused permanently, or is not trusted.
            InvalidFrame: The broker violates the protocol.
        """
        return self._read(ReadProgress(str(self.topic), plan_ranges(begin, end, expected)))

    def close(self) -> None:
        """Close every connection. Reads under way fail at their next step."""
        self._closed = True
        for subscription in list(self._subscriptions):
            self._abandon(subscription)
        if self._idle is not None:
            self._idle.close()
            self._idle = None

    def _read(self, progress: ReadProgress) -> Iterator[RawEntries]:
        deadline = Deadline(f"reading {self.topic}", self._deadline_s, self._timeout_s)
        subscription: RawSubscription | None = None
        missing_once: Position | None = None
        try:
            while not progress.done:
                received: RawEntries | None
                try:
                    if subscription is None:
                        subscription = self._subscribe(progress, deadline)
                    received = subscription.next_entries(deadline)
                except (EntriesMissing, HotLogUnavailable) as error:
                    received = None if subscription is None else subscription.received()
                    if subscription is not None:
                        self._abandon(subscription)
                        subscription = None
                    if received is None and isinstance(error, EntriesMissing):
                        # The log may have grown while the broker searched for the start: try once more.
                        if missing_once == progress.awaited:
                            raise
                        missing_once = progress.awaited
                    elif received is None:
                        deadline.pause(error)
                if received is not None:
                    self._add_statistics(received)
                    yield received
                    deadline.renew()
            if subscription is not None:
                self._finish(subscription, deadline)
        finally:
            if subscription is not None:
                self._abandon(subscription)

    def _subscribe(self, progress: ReadProgress, deadline: Deadline) -> RawSubscription:
        if self._closed:
            raise HotLogError(f"the reader of {self.topic} was closed")
        connection, self._idle = self._idle, None
        if connection is None:
            connection = find_broker(self._dialer, self.topic, deadline)
        subscription = RawSubscription(
            connection,
            self.topic,
            progress,
            window_bytes=self._half_bytes,
            deadline=deadline,
            instance=self._instance,
            offloads=self._offloads,
            fills_gaps=self._fills_gaps,
        )
        self._subscriptions.add(subscription)
        self._statistics = replace(self._statistics, subscriptions=self._statistics.subscriptions + 1)
        return subscription

    def _abandon(self, subscription: RawSubscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.discard(subscription)
            subscription.connection.close()

    def _finish(self, subscription: RawSubscription, deadline: Deadline) -> None:
        """Close the consumer and keep the connection for the next read; errors are ignored, since the read is done."""
        try:
            subscription.end(deadline)
        except AfterglowError:
            return
        if self._idle is None and not self._closed:
            self._idle = subscription.connection
            self._subscriptions.discard(subscription)

    def _add_statistics(self, received: RawEntries) -> None:
        before = self._statistics
        self._statistics = replace(
            before,
            entries=before.entries + received.count,
            size_bytes=before.size_bytes + received.payload_bytes,
            with_broker_metadata=before.with_broker_metadata + received.with_broker_metadata,
        )
