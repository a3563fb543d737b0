"""What a test wants to know of the topics of a server that runs in another process: from its files, and by asking."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Final

from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.format.proto.afterglow_pb2 import DeleteRecord
from afterglow.metadata.address import open_metadata
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths, managed_ledger_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.serving import Served

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

_TIMEOUT_S: Final = 300.0
"""A loaded machine takes long to start a Spark."""
_POLL_S: Final = 0.05


def eventually(holds: Callable[[], bool], what: Callable[[], object], timeout_s: float = _TIMEOUT_S) -> None:
    """Wait until something holds.

    Args:
        holds: Whether it does.
        what: Tells what there is instead.
        patience_s: Seconds to wait at most.

    Raises:
        AssertionError: It did not in time.
    """
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() >= deadline:
            raise AssertionError(what())
        time.sleep(_POLL_S)


def rows_of(home: Path, topic: str) -> list[ManagedLedgerInfo.LedgerInfo]:
    """The list of a topic's ledgers as the server's metadata has it."""
    with closing(open_metadata(f"sqlite:{home / 'metadata.db'}")) as metadata:
        found = metadata.get(managed_ledger_path(TopicName.parse(topic).managed_ledger_name))
        return [] if found is None else list(parse_managed_ledger(found.value).ledgerInfo)


def on_record(home: Path, topic: str) -> list[str]:
    """Uploads that are under way, and pending deletes of committed objects, of a topic.

    A pending delete of an object that was never committed is left out: it stays for ten minutes after its object is
    gone, in case that the store carries out a late request.
    """
    name = TopicName.parse(topic).managed_ledger_name
    paths = AfterglowPaths()
    with closing(open_metadata(f"sqlite:{home / 'metadata.db'}")) as metadata:
        uploads, deletes = (
            [f"{node}/{child}" for child in metadata.children(node)]
            for node in (paths.uploads(name), paths.deletes(name))
        )
        intents = {path: found for path in deletes if (found := metadata.get(path)) is not None}
    return uploads + [path for path, found in intents.items() if not DeleteRecord.FromString(found.value).unfinished]


def hot_ledgers(home: Path) -> set[int]:
    """Ledgers whose files are there."""
    return {int(path.stem) for path in (home / "hot/ledgers").glob("*.ledger")}


def wait_for_tier_alone(home: Path, topic: str) -> list[ManagedLedgerInfo.LedgerInfo]:
    """Wait until no entry of a topic's closed ledgers is hot any more; returns their rows."""

    def closed() -> list[ManagedLedgerInfo.LedgerInfo]:
        return [row for row in rows_of(home, topic) if row.entries]

    def gone() -> bool:
        rows = closed()
        deleted = all(row.offloadContext.bookkeeperDeleted for row in rows)
        return deleted and not hot_ledgers(home) & {row.ledgerId for row in rows}

    eventually(gone, lambda: (closed(), hot_ledgers(home)))
    return closed()


def offload_all(served: Served, topic: str) -> None:
    """Offload by REST what can be, and wait for it.

    Raises:
        AssertionError: It did not succeed.
    """
    name = TopicName.parse(topic)
    path = f"persistent/{name.namespace}/{name.local_name}"
    served.admin("PUT", f"{path}/offload", "latest")

    def status() -> dict[str, object]:
        found: dict[str, object] = served.admin("GET", f"{path}/offload")
        return found

    eventually(lambda: status()["status"] != "RUNNING", status)
    if (found := status())["status"] != "SUCCESS":
        raise AssertionError(found)
