"""States of one kind in the hot log, by key, with the newest durable ones in memory."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from afterglow.errors import HotLogError

if TYPE_CHECKING:
    from afterglow.hot.log import Completion, KeyedState


class KeyedStates:
    """States of one kind. Thread-safe.

    Args:
        log: Stores the states; those of other kinds are ignored.
        kind: Distinguishes their keys in the log.
    """

    def __init__(self, log: KeyedState, kind: str) -> None:
        self._log = log
        self._prefix = f"{kind}:".encode()
        self._lock = threading.Lock()
        self._states = {key: value for key, value in log.state().items() if key.startswith(self._prefix)}

    def get(self, name: str) -> bytes | None:
        """The newest durable state; None if it is missing."""
        with self._lock:
            return self._states.get(self._key(name))

    def put(self, name: str, state: bytes | None, done: Completion) -> None:
        """Replace a state, or remove it (None); ``done`` is called once that is durable or has failed."""
        key = self._key(name)
        try:
            self._log.put_state(key, state, partial(self._completed, key, state, done))
        except HotLogError as error:
            done(error)

    def names(self) -> tuple[str, ...]:
        """Names of all states."""
        with self._lock:
            return tuple(sorted(key.removeprefix(self._prefix).decode() for key in self._states))

    def _key(self, name: str) -> bytes:
        return self._prefix + name.encode()

    def _completed(self, key: bytes, state: bytes | None, done: Completion, error: HotLogError | None) -> None:
        if error is None:
            with self._lock:
                if state is None:
                    self._states.pop(key, None)
                else:
                    self._states[key] = state
        done(error)
