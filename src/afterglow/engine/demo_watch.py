"""Looking at a topic's ledgers and segments from beside the engine, and drawing them over the log."""

from __future__ import annotations

import os
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from afterglow.config import load_conf
from afterglow.engine.home import read_metadata
from afterglow.engine.source import connect
from afterglow.metadata.paths import AfterglowPaths
from afterglow.offload.segments.listing import SegmentStatus, list_segments

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from afterglow.engine.source import SourceTopic
    from afterglow.engine.source_records import SourceLedger
    from afterglow.format.position import Position
    from afterglow.metadata.names import TopicName
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.segments.listing import SegmentView


class Ink(StrEnum):
    """What a stretch of a lane shows."""

    HOT = "hot"
    """In the hot log, and perhaps in the tier."""
    FREED = "freed"
    """Gone from the hot log: in the tier alone."""
    OFFLOADED = "offloaded"
    """In a complete segment."""
    UPLOADED = "uploaded"
    """In a part that was uploaded, of a segment that is not complete."""
    FILLING = "filling"
    """In a segment, not uploaded yet."""
    BLANK = "blank"
    """Nothing yet."""


@dataclass(frozen=True, slots=True)
class Stroke:
    """Consecutive columns of a lane that look alike."""

    ink: Ink
    columns: int
    label: str = ""
    """Stands at its begin, where there is room."""


@dataclass(frozen=True, slots=True)
class Look:
    """A topic at one moment."""

    ledgers: tuple[SourceLedger, ...]
    segments: tuple[SegmentView, ...]

    @property
    def entries(self) -> int:
        """In the log."""
        return sum(ledger.entries for ledger in self.ledgers)

    @property
    def offloaded(self) -> tuple[SegmentView, ...]:
        """Segments that are complete."""
        return tuple(segment for segment in self.segments if segment.status is SegmentStatus.OFFLOADED)

    @property
    def errors(self) -> tuple[str, ...]:
        """Why segments do not get on."""
        return tuple(segment.error for segment in self.segments if segment.error)

    def lanes(self, width: int, entries: int) -> dict[str, list[Stroke]]:
        """Ledgers and segments as lanes over the log.

        Args:
            width: Columns.
            entries: What all columns stand for; at least those of the log.
        """
        canvas = _Canvas(width, max(entries, self.entries, 1))
        return {
            "ledgers": list(canvas.strokes(self._ledger_spans())),
            "segments": list(canvas.strokes(self._segment_spans())),
        }

    def _ledger_spans(self) -> Iterator[_Span]:
        end = 0
        for ledger in self.ledgers:
            end += ledger.entries
            yield _Span(end, Ink.HOT if ledger.hot else Ink.FREED, str(ledger.ledger_id))

    def _segment_spans(self) -> Iterator[_Span]:
        """By number, since nobody can tell one UUID from another."""
        for number, segment in enumerate(self.segments, 1):
            begin = self._rank(segment.begin)
            end = self.entries if segment.end is None else self._rank(segment.end) + 1
            yield _Span(begin, Ink.BLANK, "")
            if segment.status is SegmentStatus.OFFLOADED:
                yield _Span(end, Ink.OFFLOADED, str(number))
            else:
                yield _Span(min(begin + segment.entries, end), Ink.UPLOADED, str(number))
                yield _Span(end, Ink.FILLING, "" if segment.entries else str(number))

    def _rank(self, position: Position) -> int:
        """How many entries stand before a position."""
        return position.entry_id + sum(
            ledger.entries for ledger in self.ledgers if ledger.ledger_id < position.ledger_id
        )


class Show(Protocol):
    """Whoever watches."""

    def say(self, sentence: str) -> None:
        """Something has happened."""
        ...

    def picture(self, look: Look, entries: int, now: str) -> None:
        """The topic looks different.

        Args:
            look: The topic.
            entries: What its log will have in the end, as far as is known.
            now: What is going on, in a few words.
        """
        ...

    def last_picture(self, look: Look) -> None:
        """The topic will not change any more."""
        ...


class Watch:
    """Looks at a topic by its records, as any other process beside the engine can. Made by :func:`watching`."""

    def __init__(self, topic: SourceTopic, metadata: MetadataStore, paths: AfterglowPaths, name: str) -> None:
        self._topic = topic
        self._metadata = metadata
        self._paths = paths
        self._name = name

    def look(self) -> Look:
        """The topic as of now.

        Raises:
            MetadataError: The metadata cannot be read.
        """
        segments = list_segments(self._metadata, self._paths, self._name)
        return Look(self._topic.ledgers(), segments)  # in this order, so that no segment ends behind the log


@contextmanager
def watching(home: Path, topic: TopicName) -> Iterator[Watch]:
    """Watch a topic of an engine's home for the time of a ``with``.

    Raises:
        TopicMissing: There is no such topic.
        MetadataError: The metadata cannot be read.
    """
    paths = AfterglowPaths(load_conf(environ=os.environ).cluster_name)
    with connect(home) as source, closing(read_metadata(home, None)) as metadata:
        yield Watch(source.topic(str(topic)), metadata, paths, topic.managed_ledger_name)


@dataclass(frozen=True, slots=True)
class _Span:
    """What reaches from the end of the span before to an entry, exclusive."""

    end: int
    ink: Ink
    label: str


@dataclass(frozen=True, slots=True)
class _Canvas:
    width: int
    entries: int

    def strokes(self, spans: Iterable[_Span]) -> Iterator[Stroke]:
        at = 0
        for span in spans:
            end = max(min(round(span.end * self.width / self.entries), self.width), at)
            if end > at:
                yield Stroke(span.ink, end - at, span.label)
            at = end
        if at < self.width:
            yield Stroke(Ink.BLANK, self.width - at)
