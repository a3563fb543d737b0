"""Access to a topic by its producers' access modes (PIP-68): who may produce, who waits, and the topic's epoch.

The topic's epoch rises with every producer that gets the topic for itself. It is kept as Pulsar keeps it, in a property
of the managed ledger, and a producer that comes back with an older one is fenced: another has had the topic meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused
from afterglow.ledger.properties import TOPIC_EPOCH, get_number, raise_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.broker.producers import Producer
    from afterglow.broker.topic import Topic
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

AccessMode: TypeAlias = "wire.ProducerAccessMode.ValueType"


class ProducerAccess:
    """Decides which producers a topic takes. All of it belongs to the event loop's thread.

    Args:
        topic: Whose producers they are.
    """

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._holder: Producer | None = None
        self._waiting: deque[tuple[Producer, asyncio.Future[None]]] = deque()

    @property
    def epoch(self) -> int | None:
        """The topic's epoch; None where no producer has had the topic for itself yet."""
        return get_number(self._topic.ledger.info, TOPIC_EPOCH)

    @property
    def is_held(self) -> bool:
        """Whether a producer has the topic for itself, or is about to."""
        return self._holder is not None

    @property
    def waiting(self) -> int:
        """Producers that wait for the topic."""
        return len(self._waiting)

    async def acquire(self, producer: Producer, on_queued: Callable[[], None]) -> int | None:
        """Let a producer in by its access mode; returns the topic's epoch.

        A producer that was let in for itself holds the topic until :meth:`release`; where this raises or is cancelled,
        nothing is held.

        Args:
            producer: Who asks; not among the topic's producers yet.
            on_queued: Called once where the producer has to wait for others.

        Raises:
            Refused: Other producers stand against it, or it was fenced.
            MetadataError: The epoch could not be kept.
        """
        mode = producer.access_mode
        if mode == wire.Shared:
            if self.is_held or self._waiting:
                raise Refused(wire.ProducerBusy, self._held_message())
            return self.epoch
        self._check_epoch(producer)
        if mode == wire.Exclusive and (self.is_held or self._waiting):
            raise Refused(wire.ProducerFenced, self._held_message())
        if mode == wire.Exclusive and self._topic.producers:
            raise Refused(wire.ProducerFenced, f"{self._topic.name} has producers that share it: close them first")
        if mode == wire.ExclusiveWithFencing:
            self._fence_others(producer)
        elif mode == wire.WaitForExclusive and (self.is_held or self._topic.producers):
            await self._wait(producer, on_queued)
        self._holder = producer
        try:
            return await self._raise_epoch(producer)
        except BaseException:
            self.release(producer)
            raise

    def release(self, producer: Producer) -> None:
        """A producer has left, or was not added after all: the first of those that wait gets a free topic."""
        if self._holder is producer:
            self._holder = None
        if self._holder is not None or self._topic.producers:
            return
        while self._waiting:
            following, turn = self._waiting.popleft()
            if not turn.done():
                self._holder = following
                turn.set_result(None)
                return

    def refuse_waiting(self, refused: Refused) -> None:
        """Refuse all that wait."""
        waiting, self._waiting = self._waiting, deque()
        for _, turn in waiting:
            if not turn.done():
                turn.set_exception(refused)

    async def _wait(self, producer: Producer, on_queued: Callable[[], None]) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (producer, turn)
        self._waiting.append(place)
        on_queued()
        try:
            await turn
        except BaseException:
            if place in self._waiting:
                self._waiting.remove(place)
            self.release(producer)  # its turn may have come in the moment in which its client left
            raise

    def _fence_others(self, producer: Producer) -> None:
        # First those that wait: each producer that leaves would let one of them in.
        self.refuse_waiting(Refused(wire.ProducerFenced, f"{producer.name} has fenced out {self._topic.name}"))
        self._holder = producer
        for rival in list(self._topic.producers.values()):
            self._topic.disconnect_producer(rival)

    async def _raise_epoch(self, producer: Producer) -> int:
        self._check_epoch(producer)
        known = self.epoch
        epoch = producer.topic_epoch
        if epoch is None:
            epoch = 0 if known is None else known + 1
        if epoch != known:
            await self._topic.service.blocking(self._topic.ledger.update, partial(_set_epoch, epoch))
        if self._holder is not producer:
            raise Refused(wire.ProducerFenced, f"another producer has fenced out {producer.name}")
        return epoch

    def _check_epoch(self, producer: Producer) -> None:
        known = self.epoch
        if producer.topic_epoch is not None and known is not None and producer.topic_epoch < known:
            raise Refused(
                wire.ProducerFenced,
                f"Topic epoch has already moved. Current epoch: {known}, Producer epoch: {producer.topic_epoch}",
            )

    def _held_message(self) -> str:
        name = "one that waits for it" if self._holder is None else self._holder.name
        return f"{self._topic.name} has an exclusive producer: {name}; close it first"


def _set_epoch(epoch: int, info: ManagedLedgerInfo) -> None:
    raise_number(info, TOPIC_EPOCH, epoch)
