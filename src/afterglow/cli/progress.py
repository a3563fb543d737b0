"""Progress on stderr: of any activity that takes longer than two seconds, and of segments."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
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

_BYTES: Final = "bytes"
_FIRST_LINE_S: Final = 2.0
_LINES_S: Final = 10.0
"""Interval of plain lines."""
_SHORT: Final = 8
"""Characters of a segment id, enough to distinguish it from the others on the screen."""


class ProgressText:
    """Progress of one activity as text: what it does, percentage, rate and remaining time.

    Args:
        activity: Text before the figures, such as "verifying".
        unit: Unit of the figures: ``bytes``, or a plural such as ``objects``.
        clock: Monotonic time in seconds.
    """

    def __init__(self, activity: str, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._activity = activity
        self._unit = unit
        self._clock = clock
        self._began_s = clock()
        self._first: tuple[float, int] | None = None
        self._state = ""
        self._done = self._total = 0

    def show(self, state: str, done: int = 0, total: int = 0) -> None:
        """Set the state and the figures; ``total`` is 0 if it is not known."""
        if self._first is None and total:
            self._first = self._clock(), done
        self._state, self._done, self._total = state, done, total

    def __str__(self) -> str:
        now_s = self._clock()
        parts = [self._state] if self._state else []
        if self._total:
            parts.append(f"{100 * min(self._done, self._total) // self._total} %")
            parts.append(f"{self._amount(self._done)} of {self._amount(self._total)}{self._suffix}")
            began_s, before = self._first or (now_s, 0)
            if now_s > began_s and self._done > before:
                rate = (self._done - before) / (now_s - began_s)
                parts.append(f"{self._amount(round(rate))}{self._suffix}/s")
                left_s = (max(self._total - self._done, 0)) / rate
                parts.append(f"{duration_text(left_s)} left")
        else:
            parts.append(duration_text(now_s - self._began_s))
        return printable(f"{self._activity}: {', '.join(parts)}")

    @property
    def _suffix(self) -> str:
        return "" if self._unit == _BYTES else f" {self._unit}"

    def _amount(self, number: int) -> str:
        return size_text(number) if self._unit == _BYTES else f"{number:,}"


class ShowProgress:
    """Shows the progress of an activity; see :func:`progress`. A call sets what :meth:`ProgressText.show` takes."""

    def __init__(self, text: ProgressText) -> None:
        self._text = text
        self._shown = ExitStack()

    def __call__(self, state: str, done: int = 0, total: int = 0) -> None:
        """Set the state and the figures."""
        self._text.show(state, done, total)

    def end(self) -> None:
        """Show nothing more: other output shows the progress from now on."""
        self._shown.close()

    def begin(self) -> None:
        """Show the progress, in the form that standard error can take."""
        if os.environ.get("AFTERGLOW_PROGRESS", "").lower() == "off":
            return
        self._shown.enter_context(_live_line(self._text) if sys.stderr.isatty() else _plain_lines(self._text))


@contextmanager
def progress(activity: str, unit: str = _BYTES) -> Iterator[ShowProgress]:
    """Show the progress of an activity on stderr until the context is left.

    On a terminal it is one line that changes; otherwise a plain line once the activity has taken two seconds, and every
    ten seconds from then on. ``AFTERGLOW_PROGRESS=off`` shows nothing.

    Args:
        activity: Text before the figures.
        unit: Unit of the figures: ``bytes``, or a plural such as ``objects``.
    """
    show = ShowProgress(ProgressText(activity, unit))
    show.begin()
    try:
        yield show
    finally:
        show.end()


@contextmanager
def _live_line(text: ProgressText) -> Iterator[None]:
    from rich.console import Console  # noqa: PLC0415 - rich is slow to import, and machines do not need it
    from rich.live import Live  # noqa: PLC0415
    from rich.spinner import Spinner  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    spinner = Spinner("dots")

    def draw() -> Spinner:
        spinner.update(text=Text(str(text)))
        return spinner

    console = Console(stderr=True, highlight=False)
    with Live(console=console, transient=True, get_renderable=draw, refresh_per_second=4):
        yield


@contextmanager
def _plain_lines(text: ProgressText) -> Iterator[None]:
    ended = threading.Event()

    def write() -> None:
        wait_s = _FIRST_LINE_S
        while not ended.wait(wait_s):
            sys.stderr.write(f"afterglow: {text}\n")
            sys.stderr.flush()
            wait_s = _LINES_S

    thread = threading.Thread(target=write, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def duration_text(seconds: float) -> str:
    """A duration as people read it: ``8 s``, ``2 min 5 s``, ``3 h 20 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size_text(size_bytes: int) -> str:
    """A number of bytes with a binary unit."""
    amount = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:,.0f} {unit}" if unit == "bytes" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TiB"


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
