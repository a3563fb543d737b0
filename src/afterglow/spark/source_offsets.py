"""Offsets of a stream: for every topic, the point up to which it was read. Spark keeps them as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from afterglow.errors import CorruptMetadata, InvalidName
from afterglow.spark.source_points import START, Point

if TYPE_CHECKING:
    from collections.abc import Mapping

    Offsets: TypeAlias = Mapping[str, Point]
    """By full name, each partition by itself. A topic that is not there was not read at all."""

_START = "earliest"


def to_json(offsets: Offsets) -> dict[str, str]:
    """Offsets as Spark keeps them: ``LEDGER:ENTRY:BATCH`` of the first message that was not read."""
    return {name: _START if point == START else str(point) for name, point in offsets.items()}


def from_json(stored: Mapping[str, object]) -> dict[str, Point]:
    """Offsets as Spark gives them back.

    Raises:
        CorruptMetadata: Something else than this source has written them.
    """
    try:
        return {name: Point.parse(str(text)) for name, text in stored.items()}
    except InvalidName as error:
        raise CorruptMetadata(f"the checkpoint's offset is none of this source: {error}") from error
