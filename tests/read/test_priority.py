from __future__ import annotations

import pytest

from afterglow.config.choices import ReadPriority
from afterglow.read.copies import StorageTier
from afterglow.read.priority import copy_order

HOT, TIERED = StorageTier.HOT, StorageTier.TIERED


@pytest.mark.parametrize(
    ("priority", "has_hot", "has_tiered", "order"),
    [
        (ReadPriority.BOOKKEEPER_FIRST, True, True, (HOT, TIERED)),
        (ReadPriority.BOOKKEEPER_FIRST, True, False, (HOT,)),
        (ReadPriority.BOOKKEEPER_FIRST, False, True, (TIERED,)),
        (ReadPriority.BOOKKEEPER_FIRST, False, False, ()),
        (ReadPriority.TIERED_STORAGE_FIRST, True, True, (TIERED, HOT)),
        (ReadPriority.TIERED_STORAGE_FIRST, True, False, (HOT,)),
        (ReadPriority.TIERED_STORAGE_FIRST, False, True, (TIERED,)),
        (ReadPriority.TIERED_STORAGE_FIRST, False, False, ()),
    ],
)
def test_copies_that_exist_are_tried_in_the_order_of_the_priority(
    priority: ReadPriority, order: tuple[StorageTier, ...], *, has_hot: bool, has_tiered: bool
) -> None:
    assert copy_order(priority, has_hot=has_hot, has_tiered=has_tiered) == order
