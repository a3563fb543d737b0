"""A bar on stderr while a Spark job reads many bytes; nothing at all where nobody watches."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Bar(Protocol):
    """Shows how far things have come."""

    def __call__(self, done_bytes: int, due_bytes: int, count: int, /) -> None:
        """So many bytes of those that are due, and so many things with them."""
        ...


@contextmanager
def byte_bar(sentence: str, things: str) -> Iterator[Bar]:
    """A bar that moves, with its speed and the time that is left, and is gone at the end.

    Args:
        sentence: What is done.
        things: What is counted, as in "objects".
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
