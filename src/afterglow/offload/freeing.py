"""Letting hot copies go, once the copy in the tier has been looked at.

1. The lag since the offload has passed; see :func:`afterglow.offload.planner.freeable`.
2. Check the object: it is there, as long as its index says, and the index parses and ends with the ledger's last entry.
   A hot copy is never deleted before that.
3. Commit that the hot copy is gone, then delete it; see :meth:`afterglow.ledger.managed_ledger.ManagedLedger.free`,
   which also says what a crash leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.errors import CorruptIndex, IndexMissing, NotSupported, ObjectMissing, WrongLength
from afterglow.format.checks import index_problems
from afterglow.format.index import decode_index
from afterglow.format.objects import INDEX_SUFFIX, ObjectKey, check_version
from afterglow.format.offload_context import ledger_uuid
from afterglow.offload.drivers import is_block_driver, offloader_named
from afterglow.offload.offloader import OffloadedLedger
from afterglow.read.places import place_of_driver

if TYPE_CHECKING:
    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.read.places import Tiers


def check_copy(row: ManagedLedgerInfo.LedgerInfo, policy: BrokerConfig, tiers: Tiers) -> None:
    """Look at a ledger's copy in the tier. Waits for the tier.

    Raises:
        NotSupported: The ledger is in segments.
        AfterglowError: The copy is missing or damaged, or cannot be looked at now.
    """
    uuid = ledger_uuid(row)
    if uuid is None:
        raise NotSupported(f"ledger {row.ledgerId} is in segments, which are not checked here")
    driver = row.offloadContext.driverMetadata
    if not is_block_driver(driver.name):
        given = {pair.key: pair.value for pair in driver.properties}
        copy = offloader_named(driver.name, policy, tiers).read_offloaded(row.ledgerId, OffloadedLedger(uuid, given))
        copy.read(row.entries - 1, row.entries - 1, 1)
        return
    place = place_of_driver(driver)
    store = tiers.store(place, policy)
    key = str(ObjectKey(uuid, row.ledgerId))
    what = f"object {key} in {place}"
    try:
        head = store.head(key)
    except ObjectMissing as error:
        raise ObjectMissing(f"{what} is missing: {error}") from error
    check_version(key, head.metadata)
    try:
        index = decode_index(store.get(key + INDEX_SUFFIX))
    except ObjectMissing as error:
        raise IndexMissing(f"{what} has no index: {error}") from error
    except CorruptIndex as error:
        raise CorruptIndex(f"{what} has a damaged index: {error}") from error
    for problem in index_problems(index, ledger_id=row.ledgerId):
        raise CorruptIndex(f"{what} has a damaged index: {problem}")
    if head.size_bytes != index.data_bytes:
        raise WrongLength(f"{what} has {head.size_bytes} bytes, and its index says {index.data_bytes}")
    if (last := index.groups[0].last_entry_id) != row.entries - 1:
        raise WrongLength(f"{what} ends with entry {last}, and its ledger with entry {row.entries - 1}")
