"""One Spark session for all tests of a process: a JVM takes 9 seconds to start.

Code under test sees it as a session that other code has started: it uses it whatever settings it asks for, and never
stops it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from afterglow.spark import session as sessions
from afterglow.spark.jvm import is_jvm_alive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SharedSpark:
    """Starts the session when a test first asks for it, and again after :meth:`end`."""

    def __init__(self) -> None:
        self._shared: sessions._SharedSession | None = None
        self._stack = ExitStack()

    def session(self) -> SparkSession:
        """The running session: two workers, four attempts per task, nothing logged."""
        if self._shared is not None and not is_jvm_alive():
            self.end()
        if self._shared is None:
            self._stack.enter_context(sessions.local_session("local[2]", "tests", **sessions.QUIET))
            self._shared, sessions._shared = sessions._shared, None
        assert self._shared is not None
        return self._shared.session

    def end(self) -> None:
        """End the session and its JVM, for a test that needs a JVM of its own in this process."""
        if self._shared is not None:
            sessions._end(self._shared)
            self._shared = None
            self._stack.close()
