"""Deletion of a topic, so that a crash at any step ends with no topic.

1. Commit the intent: the topic is marked, and all its ledgers leave the list for the trash. *Crash: whoever opens the
   topic, and every start, goes on from here; nobody reads or writes it any more.*
2. Delete the hot copies. *Crash: again from here.*
3. Delete the cursors. *Crash: again from here; those that are gone are gone.*
4. Delete the topic's node. *Crash: done.*
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.errors import HotLogError
from afterglow.ledger.cursor_store import CursorStore
from afterglow.ledger.ledger_list import drop_ledgers
from afterglow.ledger.properties import DELETING, get_trash, set_text
from afterglow.ledger.trimming import empty_trash

if TYPE_CHECKING:
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.environment import Environment
    from afterglow.ledger.update import TopicMetadata


def mark_deleted(info: ManagedLedgerInfo) -> None:
    """The edit of step 1."""
    set_text(info, DELETING, "true")
    drop_ledgers(info, {ledger.ledgerId for ledger in info.ledgerInfo})


def finish_deletion(environment: Environment, metadata: TopicMetadata) -> None:
    """Steps 2 to 4, for a topic that we own and whose intent is committed.

    Raises:
        HotLogError: A hot copy cannot be deleted now.
        MetadataError: The store failed. Either way the rest is done by the next attempt.
    """
    left = get_trash(empty_trash(environment, metadata).info)
    if left:
        raise HotLogError(f"{metadata.path} is deleted later: the hot log still holds its ledgers {left}")
    for name in environment.metadata.children(metadata.path):
        CursorStore(f"{metadata.path}/{name}", environment, metadata).delete()
    metadata.remove()
