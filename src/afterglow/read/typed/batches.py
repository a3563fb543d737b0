"""Runs of entries as Arrow batches of messages with typed columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from afterglow.read.copies import ServedRun
    from afterglow.read.messages import MessageBatches
    from afterglow.read.typed.columns import TypedColumns


class TypedBatches:
    """What :class:`~afterglow.read.messages.MessageBatches` gives, with typed columns.

    Args:
        messages: Gives the columns that ``typed`` needs.
        typed: Types them.
        topic: The name that the topic's schemas are known by.
    """

    def __init__(self, messages: MessageBatches, typed: TypedColumns, topic: str) -> None:
        self.schema = typed.schema
        self._messages = messages
        self._typed = typed
        self._topic = topic

    def of(self, served: ServedRun) -> Iterator[pa.RecordBatch]:
        """The wanted messages of a run, in order.

        Raises:
            CorruptEntry: An entry cannot be read, and nobody takes the report.
        """
        for batch in self._messages.of(served):
            yield from self._typed.of(batch, self._topic)

    def end(self) -> None:
        """Say that no more runs come."""
        self._messages.end()
