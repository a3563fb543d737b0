"""Hot copies of ledgers that have left a topic's list.

The edit that takes a ledger off the list writes its id down in the same commit, so that a crash forgets none:

1. Take the ledgers off the list, and note them as trash. *Crash: they are gone for readers; opening the topic goes on.*
2. Delete their hot copies. *Crash: deleting again does no harm.*
3. Strike them off the trash. *Crash: done.*
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from afterglow.errors import HotLogError
from afterglow.ledger.ledger_list import forget_trash
from afterglow.ledger.properties import get_trash

if TYPE_CHECKING:
    from afterglow.ledger.environment import Environment
    from afterglow.ledger.update import Snapshot, TopicMetadata

_log = logging.getLogger(__name__)


def empty_trash(environment: Environment, metadata: TopicMetadata) -> Snapshot:
    """Steps 2 and 3, for every ledger that is noted. What the hot log cannot delete now stays noted.

    Raises:
        MetadataError: The trash was not struck off; it is deleted again some time.
    """
    gone: list[int] = []
    for ledger_id in get_trash(metadata.snapshot.info):
        environment.cache.drop_ledger(ledger_id)
        try:
            environment.hot.delete(ledger_id)
        except HotLogError as error:
            _log.warning("the hot copy of ledger %d is deleted later: %s", ledger_id, error)
        else:
            gone.append(ledger_id)
    return metadata.update(partial(forget_trash, ledger_ids=gone)) if gone else metadata.snapshot
