"""The newest states of all cursors: read once from the log of states, then kept in step with what is put."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from afterglow.errors import HotLogError

if TYPE_CHECKING:
    from afterglow.hot.log import Completion, KeyedState

_PREFIX = b"cursor:"


class CursorStates:
    """States by the path of the cursor's metadata. Thread-safe.

    Args:
        log: Where they are durable; other keys than ours in it are left alone.
    """

    def __init__(self, log: KeyedState) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._states = {key: value for key, value in log.state().items() if key.startswith(_PREFIX)}

    def get(self, path: str) -> bytes | None:
        """The newest state of a cursor that was put and is durable; None where there is none."""
        with self._lock:
            return self._states.get(_key(path))

    def put(self, path: str, state: bytes | None, done: Completion) -> None:
        """Replace a cursor's state, or forget it (None); ``done`` is called once that is durable or has failed."""
        key = _key(path)
        try:
            self._log.put_state(key, state, partial(self._completed, key, state, done))
        except HotLogError as error:
            done(error)

    def paths(self) -> tuple[str, ...]:
        """Paths of all cursors that have a state."""
        with self._lock:
            return tuple(sorted(key.removeprefix(_PREFIX).decode() for key in self._states))

    def _completed(self, key: bytes, state: bytes | None, done: Completion, error: HotLogError | None) -> None:
        if error is None:
            with self._lock:
                if state is None:
                    self._states.pop(key, None)
                else:
                    self._states[key] = state
        done(error)


def _key(path: str) -> bytes:
    return _PREFIX + path.encode()
