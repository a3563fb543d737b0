"""The topics of which this process has something in mind."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from threading import RLock

    from afterglow.offload.topic import TopicOffload


class Topics:
    """Topics by their managed-ledger names. Thread-safe.

    Args:
        lock: Guards them.
        make: Makes one that has nothing under way.
    """

    def __init__(self, lock: RLock, make: Callable[[str], TopicOffload]) -> None:
        self._lock = lock
        self._make = make
        self._known: dict[str, TopicOffload] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, name: str) -> TopicOffload:
        """A topic to have something in mind for."""
        with self._lock:
            found = self._known.get(name)
            if found is None:
                found = self._known[name] = self._make(name)
            return found

    def peek(self, name: str) -> TopicOffload:
        """A topic to ask something of; nothing is kept for one that was quiet so far."""
        with self._lock:
            return self._known.get(name) or self._make(name)

    def known(self, name: str) -> TopicOffload | None:
        """A topic, if there is something in mind for it."""
        with self._lock:
            return self._known.get(name)

    def all(self) -> list[TopicOffload]:
        """Topics of which this process has something in mind."""
        with self._lock:
            return list(self._known.values())

    def busy(self) -> list[TopicOffload]:
        """Topics with something under way."""
        with self._lock:
            return [topic for topic in self._known.values() if len(topic.window) or topic.stream.busy]

    def forget_others(self, names: Collection[str]) -> list[str]:
        """Drop topics that are gone, given those that are not, and topics with nothing to tell; returns all of them."""
        with self._lock:
            going = [
                name for name, topic in self._known.items() if topic.forgettable or (name not in names and topic.quiet)
            ]
            for name in going:
                del self._known[name]
            return going
