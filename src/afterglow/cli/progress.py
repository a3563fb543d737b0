"""Progress bars on stderr, for bytes and for segments; only on a terminal."""

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

    from afterglow.cli.command import AdminSession
    from afterglow.metadata.names import TopicName

_SHORT: Final = 8
"""Characters of a segment id, enough to distinguish it from the others on the screen."""


@contextmanager
def byte_bar(activity: str, plural: str) -> Iterator[Callable[[int, int, int], None]]:
    """Show a progress bar with speed and remaining time until the context is left.

    Args:
        activity: Text before the bar.
        plural: Items that are counted, such as "objects".

    Yields:
        A callback that takes bytes done, bytes in total, and the number of items done.
    """
    if not sys.stderr.isatty():
        yield lambda _done, _total, _count: None
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
        task = shown.add_task(f"{activity}: starting Spark", total=None)

        def show(done_bytes: int, total_bytes: int, count: int) -> None:
            text = f"{activity}: {count:,} {plural}"
            shown.update(task, description=text, completed=done_bytes, total=max(total_bytes, 1))

        yield show


@contextmanager
def segment_bars(session: AdminSession) -> Iterator[Callable[[str, Sequence[TopicName]], None]]:
    """Show a message and a progress bar for each segment until the context is left.

    Yields:
        A callback that takes the message, and the topics whose segments are shown.
    """
    if not sys.stderr.isatty():
        yield lambda _message, _topics: None
        return
    from rich.console import Console  # noqa: PLC0415 - rich is slow to import, and machines do not need it
    from rich.live import Live  # noqa: PLC0415

    with Live(console=Console(stderr=True, highlight=False), transient=True) as live:
        yield _SegmentScreen(session, live).show


class _SegmentScreen:
    """A message, and below it the segments in progress."""

    def __init__(self, session: AdminSession, live: Live) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn  # noqa: PLC0415 - as above

        self._session = session
        self._live = live
        self._bars = Progress(
            TextColumn("  {task.description}", markup=False), BarColumn(), DownloadColumn(binary_units=True)
        )
        self._shown: dict[str, TaskID] = {}

    def show(self, message: str, topics: Sequence[TopicName]) -> None:
        """Show a message and the segments of topics."""
        from rich.console import Group  # noqa: PLC0415 - as above
        from rich.spinner import Spinner  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        for topic in topics:
            for row in self._segments(topic):
                self._draw(row)
        self._live.update(Group(Spinner("dots", Text(printable(message))), self._bars))

    def _segments(self, topic: TopicName) -> list[dict[str, Any]]:
        try:
            return self._session.client.rows(topic_path(topic, "segments"))
        except AfterglowError:  # Pulsar has no such resource; the status of the offload is reported anyway
            return []

    def _draw(self, row: dict[str, Any]) -> None:
        known = self._shown.get(row["id"])
        if known is None:
            if row.get("status") == "Offloaded":  # complete before it was first shown
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
