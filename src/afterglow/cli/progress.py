"""Progress on stderr while a person waits: a bar for bytes, and bars for segments. Nothing without a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from afterglow.cli.command import topic_path
from afterglow.cli.output import printable
from afterglow.errors import AfterglowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.live import Live
    from rich.progress import TaskID

    from afterglow.cli.command import Session
    from afterglow.metadata.names import TopicName

_SHORT: Final = 8
"""Characters of a segment's id that tell it from the few others on the screen."""


@contextmanager
def byte_bar(sentence: str, things: str) -> Iterator[Callable[[int, int, int], None]]:
    """Show a bar with its speed and the time that is left; it is gone at the end.

    Args:
        sentence: What is done.
        things: What is counted, as in "objects".

    Yields:
        A callback that takes bytes done, bytes due and things done.
    """
    if not sys.stderr.isatty():
        yield lambda _done, _due, _count: None
        return
    from rich import progress  # noqa: PLC0415 - rich is slow to import, and machines do not need it
    from rich.console import Console  # noqa: PLC0415

    columns = (
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(compact=True),
    )
    with progress.Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as shown:
        task = shown.add_task(f"{sentence}: starting Spark", total=None)

        def show(done_bytes: int, due_bytes: int, count: int) -> None:
            words = f"{sentence}: {count:,} {things}"
            shown.update(task, description=words, completed=done_bytes, total=max(due_bytes, 1))

        yield show


@contextmanager
def segment_bars(session: Session) -> Iterator[Callable[[str, Sequence[TopicName]], None]]:
    """Show a sentence and a bar per segment; all are gone at the end.

    Yields:
        A callback that takes the sentence, and the topics whose segments are shown.
    """
    if not sys.stderr.isatty():
        yield lambda _sentence, _topics: None
        return
    from rich.console import Console  # noqa: PLC0415 - rich is slow to import, and machines do not need it
    from rich.live import Live  # noqa: PLC0415

    with Live(console=Console(stderr=True, highlight=False), transient=True) as live:
        yield _SegmentScreen(session, live).show


class _SegmentScreen:
    """A sentence, and below it the segments that are on their way."""

    def __init__(self, session: Session, live: Live) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn  # noqa: PLC0415 - as above

        self._session = session
        self._live = live
        self._bars = Progress(
            TextColumn("  {task.description}", markup=False), BarColumn(), DownloadColumn(binary_units=True)
        )
        self._shown: dict[str, TaskID] = {}

    def show(self, sentence: str, topics: Sequence[TopicName]) -> None:
        """Show a sentence, and the segments of these topics."""
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
        done = row.get("status") == "Offloaded"
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
