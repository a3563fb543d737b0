"""What a worker's process keeps from one task to the next: opened stores, with their connections."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from afterglow.storage.address import open_store

if TYPE_CHECKING:
    from afterglow.storage.store import ObjectStore

_MOST_STORES: Final = 8
"""A process works for few tiers at a time; a store is some connections and threads of an SDK."""

_stores: OrderedDict[tuple[str, tuple[tuple[str, str], ...]], ObjectStore] = OrderedDict()
_lock = threading.Lock()


def cached_store(url: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    """A store, the same one for the same address and options while few others are asked for.

    Raises:
        ConfigError: The address or an option is wrong.
        MissingDependency: The store's SDK is not installed.
    """
    with _lock:
        known = _stores.pop((url, options), None)
        store = known or open_store(url, **dict(options))
        _stores[url, options] = store
        while len(_stores) > _MOST_STORES:
            _stores.popitem(last=False)
        return store
