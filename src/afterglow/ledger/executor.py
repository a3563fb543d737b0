"""Where work runs that an append or an acknowledgement must not wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Executor(Protocol):
    """Runs tasks soon, on threads of its own. A ``concurrent.futures.Executor`` is one."""

    def submit(self, task: Callable[[], None], /) -> object:
        """Run ``task`` once, later; it handles its own errors."""
        ...
