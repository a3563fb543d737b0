"""Producer access modes of a topic (PIP-68): exclusive access, the queue for it, and the topic's epoch.

The epoch is incremented with every producer that gets exclusive access. It is stored as in Pulsar, in a property of the
managed ledger. A producer that reconnects with an older epoch is fenced: another one has had access meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused
from afterglow.ledger.properties import TOPIC_EPOCH, get_number, raise_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.broker.producer import Producer
    from afterglow.broker.topic import Topic

AccessMode: TypeAlias = "wire.ProducerAccessMode.ValueType"


class ProducerAccess:
    """Access of producers to one topic. Belongs to the event loop's thread."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._holder: Producer | None = None
        self._waiting: deque[tuple[Producer, asyncio.Future[None]]] = deque()

    @property
    def epoch(self) -> int | None:
        """The topic's epoch; None if no producer has had exclusive access yet."""
        return get_number(self._topic.ledger.info, TOPIC_EPOCH)

    @property
    def is_held(self) -> bool:
        """Whether a producer has exclusive access, or is being granted it."""
        return self._holder is not None

    @property
    def waiting(self) -> int:
        """Number of producers that wait for exclusive access."""
        return len(self._waiting)

    async def acquire(self, producer: Producer, on_queued: Callable[[], None]) -> int | None:
        """Grant a producer access by its access mode; returns the topic's epoch.

        Exclusive access lasts until :meth:`release`. If this raises or is cancelled, no access is held.

        Args:
            producer: The producer, not among the topic's producers yet.
            on_queued: Called once if the producer has to wait for others.

        Raises:
            Refused: The mode conflicts with other producers, or the producer was fenced.
            MetadataError: The epoch could not be stored.
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
            raise Refused(wire.ProducerFenced, f"{self._topic.name} has shared producers; close them first")
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
        """Release the access of a producer that is gone or was not added; the first in the queue gets a free topic."""
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
        """Refuse all producers in the queue."""
        waiting, self._waiting = self._waiting, deque()
        for _, turn in waiting:
            if not turn.done():
                turn.set_exception(refused)

    async def _wait(self, producer: Producer, on_queued: Callable[[], None]) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queued = (producer, turn)
        self._waiting.append(queued)
        on_queued()
        try:
            await turn
        except BaseException:
            if queued in self._waiting:
                self._waiting.remove(queued)
            self.release(producer)  # access may have been granted just before the client disconnected
            raise

    def _fence_others(self, producer: Producer) -> None:
        # The queue comes first: each disconnected producer would admit one of it.
        self.refuse_waiting(
            Refused(wire.ProducerFenced, f"{producer.name} has fenced the other producers of {self._topic.name}")
        )
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
            await self._topic.service.blocking(
                self._topic.ledger.update, lambda info: raise_number(info, TOPIC_EPOCH, epoch)
            )
        if self._holder is not producer:
            raise Refused(wire.ProducerFenced, f"another producer has fenced {producer.name}")
        return epoch

    def _check_epoch(self, producer: Producer) -> None:
        known = self.epoch
        if producer.topic_epoch is not None and known is not None and producer.topic_epoch < known:
            raise Refused(
                wire.ProducerFenced,
                f"Topic epoch has already moved. Current epoch: {known}, Producer epoch: {producer.topic_epoch}",
            )

    def _held_message(self) -> str:
        name = "one in the queue" if self._holder is None else self._holder.name
        return f"{self._topic.name} has an exclusive producer: {name}; close it first"
