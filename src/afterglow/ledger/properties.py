"""What a topic's ``ManagedLedgerInfo`` carries beside its ledgers: Pulsar's ``index`` and epoch, and keys of our own.

Pulsar and its tools keep properties that they do not know, so ours survive them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from afterglow.errors import CorruptMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

INDEX: Final = "index"
"""Index of the last message that was counted; Pulsar's own key (PIP-70)."""

TOPIC_EPOCH: Final = "pulsar.topic.epoch"
"""Epoch of the newest producer that had the topic for itself; Pulsar's own key (PIP-68)."""

BROKER_TIME: Final = "afterglow.broker-time-ms"
"""Newest broker time that was given, epoch milliseconds. On a ledger: that of its last entry."""

OWNER_EPOCH: Final = "afterglow.owner-epoch"
"""Raised by whoever opens the topic; a writer with another epoch is fenced."""

TRASH: Final = "afterglow.trash"
"""Ids of ledgers that have left the list and whose hot copies are still to be deleted."""

DELETING: Final = "afterglow.deleting"
"""Present: the topic is being deleted, and whoever opens it goes on with that."""


def get_text(info: ManagedLedgerInfo | ManagedLedgerInfo.LedgerInfo, key: str) -> str | None:
    """The value of a property; None where there is none."""
    return next((pair.value for pair in info.properties if pair.key == key), None)


def set_text(info: ManagedLedgerInfo | ManagedLedgerInfo.LedgerInfo, key: str, value: str | None) -> None:
    """Set a property, or remove it."""
    for at in range(len(info.properties) - 1, -1, -1):
        if info.properties[at].key == key:
            if value is not None:
                info.properties[at].value = value
                return
            del info.properties[at]
    if value is not None:
        info.properties.add(key=key, value=value)


def get_number(info: ManagedLedgerInfo | ManagedLedgerInfo.LedgerInfo, key: str) -> int | None:
    """The value of a numeric property; None where there is none.

    Raises:
        CorruptMetadata: The value is no number.
    """
    text = get_text(info, key)
    try:
        return None if text is None else int(text)
    except ValueError as error:
        raise CorruptMetadata(f"the property {key} of a managed ledger is {text!r}, not a number") from error


def raise_number(info: ManagedLedgerInfo | ManagedLedgerInfo.LedgerInfo, key: str, value: int | None) -> None:
    """Set a numeric property unless it is as high already; None changes nothing."""
    if value is None:
        return
    known = get_number(info, key)
    if known is None or value > known:
        set_text(info, key, str(value))


def get_trash(info: ManagedLedgerInfo) -> tuple[int, ...]:
    """Ids of ledgers whose hot copies are to be deleted, ascending.

    Raises:
        CorruptMetadata: The value is no list of numbers.
    """
    text = get_text(info, TRASH)
    try:
        return tuple(sorted(int(word) for word in text.split(","))) if text else ()
    except ValueError as error:
        raise CorruptMetadata(f"the property {TRASH} of a managed ledger is {text!r}, not a list of ids") from error


def set_trash(info: ManagedLedgerInfo, ledger_ids: Iterable[int]) -> None:
    """Replace the list of ledgers whose hot copies are to be deleted."""
    text = ",".join(str(ledger_id) for ledger_id in sorted(set(ledger_ids)))
    set_text(info, TRASH, text or None)
