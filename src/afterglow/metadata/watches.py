"""Watches, and the thread that runs their callbacks.

After :meth:`Notifier.changed` each watch of a path is called at least once. Callbacks run one at a time; one that
raises is logged, and the others still run. Several changes of a path before its callback runs are coalesced.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from afterglow.errors import MetadataError

if TYPE_CHECKING:
    from collections.abc import Iterable

_log = logging.getLogger(__name__)

WatchCallback = Callable[[str], None]
"""Receives the watched path, not the change: the callback reads what it needs."""

# Fixed interval: a watch that cannot be set is retried until it succeeds or the notifier is closed.
_RETRY_S: Final = 0.5


class Watch:
    """One registered callback."""

    __slots__ = ("_callback", "_notifier", "path")

    def __init__(self, notifier: Notifier, path: str, callback: WatchCallback) -> None:
        self.path = path
        self._notifier = notifier
        self._callback = callback

    def cancel(self) -> None:
        """End the watch. No call starts after this returns; a running one may still finish."""
        self._notifier.remove(self)

    def fire(self) -> None:
        """Run the callback; for the notifier."""
        try:
            self._callback(self.path)
        except Exception:  # noqa: BLE001  a failing callback must not stop the other watches
            _log.exception("the watch callback of %s failed", self.path)


class Notifier:
    """The watches of one store, and the one thread that runs them; it starts with the first watch.

    Args:
        name: Name of the thread.
        prepare: Called with the path, on that thread, before its callbacks: a store sets its one-time watch again, so
            that later changes notify again. After a ``MetadataError`` from it the path is retried later.
    """

    def __init__(self, name: str, prepare: Callable[[str], None] | None = None) -> None:
        self._name = name
        self._prepare = prepare
        self._state = threading.Condition()
        self._watches: dict[str, list[Watch]] = {}
        self._due: dict[str, None] = {}
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, path: str, callback: WatchCallback) -> Watch:
        """Register a callback for changes from now on."""
        watch = Watch(self, path, callback)
        with self._state:
            self._watches.setdefault(path, []).append(watch)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        return watch

    def remove(self, watch: Watch) -> None:
        """Remove a watch; an unknown one is ignored."""
        with self._state:
            remaining = [known for known in self._watches.get(watch.path, ()) if known is not watch]
            if remaining:
                self._watches[watch.path] = remaining
            else:
                self._watches.pop(watch.path, None)

    def paths(self) -> tuple[str, ...]:
        """Return the paths that have a watch."""
        with self._state:
            return tuple(self._watches)

    def changed(self, paths: Iterable[str]) -> None:
        """Make the callbacks of those paths due; paths without a watch are ignored."""
        with self._state:
            self._due.update((path, None) for path in paths if path in self._watches)
            self._state.notify()

    def close(self) -> None:
        """End all watches and wait for a running callback, unless it is the caller."""
        with self._state:
            self._closed = True
            self._watches.clear()
            self._due.clear()
            self._state.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while (path := self._next()) is not None:
            if self._prepare is not None:
                try:
                    self._prepare(path)
                except MetadataError as error:
                    _log.debug("the watch of %s could not be set and is retried: %s", path, error)
                    self._put_off(path)
                    continue
            with self._state:
                watches = tuple(self._watches.get(path, ()))
            for watch in watches:
                if self._is_known(watch):
                    watch.fire()

    def _next(self) -> str | None:
        with self._state:
            self._state.wait_for(lambda: self._due or self._closed)
            if self._closed:
                return None
            path = next(iter(self._due))
            del self._due[path]
            return path

    def _put_off(self, path: str) -> None:
        with self._state:
            self._state.wait_for(lambda: self._closed, timeout=_RETRY_S)
            if path in self._watches:
                self._due[path] = None

    def _is_known(self, watch: Watch) -> bool:
        with self._state:
            return watch in self._watches.get(watch.path, ())
