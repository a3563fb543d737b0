"""A process's session with the metadata store, which may be lost and return."""

from __future__ import annotations

from contextlib import suppress
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING

from afterglow.errors import CommitUnknown, MetadataError, MetadataUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.sim.process import Process
    from tests.support.sim.world import SimWorld

    from afterglow.metadata.store import Versioned
    from afterglow.metadata.watches import Watch, WatchCallback


class _State(Enum):
    OPEN = auto()
    BREAKING = auto()
    """The next change is sent, and its answer never comes."""
    LOST = auto()
    """There is no connection: nothing is sent."""


class Session:
    """The metadata store as one process sees it, with the errors of :mod:`afterglow.metadata.zookeeper`.

    A lost session ends no ownership by itself: a topic is owned by the process that raised its epoch last, and a
    process goes on in the belief that it is the owner until it meets a newer epoch, or in a guarded world until its
    next change.

    A change whose answer is lost may be applied at once, never, or later, but not after the first request of the next
    session: the store refuses then what is left of the one before.
    """

    def __init__(self, world: SimWorld, process: Process) -> None:
        self._world = world
        self._process = process
        self._state = _State.OPEN
        self._late: Callable[[], object] | None = None

    @property
    def is_open(self) -> bool:
        """Whether requests are answered."""
        return self._state is _State.OPEN

    def lose(self) -> None:
        """Lose the connection, with the change that is sent next."""
        self._state = _State.BREAKING

    def restore(self) -> None:
        """Connect again."""
        self._state = _State.OPEN

    def settle(self) -> None:
        """Decide what becomes of a change that may still be under way."""
        late, self._late = self._late, None
        if late is not None and self._world.rng.random() < 0.5:
            with suppress(MetadataError):  # another was faster
                late()

    @property
    def max_value_bytes(self) -> int:
        """The longest value."""
        return self._world.metadata_front.max_value_bytes

    def get(self, path: str) -> Versioned | None:
        """Return the node."""
        self._world.pause(self._process, "read", path)
        self._check(path)
        return self._world.metadata_front.get(path)

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names below the node."""
        self._world.pause(self._process, "list", path)
        self._check(path)
        return self._world.metadata_front.children(path)

    def put(self, path: str, value: bytes, expected_version: int, *, guard: str | None = None) -> int:
        """Change the node."""
        world, process = self._world, self._process
        dies = world.effect(process, "put", path, value)
        world.disturb(path)
        if self._state is not _State.OPEN:
            self._break(path, partial(world.watched_metadata.put, path, value, expected_version, guard=guard))
        self._check(path)
        version = world.metadata_front.put(path, value, expected_version, guard=guard)
        if dies:
            world.end_after(process, "put", path)
        return version

    def delete(self, path: str, expected_version: int, *, guard: str | None = None) -> None:
        """Remove the node."""
        world, process = self._world, self._process
        dies = world.effect(process, "remove", path)
        if self._state is not _State.OPEN:
            self._break(path, partial(world.watched_metadata.delete, path, expected_version, guard=guard))
        self._check(path)
        world.metadata_front.delete(path, expected_version, guard=guard)
        if dies:
            world.end_after(process, "remove", path)

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        """Watch the node."""
        return self._world.metadata_front.watch(path, callback)

    def close(self) -> None:
        """Nothing is held."""

    def _check(self, path: str) -> None:
        if self._state is not _State.OPEN:
            raise MetadataUnavailable(f"{path}: the session of {self._process} is lost")
        if self._late is not None:
            self.settle()

    def _break(self, path: str, change: Callable[[], object]) -> None:
        """Send a change whose answer is never received.

        Raises:
            CommitUnknown: It was sent.
            MetadataUnavailable: It was not.
        """
        if self._state is _State.LOST:
            raise MetadataUnavailable(f"{path}: the session of {self._process} is lost")
        self._state = _State.LOST
        outcome = self._world.rng.choice(("applied", "lost", "late"))
        if outcome == "applied":
            with suppress(MetadataError):
                change()
        elif outcome == "late" and not path.startswith("/managed-ledgers/"):
            # A list is changed by compare-and-set, so that what comes late comes at once or not at all.
            self._late = change
        raise CommitUnknown(f"{path}: the session of {self._process} was lost with the change ({outcome})")
