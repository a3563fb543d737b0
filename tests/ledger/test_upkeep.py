from __future__ import annotations

import pytest
from tests.support.faults import Fault, FaultRule, FaultyMetadataStore
from tests.support.ledgers import TOPIC, World

from afterglow.errors import MetadataUnavailable
from afterglow.metadata.memory import MemoryMetadataStore


def test_a_ledger_that_a_failed_deletion_ended_is_put_on_record_though_no_entry_follows() -> None:
    first_puts = 2  # the topic is created, and its first ledger
    rule = FaultRule(Fault.ERROR_BEFORE, frozenset({"put"}), skip=first_puts)
    world = World(metadata=FaultyMetadataStore(MemoryMetadataStore(), [rule]))
    ledger = world.open()
    (position,) = world.append(ledger, b"a")
    with pytest.raises(MetadataUnavailable):
        world.store.delete(TOPIC)
    assert [ledger_info.HasField("entries") for ledger_info in ledger.info.ledgerInfo] == [False]
    world.store.tick()
    assert [(ledger_info.ledgerId, ledger_info.entries) for ledger_info in ledger.info.ledgerInfo] == [
        (position.ledger_id, 1)
    ]
