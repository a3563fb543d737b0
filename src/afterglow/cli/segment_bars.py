"""Segments that fill, as bars on stderr while a person waits; nothing at all where nobody watches."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from afterglow.cli.paths import topic_path
from afterglow.cli.terminal_text import printable
from afterglow.errors import AfterglowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.live import Live
    from rich.progress import TaskID

    from afterglow.cli.command import Session
    from afterglow.metadata.names import TopicName

_SHORT: Final = 8
"""Characters of a segment's id that tell it from the few others on the screen."""
_OFFLOADED: Final = "Offloaded"


class Watch(Protocol):
    """Shows how far things have come."""

    def __call__(self, sentence: str, topics: Sequence[TopicName]) -> None:
        """Show a sentence, and below it the segments of these topics that are on their way."""
        ...


@contextmanager
def watching(session: Session) -> Iterator[Watch]:
    """A sentence and bars that move, and are gone at the end."""
    if not sys.stderr.isatty():
        yield lambda _sentence, _topics: None
        return
    from rich.console import Console  # noqa: PLC0415 - rich is slow to import, and machines do not need it
    from rich.live import Live  # noqa: PLC0415

    with Live(console=Console(stderr=True, highlight=False), transient=True) as live:
        yield _Screen(session, live).show


class _Screen:
    """What a person sees."""

    def __init__(self, session: Session, live: Live) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn  # noqa: PLC0415 - as above

        self._session = session
        self._live = live
        self._bars = Progress(
            TextColumn("  {task.description}", markup=False), BarColumn(), DownloadColumn(binary_units=True)
        )
        self._shown: dict[str, TaskID] = {}

    def show(self, sentence: str, topics: Sequence[TopicName]) -> None:
        """See :class:`Watch`."""
        from rich.console import Group  # noqa: PLC0415 - as above
        from rich.spinner import Spinner  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        for topic in topics:
            for row in self._segments(topic):
                self._draw(row)
        self._live.update(Group(Spinner("dots", Text(printable(sentence))), self._bars))

    def _segments(self, topic: TopicName) -> list[dict[str, Any]]:
        try:
            return self._session.client.rows(topic_path(topic, "segments"))
        except AfterglowError:  # Pulsar has no such resource; what matters is how the offload ends
            return []

    def _draw(self, row: dict[str, Any]) -> None:
        """Draw a segment on its way, and one that was when it was last drawn."""
        done = row.get("status") == _OFFLOADED
        known = self._shown.get(row["id"])
        if known is None:
            if done:
                return
            known = self._shown[row["id"]] = self._bars.add_task("", total=None)
        begin = row["begin"]
        words = f"{row['id'][:_SHORT]} from {begin['ledger_id']}:{begin['entry_id']} {row['status']}"
        self._bars.update(
            known,
            description=words + (printable(f": {row['error']}") if row.get("error") else ""),
            completed=row["bytes"],
            total=row.get("planned_bytes") or None,
        )
