"""Entries of a topic from whichever broker serves it, byte for byte as its log holds them.

* **Every entry once, in order, without a hole.** The entry that comes must be the one that follows. If a broker has it
  no more, that is an error which names it, after a second look.
* **Connections come and go.** A topic that is unloaded, a broker that restarts or a connection that breaks costs a new
  lookup; reading goes on at exactly the next entry, until the deadline passes without any.
* **Memory is bounded.** At most ``receive_bytes`` are here or under way, beyond that one entry that is larger by
  itself. Permits tell the broker so; a socket that nobody reads insists on it.

Byte for byte means with the broker's metadata in front. Our own brokers send it to whoever asks for entries as they
are stored; Apache Pulsar does with ``exposingBrokerEntryMetadataToClientEnabled=true``, and strips it otherwise:
:attr:`RawReader.exposes_broker_metadata` tells. Apache Pulsar also keeps markers of transactions and replicated
subscriptions to itself: on topics with these the reader finds holes. No checksum is verified here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from afterglow.errors import AfterglowError, EntriesMissing, HotLogError, HotLogUnavailable
from afterglow.hot.pulsar.connection import Deadline
from afterglow.hot.pulsar.lookup import Dialer, find_broker
from afterglow.hot.pulsar.runs import Course, plan_ranges
from afterglow.hot.pulsar.stream import Stream
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from afterglow.format.position import LedgerRange, Position
    from afterglow.hot.pulsar.address import PulsarAddress
    from afterglow.hot.pulsar.connection import Connection
    from afterglow.hot.pulsar.runs import RawRun

DEFAULT_RECEIVE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class ReadStatistics:
    """What a reader has read since it was made."""

    entries: int = 0
    size_bytes: int = 0
    """Of the entries without frames."""
    with_broker_metadata: int = 0
    """Entries that began with the broker's metadata."""
    subscriptions: int = 0
    """One for each read, and one more whenever it had to begin again somewhere."""


class RawReader:
    """Reads one topic, or one partition of a partitioned one. Belongs to one thread; starts none.

    Args:
        address: The cluster.
        topic: Its name in any spelling.
        receive_bytes: What may be held and under way. A half of it is the longest run.
        timeout_s: Longest wait for an answer, and longest silence after which a connection counts as lost.
        deadline_s: Longest time that one step of a read may take, with all its attempts.
        instance: The hot log that the entries must come from, where the brokers are ours; None: any.
        offloads: Whether the entries are for an offload task, which brokers of ours count.

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
    ) -> None:
        self.topic = TopicName.parse(topic)
        self._half_bytes = receive_bytes // 2
        self._dialer = Dialer(address, self._half_bytes)
        self._timeout_s = timeout_s
        self._deadline_s = deadline_s
        self._instance = instance
        self._offloads = offloads
        self._idle: Connection | None = None
        self._streams: set[Stream] = set()
        self._closed = False
        self._statistics = ReadStatistics()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def statistics(self) -> ReadStatistics:
        """What was read so far."""
        return self._statistics

    @property
    def exposes_broker_metadata(self) -> bool | None:
        """Whether entries carried the broker's metadata.

        None before the first entry. False where none has had it: the broker strips it, or has never written any.
        """
        return self._statistics.with_broker_metadata > 0 if self._statistics.entries else None

    def read(self, begin: Position, end: Position, expected: Sequence[LedgerRange] = ()) -> Iterator[RawRun]:
        """The entries from ``begin`` to ``end``, both inclusive, and none beyond.

        Both must be in the log already: the reader does not wait for entries to be written. The iterator connects when
        it is first asked. While its caller does other things for more than a minute, the broker may close the
        connection; another is opened then.

        Args:
            begin: The first entry.
            end: The last entry.
            expected: The stretches of all ledgers from the one of ``begin`` to the one of ``end``, which may reach
                beyond; needed where these are not the same ledger.

        Returns:
            Runs of one ledger each, in order.

        Raises:
            InvalidPosition: There are no such entries, by what was given.

        Each step raises:
            EntriesMissing: The broker does not have the entry that must come next.
            HotLogTimeout: No entry came within ``deadline_s``, whatever was tried.
            TopicMissing, AccessDenied, ConfigError, NotSupported: The broker refuses for good, or is not trusted.
            InvalidFrame: It does not speak the protocol.
        """
        return self._runs(Course(str(self.topic), plan_ranges(begin, end, expected)))

    def close(self) -> None:
        """End every connection. Reads under way fail at their next step."""
        self._closed = True
        for stream in list(self._streams):
            self._abandon(stream)
        if self._idle is not None:
            self._idle.close()
            self._idle = None

    # --- inside ---

    def _runs(self, course: Course) -> Iterator[RawRun]:
        deadline = Deadline(f"reading {self.topic}", self._deadline_s, self._timeout_s)
        stream: Stream | None = None
        doubted: Position | None = None
        try:
            while not course.done:
                run: RawRun | None
                try:
                    if stream is None:
                        stream = self._subscribe(course, deadline)
                    run = stream.next_run(deadline)
                except (EntriesMissing, HotLogUnavailable) as error:
                    run = None if stream is None else stream.rest()
                    if stream is not None:
                        self._abandon(stream)
                        stream = None
                    if run is None and isinstance(error, EntriesMissing):
                        # A log that grew while the broker looked for the place to begin at is seen whole the next time.
                        if doubted == course.awaited:
                            raise
                        doubted = course.awaited
                    elif run is None:
                        deadline.pause(error)
                if run is not None:
                    self._count(run)
                    yield run
                    deadline.renew()
            if stream is not None:
                self._end(stream, deadline)
        finally:
            if stream is not None:
                self._abandon(stream)

    def _subscribe(self, course: Course, deadline: Deadline) -> Stream:
        if self._closed:
            raise HotLogError(f"the reader of {self.topic} was closed")
        line, self._idle = self._idle, None
        if line is None:
            line = find_broker(self._dialer, self.topic, deadline)
        stream = Stream(
            line,
            self.topic,
            course,
            window_bytes=self._half_bytes,
            deadline=deadline,
            instance=self._instance,
            offloads=self._offloads,
        )
        self._streams.add(stream)
        self._statistics = replace(self._statistics, subscriptions=self._statistics.subscriptions + 1)
        return stream

    def _abandon(self, stream: Stream) -> None:
        if stream in self._streams:
            self._streams.discard(stream)
            stream.line.close()

    def _end(self, stream: Stream, deadline: Deadline) -> None:
        """Close the consumer and keep the connection for the next read. All entries are here: nothing can go wrong."""
        try:
            stream.end(deadline)
        except AfterglowError:
            return
        if self._idle is None and not self._closed:
            self._idle = stream.line
            self._streams.discard(stream)

    def _count(self, run: RawRun) -> None:
        before = self._statistics
        self._statistics = replace(
            before,
            entries=before.entries + run.count,
            size_bytes=before.size_bytes + run.payload_bytes,
            with_broker_metadata=before.with_broker_metadata + run.with_broker_metadata,
        )
