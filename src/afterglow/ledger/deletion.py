"""Deletion of a topic; after a crash at any step it is completed.

1. Commit the intent: the topic is marked as being deleted, and all its ledgers become pending deletes. *Crash: the next
   process that opens the topic, and every start, continues with step 2; the topic is neither read nor written.*
2. Delete the hot copies. *Crash: again from here.*
3. Delete the cursors. *Crash: again from here, with the remaining ones.*
4. Delete the topic's node. *Crash: done.*

The copies in tiers are deleted by :mod:`afterglow.offload.pending_deletes`; their intents come before step 1.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from afterglow.errors import HotLogError
from afterglow.events import log_event
from afterglow.ledger.cursor_store import CursorStore
from afterglow.ledger.ledger_list import drop_ledgers
from afterglow.ledger.properties import DELETING, get_pending_deletes, set_text
from afterglow.ledger.trimming import delete_hot_copies
from afterglow.metadata.paths import topic_label

if TYPE_CHECKING:
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.environment import Environment
    from afterglow.ledger.topic_metadata import TopicMetadata

_log = logging.getLogger(__name__)


def mark_deleted(info: ManagedLedgerInfo) -> None:
    """The edit of step 1."""
    set_text(info, DELETING, "true")
    drop_ledgers(info, {ledger.ledgerId for ledger in info.ledgerInfo})


def finish_deletion(environment: Environment, metadata: TopicMetadata) -> None:
    """Steps 2 to 4, for a topic that this process owns and whose intent is committed.

    Raises:
        HotLogError: A hot copy cannot be deleted now; the next attempt continues.
        MetadataError: The store failed; the next attempt continues.
    """
    pending = get_pending_deletes(delete_hot_copies(environment, metadata).info)
    if pending:
        raise HotLogError(f"{metadata.path} will be deleted later: the hot log still holds its ledgers {pending}")
    for name in environment.metadata.children(metadata.path):
        CursorStore(f"{metadata.path}/{name}", environment, metadata).delete()
    metadata.remove()
    log_event(_log, "topic deleted", topic=topic_label(metadata.path), reason="deleted on request, with its data")
