"""One subscription to a topic's entries, on one connection.

How much a broker may send ahead: permits count messages, the budget counts bytes, and neither sizes nor batches are
known before entries arrive. A batch takes as many permits as it has messages, but is sent whole as long as there is
one: so a permit stands for an entry, of the size of those that came last. Where that is wrong, more is under way than
wanted; it then waits in the broker and in the socket, from which nobody reads more than there is room for.
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
from afterglow.hot.pulsar.connection import refused
from afterglow.hot.pulsar.runs import RawRun

if TYPE_CHECKING:
    from afterglow.hot.pulsar.connection import Connection, Deadline
    from afterglow.hot.pulsar.runs import Course
    from afterglow.metadata.names import TopicName

_REMEMBERED: Final = 1024
"""Entries after which the past counts half."""


class Permits:
    """The permits of one consumer.

    Args:
        window_bytes: What may be under way.
        largest_bytes: The largest entry that the broker takes: the size to expect as long as none has come.
    """

    def __init__(self, window_bytes: int, largest_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._largest_bytes = largest_bytes
        self._entries = 0.0
        self._bytes = 0.0
        self._outstanding = 0

    def used(self, entries: int, messages: int, size_bytes: int) -> None:
        """Count entries that came, with the messages in them. These may be more than was granted."""
        self._outstanding -= messages
        self._entries += entries
        self._bytes += size_bytes
        if self._entries > _REMEMBERED:
            self._entries /= 2
            self._bytes /= 2

    def grant(self, entries: int) -> int:
        """The permits to send now, 0 while half of them are still out.

        Args:
            entries: How many are wanted in all. Each takes one permit or more: the broker sends none behind them.
        """
        each = self._bytes / self._entries if self._entries else self._largest_bytes
        wanted = min(max(int(self._window_bytes / max(each, 1)), 1), entries)
        if self._outstanding > wanted // 2:
            return 0
        more = wanted - self._outstanding
        self._outstanding = wanted
        return more


Kind = wire.BaseCommand

_HAND_OVER_S: Final = 0.05
"""Silence after which entries are handed over although more would fit beside them."""

_SILENCE_S: Final = 1.0
"""Silence after which the broker is asked whether there is anything to wait for."""


class Stream:
    """A reader's subscription: non-durable, so that it holds nothing back from being trimmed.

    Args:
        line: A connection to the broker that serves the topic; closed with the stream, unless it ends well.
        topic: The topic.
        course: What is to be read; the stream moves it on.
        window_bytes: What may be under way.
        deadline: How long subscribing may take.
        instance: The hot log that the broker must have.
        offloads: Whether the entries are for an offload task.

    Raises:
        HotLogUnavailable: The broker does not take the subscription now.
        AfterglowError: It refuses for good; see :mod:`afterglow.hot.pulsar.connection`.
    """

    def __init__(
        self,
        line: Connection,
        topic: TopicName,
        course: Course,
        *,
        window_bytes: int,
        deadline: Deadline,
        instance: str | None = None,
        offloads: bool = False,
    ) -> None:
        self.line = line
        self._topic = topic
        self._instance = instance
        self._offloads = offloads
        self._course = course
        self._permits = Permits(window_bytes, line.max_message_bytes)
        self._consumer_id = line.next_id()
        self._question: int | None = None
        self._begin = course.awaited
        self._count = 0
        self._stamped = 0
        try:
            self._subscribe(deadline)
        except BaseException:
            line.close()
            raise

    def next_run(self, deadline: Deadline) -> RawRun:
        """The next entries: as many as fit, up to the end of their ledger's stretch, or until the broker falls silent.

        Raises:
            HotLogUnavailable: The broker has closed the consumer, or the connection is lost.
            EntriesMissing: The broker goes on with other entries, or has none.
            InvalidFrame: It sent what is no command.
        """
        heard = time.monotonic()
        while not self._collect():
            self._grant()
            space = self.line.buffer.space()
            if not space:
                break
            wait_s = min(_HAND_OVER_S if self._count else _SILENCE_S, deadline.wait_s)
            if self.line.receive(space, wait_s):
                heard = time.monotonic()
            elif self._count:
                break
            else:
                self._silent(time.monotonic() - heard, deadline.timeout_s)
        self._grant()
        return self._cut()

    def rest(self) -> RawRun | None:
        """Entries that had come before the stream failed."""
        return self._cut() if self._count else None

    def end(self, deadline: Deadline) -> None:
        """Close the consumer; the connection may be used for others.

        Raises:
            HotLogUnavailable: The connection is lost.
            AfterglowError: The broker refuses.
        """
        ask = wire.CommandCloseConsumer(consumer_id=self._consumer_id, request_id=self.line.next_id())
        self.line.ask(Kind(type=Kind.CLOSE_CONSUMER, close_consumer=ask), ask.request_id, deadline)

    # --- inside ---

    def _subscribe(self, deadline: Deadline) -> None:
        name = f"afterglow-raw-{secrets.token_hex(8)}"
        ask = wire.CommandSubscribe(
            topic=str(self._topic),
            subscription=name,
            subType=wire.CommandSubscribe.Exclusive,
            consumer_id=self._consumer_id,
            request_id=self.line.next_id(),
            consumer_name=name,
            durable=False,
            initialPosition=wire.CommandSubscribe.Latest,
            force_topic_creation=False,
        )
        ask.metadata.add(key=RAW_PROPERTY, value="true")
        if self._instance is not None:
            ask.metadata.add(key=INSTANCE_PROPERTY, value=self._instance)
        if self._offloads:
            ask.metadata.add(key=OFFLOAD_PROPERTY, value="true")
        # A broker of ours begins with exactly this entry. The one before may be in the tier alone, and a task must be
        # able to read while the tier cannot.
        ask.metadata.add(key=START_PROPERTY, value=str(self._course.awaited))
        # Apache Pulsar begins with the entry that is named, or at the end of the log where it does not see it yet: so
        # the one before is named, which comes too and is dropped.
        before = self._course.awaited.previous()
        ask.start_message_id.ledgerId = before.ledger_id
        ask.start_message_id.entryId = before.entry_id & 0xFFFFFFFFFFFFFFFF
        self.line.ask(Kind(type=Kind.SUBSCRIBE, subscribe=ask), ask.request_id, deadline)

    def _collect(self) -> bool:
        """Take what has arrived; True if it ends a ledger's stretch."""
        while True:
            current = self._course.current
            taken = self.line.buffer.take(self._consumer_id, current.ledger_id, current.first, current.last)
            if taken.entries:
                if not self._count:
                    self._begin = self._course.awaited
                self._count += taken.entries
                self._stamped += taken.with_broker_metadata
                self._permits.used(taken.entries, taken.messages, taken.frame_bytes)
                if self._course.took(taken.entries):
                    return True
            found = self.line.command()
            if found is None:
                return False
            self._handle(*found)

    def _handle(self, command: wire.BaseCommand, payload: memoryview) -> None:
        kind = command.type
        if kind == Kind.MESSAGE and command.message.consumer_id == self._consumer_id:
            position = _position(command.message.message_id)
            if position >= self._course.awaited:
                raise self._course.missing(f"it goes on with {position}")
            self._permits.used(1, _messages(payload), len(payload))
        elif kind == Kind.CLOSE_CONSUMER and command.close_consumer.consumer_id == self._consumer_id:
            raise HotLogUnavailable(f"{self.line} has closed the consumer of {self._topic}: it unloads the topic")
        elif kind == Kind.REACHED_END_OF_TOPIC and command.reachedEndOfTopic.consumer_id == self._consumer_id:
            raise self._course.missing("the topic was terminated before it")
        elif kind == Kind.ERROR and command.error.request_id == self._question:
            raise refused(f"the question for the end of {self._topic}", command.error.error, command.error.message)
        elif kind == Kind.GET_LAST_MESSAGE_ID_RESPONSE:
            last = _position(command.getLastMessageIdResponse.last_message_id)
            if last < self._course.awaited:
                raise self._course.missing(f"the log ends with {last}" if last.entry_id >= 0 else "the log is empty")

    def _grant(self) -> None:
        permits = 0 if self._course.done else self._permits.grant(self._course.left)
        if permits:
            flow = wire.CommandFlow(consumer_id=self._consumer_id, messagePermits=permits)
            self.line.send(Kind(type=Kind.FLOW, flow=flow))

    def _silent(self, silence_s: float, timeout_s: float) -> None:
        if silence_s >= timeout_s:
            raise HotLogUnavailable(f"{self.line} has sent nothing of {self._topic} for {silence_s:.1f} s")
        if self._question is None and silence_s >= _SILENCE_S:
            self._question = self.line.next_id()
            ask = wire.CommandGetLastMessageId(consumer_id=self._consumer_id, request_id=self._question)
            self.line.send(Kind(type=Kind.GET_LAST_MESSAGE_ID, getLastMessageId=ask))

    def _cut(self) -> RawRun:
        run = RawRun(self._begin.ledger_id, self._begin.entry_id, self._count, self.line.buffer.cut(), self._stamped)
        self._count = self._stamped = 0
        return run


def _position(message_id: wire.MessageIdData) -> Position:
    """Where a message id points to; ids carry Java's signed numbers in unsigned fields."""
    ledger_id, entry_id = message_id.ledgerId, message_id.entryId
    return Position(
        ledger_id - (1 << 64) if ledger_id >= 1 << 63 else ledger_id,
        entry_id - (1 << 64) if entry_id >= 1 << 63 else entry_id,
    )


def _messages(entry: memoryview) -> int:
    """The permits that an entry took."""
    try:
        metadata = decode_entry(entry, check=False).metadata
    except CorruptEntry:
        return 1
    return max(metadata.num_messages_in_batch, 1)
