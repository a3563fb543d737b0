"""Callbacks that want to know of something."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)


class Listeners:
    """A list of callbacks. Thread-safe; one that fails is logged and keeps the others from nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: tuple[Callable[[], None], ...] = ()

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` from now on; returns what ends that, and may be called twice."""
        entry = partial(callback)  # the same function may be added twice, and each ends by itself
        with self._lock:
            self._callbacks = (*self._callbacks, entry)
        return partial(self._remove, entry)

    def call(self) -> None:
        """Call every callback, in the order in which they were added."""
        for callback in self._callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001  it is another's code, and any may come
                _log.exception("a listener failed")

    def _remove(self, entry: Callable[[], None]) -> None:
        with self._lock:
            self._callbacks = tuple(callback for callback in self._callbacks if callback is not entry)
