"""Crashes between any two steps: run once to count the effects, then again with an end before each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from afterglow.storage.wrapper import StoreWrapper

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.metadata.store import MetadataStore, Versioned
    from afterglow.metadata.watches import Watch, WatchCallback
    from afterglow.storage.store import ObjectStore
    from afterglow.storage.wrapper import StoreRequest

T = TypeVar("T")

_CHANGES: Final = frozenset({"put", "delete", "create_upload", "upload_part", "complete_upload", "abort_upload"})


class Crashed(BaseException):
    """The process ends here. No handler of production code may catch it."""


class CrashPoint:
    """Counts effects, and ends the process before one of them.

    Args:
        at: How many effects happen before the end; None: no end.
    """

    def __init__(self, at: int | None = None) -> None:
        self._at = at
        self.effects: list[str] = []
        """Names of the effects so far."""

    def __call__(self, effect: str) -> None:
        """Count an effect that is about to happen.

        Raises:
            Crashed: It does not come to that.
        """
        if len(self.effects) == self._at:
            raise Crashed(f"before effect {self._at}, {effect}, after {self.effects}")
        self.effects.append(effect)


class CrashingMetadataStore:
    """A :class:`~afterglow.metadata.store.MetadataStore` whose changes a crash point counts.

    Args:
        inner: The store that does the work, and outlives the crash.
    """

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner
        self.before = CrashPoint()
        """Asked before every change."""

    @property
    def max_value_bytes(self) -> int:
        """The longest value that the inner store takes."""
        return self._inner.max_value_bytes

    def get(self, path: str) -> Versioned | None:
        """Return the node."""
        return self._inner.get(path)

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names below the node."""
        return self._inner.children(path)

    def put(self, path: str, value: bytes, expected_version: int, *, guard: str | None = None) -> int:
        """Change the node, unless the process ends before."""
        self.before(f"put {path}")
        return self._inner.put(path, value, expected_version, guard=guard)

    def delete(self, path: str, expected_version: int, *, guard: str | None = None) -> None:
        """Remove the node, unless the process ends before."""
        self.before(f"delete {path}")
        self._inner.delete(path, expected_version, guard=guard)

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        """Watch the inner store."""
        return self._inner.watch(path, callback)

    def close(self) -> None:
        """Close the inner store."""
        self._inner.close()


class CrashingStore(StoreWrapper):
    """An :class:`~afterglow.storage.store.ObjectStore` whose changes a crash point counts.

    Args:
        inner: The store that does the work, and outlives the crash.
        before: Asked before every change.
    """

    def __init__(self, inner: ObjectStore, before: Callable[[str], None]) -> None:
        super().__init__(inner)
        self._before = before

    def _call(self, request: StoreRequest, perform: Callable[[], T]) -> T:
        if request.operation in _CHANGES:
            self._before(f"{request.operation} {request.key}")
        return perform()
