"""A subscription to a topic's entries, on one connection.

Flow control: permits count messages, the budget counts bytes, and sizes and batches are unknown before entries arrive.
A batch takes as many permits as it has messages, but is sent whole if one permit is left. So one permit is granted per
entry, assuming the average size of recent ones. If the estimate is wrong, more than the budget is in flight; it then
waits in the broker and in the socket, from which no more is read than the receive buffer holds.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final

from afterglow.errors import CorruptEntry, HotLogUnavailable
from afterglow.format.entry import decode_entry
from afterglow.format.position import Position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import INSTANCE_PROPERTY, OFFLOAD_PROPERTY, RAW_PROPERTY, START_PROPERTY
from afterglow.hot.pulsar.broker_connection import refused
from afterglow.hot.pulsar.raw_entries import RawEntries, undelivered_entries

if TYPE_CHECKING:
    from afterglow.hot.pulsar.broker_connection import BrokerConnection, Deadline
    from afterglow.hot.pulsar.raw_entries import ReadProgress
    from afterglow.metadata.names import TopicName

_HALF_LIFE_ENTRIES: Final = 1024
"""Number of entries after which earlier sizes count half in the average."""


class Permits:
    """The permits of one consumer.

    Args:
        window_bytes: Bytes that may be in flight.
        largest_bytes: The largest entry that the broker accepts: the assumed size until the first one arrives.
    """

    def __init__(self, window_bytes: int, largest_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._largest_bytes = largest_bytes
        self._entries = 0.0
        self._bytes = 0.0
        self._outstanding = 0

    def used(self, entries: int, messages: int, size_bytes: int) -> None:
        """Count received entries, with the messages in them, which may be more than was granted."""
        self._outstanding -= messages
        self._entries += entries
        self._bytes += size_bytes
        if self._entries > _HALF_LIFE_ENTRIES:
            self._entries /= 2
            self._bytes /= 2

    def grant(self, entries: int) -> int:
        """The permits to send now; 0 while more than half of them are outstanding.

        Args:
            entries: Number of entries still to be read. Each takes at least one permit, so that the broker sends no
                entries after them.
        """
        each = self._bytes / self._entries if self._entries else self._largest_bytes
        wanted = min(max(int(self._window_bytes / max(each, 1)), 1), entries)
        if self._outstanding > wanted // 2:
            return 0
        more = wanted - self._outstanding
        self._outstanding = wanted
        return more


Command = wire.BaseCommand

_HAND_OVER_S: Final = 0.05
"""Silence after which received entries are returned although the buffer has space for more."""

_GAP_ENTRIES: Final = 1 << 16
"""Entries without bytes that are returned at once."""

_SILENCE_S: Final = 1.0
"""Silence after which the broker is asked for the end of the topic."""


class RawSubscription:
    """A reader's subscription: non-durable, so that it does not hold back trimming.

    Args:
        connection: A connection to the broker that serves the topic; closed if subscribing fails.
        topic: The topic.
        progress: The entries to read; advanced by the subscription.
        window_bytes: Bytes that may be in flight.
        deadline: Limit for subscribing.
        instance: Id of the hot log that the broker must have; None: any.
        offloads: Whether the entries are for an offload task.
        fills_gaps: Whether entries that the broker skips are returned without any byte, instead of being missing.

    Raises:
        HotLogUnavailable: The broker does not accept the subscription now.
        AfterglowError: The broker refused permanently; see :mod:`afterglow.hot.pulsar.broker_connection`.
    """

    def __init__(
        self,
        connection: BrokerConnection,
        topic: TopicName,
        progress: ReadProgress,
        *,
        window_bytes: int,
        deadline: Deadline,
        instance: str | None = None,
        offloads: bool = False,
        fills_gaps: bool = False,
    ) -> None:
        self.connection = connection
        self._topic = topic
        self._instance = instance
        self._offloads = offloads
        self._fills_gaps = fills_gaps
        self._continues_with: Position | None = None
        """The entry that the broker continues with, if it skipped entries."""
        self._progress = progress
        self._permits = Permits(window_bytes, connection.max_message_bytes)
        self._consumer_id = connection.next_id()
        self._end_request: int | None = None
        self._begin = progress.awaited
        self._entries = 0
        self._stamped = 0
        try:
            self._subscribe(deadline)
        except BaseException:
            connection.close()
            raise

    def next_entries(self, deadline: Deadline) -> RawEntries:
        """The next entries: as many as fit, up to the end of their ledger's range, or until the broker pauses.

        Raises:
            HotLogUnavailable: The broker has closed the consumer, or the connection is lost.
            EntriesMissing: The broker continues with other entries, or has none.
            InvalidFrame: The broker sent an invalid command.
        """
        received_at = time.monotonic()
        while not self._collect():
            self._grant()
            space = self.connection.buffer.space()
            if not space:
                break
            wait_s = min(_HAND_OVER_S if self._entries else _SILENCE_S, deadline.wait_s)
            if self.connection.receive(space, wait_s):
                received_at = time.monotonic()
            elif self._entries:
                break
            else:
                self._check_silence(time.monotonic() - received_at, deadline.timeout_s)
        self._grant()
        return self._take_entries() if self._entries else self._take_gap()

    def received(self) -> RawEntries | None:
        """Entries received before the subscription failed; None if there are none."""
        return self._take_entries() if self._entries else None

    def end(self, deadline: Deadline) -> None:
        """Close the consumer; the connection can be reused.

        Raises:
            HotLogUnavailable: The connection is lost.
            AfterglowError: The broker refuses.
        """
        request = wire.CommandCloseConsumer(consumer_id=self._consumer_id, request_id=self.connection.next_id())
        self.connection.request(
            Command(type=Command.CLOSE_CONSUMER, close_consumer=request), request.request_id, deadline
        )

    def _subscribe(self, deadline: Deadline) -> None:
        name = f"afterglow-raw-{secrets.token_hex(8)}"
        request = wire.CommandSubscribe(
            topic=str(self._topic),
            subscription=name,
            subType=wire.CommandSubscribe.Exclusive,
            consumer_id=self._consumer_id,
            request_id=self.connection.next_id(),
            consumer_name=name,
            durable=False,
            initialPosition=wire.CommandSubscribe.Latest,
            force_topic_creation=False,
        )
        request.metadata.add(key=RAW_PROPERTY, value="true")
        if self._instance is not None:
            request.metadata.add(key=INSTANCE_PROPERTY, value=self._instance)
        if self._offloads:
            request.metadata.add(key=OFFLOAD_PROPERTY, value="true")
        # A broker of ours begins with exactly this entry. The entry before may be in the tier only, and a task must be
        # able to read while the tier is down.
        request.metadata.add(key=START_PROPERTY, value=str(self._progress.awaited))
        # Apache Pulsar begins with the given entry, or at the end of the log if it does not see that entry yet. So the
        # entry before is given, which arrives too and is dropped.
        before = self._progress.awaited.previous()
        request.start_message_id.ledgerId = before.ledger_id
        request.start_message_id.entryId = before.entry_id & 0xFFFFFFFFFFFFFFFF
        self.connection.request(Command(type=Command.SUBSCRIBE, subscribe=request), request.request_id, deadline)

    def _collect(self) -> bool:
        """Take received entries; True if they complete a ledger's range, or the broker has skipped entries."""
        while self._continues_with is None:
            current = self._progress.current
            taken = self.connection.buffer.take(self._consumer_id, current.ledger_id, current.first, current.last)
            if taken.entries:
                if not self._entries:
                    self._begin = self._progress.awaited
                self._entries += taken.entries
                self._stamped += taken.with_broker_metadata
                self._permits.used(taken.entries, taken.messages, taken.frame_bytes)
                if self._progress.advance_by(taken.entries):
                    return True
            found = self.connection.command()
            if found is None:
                return False
            self._handle_command(*found)
        return True

    def _handle_command(self, command: wire.BaseCommand, payload: memoryview) -> None:
        kind = command.type
        if kind == Command.MESSAGE and command.message.consumer_id == self._consumer_id:
            position = message_position(command.message.message_id)
            if self._fills_gaps and position > self._progress.awaited:
                self.connection.buffer.unread()
                self._continues_with = position
                return
            if position >= self._progress.awaited:
                raise self._progress.missing(f"it continues with {position}")
            self._permits.used(1, _messages(payload), len(payload))
        elif kind == Command.CLOSE_CONSUMER and command.close_consumer.consumer_id == self._consumer_id:
            raise HotLogUnavailable(f"{self.connection} closed the consumer of {self._topic}: it unloads the topic")
        elif kind == Command.REACHED_END_OF_TOPIC and command.reachedEndOfTopic.consumer_id == self._consumer_id:
            raise self._progress.missing("the topic was terminated before this entry")
        elif kind == Command.ERROR and command.error.request_id == self._end_request:
            raise refused(f"request for the end of {self._topic}", command.error.error, command.error.message)
        elif kind == Command.GET_LAST_MESSAGE_ID_RESPONSE:
            last = message_position(command.getLastMessageIdResponse.last_message_id)
            if last < self._progress.awaited:
                raise self._progress.missing(f"the log ends with {last}" if last.entry_id >= 0 else "the log is empty")

    def _grant(self) -> None:
        permits = 0 if self._progress.done else self._permits.grant(self._progress.left)
        if permits:
            flow = wire.CommandFlow(consumer_id=self._consumer_id, messagePermits=permits)
            self.connection.send(Command(type=Command.FLOW, flow=flow))

    def _check_silence(self, silence_s: float, timeout_s: float) -> None:
        if silence_s >= timeout_s:
            raise HotLogUnavailable(f"{self.connection} has sent no entries of {self._topic} for {silence_s:.1f} s")
        if self._end_request is None and silence_s >= _SILENCE_S:
            self._end_request = self.connection.next_id()
            request = wire.CommandGetLastMessageId(consumer_id=self._consumer_id, request_id=self._end_request)
            self.connection.send(Command(type=Command.GET_LAST_MESSAGE_ID, getLastMessageId=request))

    def _take_gap(self) -> RawEntries:
        """Entries that the broker skipped, up to the end of their ledger's range."""
        assert self._continues_with is not None
        current, begin = self._progress.current, self._progress.awaited
        last = current.last
        if self._continues_with.ledger_id == begin.ledger_id:
            last = min(last, self._continues_with.entry_id - 1)
        count = min(last - begin.entry_id + 1, _GAP_ENTRIES)
        self._progress.advance_by(count)
        if self._progress.done or self._progress.awaited >= self._continues_with:
            self._continues_with = None
        return undelivered_entries(begin.ledger_id, begin.entry_id, count)

    def _take_entries(self) -> RawEntries:
        data = self.connection.buffer.cut()
        taken = RawEntries(self._begin.ledger_id, self._begin.entry_id, self._entries, data, self._stamped)
        self._entries = self._stamped = 0
        return taken


def message_position(message_id: wire.MessageIdData) -> Position:
    """The position of a message id, which carries Java's signed numbers in unsigned fields."""
    ledger_id, entry_id = message_id.ledgerId, message_id.entryId
    return Position(
        ledger_id - (1 << 64) if ledger_id >= 1 << 63 else ledger_id,
        entry_id - (1 << 64) if entry_id >= 1 << 63 else entry_id,
    )


def _messages(entry: memoryview) -> int:
    """The number of permits that an entry took."""
    try:
        metadata = decode_entry(entry, check=False).metadata
    except CorruptEntry:
        return 1
    return max(metadata.num_messages_in_batch, 1)
