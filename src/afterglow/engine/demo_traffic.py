"""A stock Pulsar client that sends the demo's messages and notes what the broker acknowledged, and where."""

from __future__ import annotations

import threading
from array import array
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from afterglow.engine.demo_messages import make_message
from afterglow.errors import AfterglowError, MissingDependency
from afterglow.format.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WAVE: Final = 100
"""Messages that one producer sends in a row; the next begins when all are acknowledged, so that their order is known.

Several producers take turns, since batching and compression are theirs."""

_ANSWER_S: Final = 60.0
_BATCH: Final = 40


def stock_client() -> Any:
    """The module of the stock client.

    Raises:
        MissingDependency: It is not installed.
    """
    try:
        import pulsar  # noqa: PLC0415 - not among our dependencies
    except ImportError as error:
        raise MissingDependency("the demo sends with the stock Pulsar client: pip install pulsar-client") from error
    return pulsar


def entries_of(messages: int) -> int:
    """About how many entries that many messages make: a third of them stand alone, the others in batches."""
    return messages // 3 + 2 * messages // (3 * _BATCH) + 1


@contextmanager
def connected(service_url: str) -> Iterator[Any]:
    """A stock client for the time of a ``with``.

    Raises:
        AfterglowError: What was done with it failed.
    """
    pulsar = stock_client()
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        yield client
    except pulsar.PulsarException as error:
        raise AfterglowError(f"the stock Pulsar client failed: {error}") from error
    finally:
        client.close()


class Traffic:
    """Sends messages to a topic in waves, and remembers each by its digest.

    Args:
        client: Of :func:`connected`.
        topic: Full name.
    """

    def __init__(self, client: Any, topic: str) -> None:
        pulsar = stock_client()
        create = partial(client.create_producer, topic, block_if_queue_full=True)
        batched = partial(create, batching_enabled=True, batching_max_messages=_BATCH)
        self._producers = (
            batched(compression_type=pulsar.CompressionType.ZSTD),
            batched(),
            create(batching_enabled=False),
        )
        self._ok = pulsar.Result.Ok
        self._done = threading.Condition()
        self._positions: dict[int, tuple[int, int, int]] = {}
        self._refused: tuple[int, Any] | None = None
        self._digests = bytearray()
        self.sent = 0
        """Messages acknowledged so far."""
        self.value_bytes = 0
        """Of their values."""

    def wave(self, count: int) -> None:
        """Send the next messages and wait until the broker has acknowledged all.

        Raises:
            AfterglowError: It refused one, or did not answer in time.
        """
        producer = self._producers[self.sent // WAVE % len(self._producers)]
        end = self.sent + count
        for number in range(self.sent, end):
            message = make_message(number)
            self._digests += message.digest
            self.value_bytes += len(message.value)
            producer.send_async(
                message.value,
                partial(self._acknowledged, number),
                properties=dict(message.properties),
                partition_key=message.key,
                event_timestamp=message.event_time_ms or None,
            )
        producer.flush()
        with self._done:  # a flush may end a moment before the last call
            answered = self._done.wait_for(lambda: self._refused or len(self._positions) == end, _ANSWER_S)
        if self._refused:
            raise AfterglowError("message {} was not taken: {}".format(*self._refused))
        if not answered:
            raise AfterglowError(f"{end - len(self._positions)} messages were not acknowledged within {_ANSWER_S:g} s")
        self.sent = end

    def table(self) -> pa.Table:
        """What was sent, in order: positions as the broker acknowledged them, and digests."""
        found = [self._positions[number] for number in range(self.sent)]
        ledgers, entries, batch_indexes = (array("q", column) for column in zip(*found, strict=True))
        width = len(self._digests) // max(self.sent, 1)
        digests = pa.Array.from_buffers(pa.binary(width), self.sent, [None, pa.py_buffer(self._digests)])
        columns = {
            "ledger_id": pa.array(ledgers, pa.int64()),
            "entry_id": pa.array(entries, pa.int64()),
            "batch_index": pa.array(batch_indexes, pa.int32()),
            "digest": digests.cast(pa.binary()),
        }
        return pa.table(columns)

    def _acknowledged(self, number: int, result: Any, message_id: Any) -> None:
        """On a thread of the client."""
        with self._done:
            if result == self._ok:
                self._positions[number] = message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
            else:
                self._refused = self._refused or (number, result)
            self._done.notify()


def seek_by_client(client: Any, topic: str, moments: Sequence[int]) -> list[Position]:
    """Where a stock reader stands after it has sought each moment, epoch milliseconds: none behind the last message."""
    reader = client.create_reader(topic, stock_client().MessageId.earliest)
    found = []
    for moment in moments:
        reader.seek(moment)
        at = reader.read_next(timeout_millis=int(_ANSWER_S * 1000)).message_id()
        found.append(Position(at.ledger_id(), at.entry_id()))
    reader.close()
    return found
