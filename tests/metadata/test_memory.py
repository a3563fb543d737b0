from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.metadata import MetadataStoreContract

from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.store import MUST_NOT_EXIST

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.metadata.store import MetadataStore


class TestMemoryContract(MetadataStoreContract):
    @pytest.fixture
    def reopen(self, request: pytest.FixtureRequest) -> Callable[[], MetadataStore]:
        return lambda: MemoryMetadataStore(request.node.nodeid)


def test_stores_without_a_name_share_nothing() -> None:
    first, second = MemoryMetadataStore(), MemoryMetadataStore()
    first.put("/node", b"", MUST_NOT_EXIST)
    assert second.get("/node") is None


def test_nodes_are_stamped_by_the_given_clock() -> None:
    times = iter([1_000, 2_000])
    store = MemoryMetadataStore(now_ms=lambda: next(times))
    store.put("/node", b"", MUST_NOT_EXIST)
    store.put("/node", b"", 0)
    node = store.get("/node")
    assert node is not None
    assert (node.created_ms, node.modified_ms) == (1_000, 2_000)
