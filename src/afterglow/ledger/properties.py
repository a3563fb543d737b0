"""Properties of a topic's ``ManagedLedgerInfo``: Pulsar's ``index`` and epoch, and keys of our own.

Pulsar and its tools keep properties that they do not know, so ours survive them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from afterglow.errors import CorruptMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

INDEX: Final = "index"
"""Index of the last message; Pulsar's own key (PIP-70)."""

TOPIC_EPOCH: Final = "pulsar.topic.epoch"
"""Epoch of the newest exclusive producer; Pulsar's own key (PIP-68)."""

BROKER_TIME: Final = "afterglow.broker-time-ms"
"""Newest broker time of the topic, epoch milliseconds. On a ledger: that of its last entry."""

OWNER_EPOCH: Final = "afterglow.owner-epoch"
"""Raised each time the topic is opened; a writer with another epoch is fenced."""

PENDING_DELETES: Final = "afterglow.trash"
"""Ids of ledgers whose hot copies are still to be deleted. The stored key keeps its first name."""

DELETING: Final = "afterglow.deleting"
"""Present while the topic is being deleted; opening it continues the deletion."""


def get_text(info: ManagedLedgerInfo | ManagedLedgerInfo.LedgerInfo, key: str) -> str | None:
    """The value of a property; None if it is missing."""
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
    """The value of a numeric property; None if it is missing.

    Raises:
        CorruptMetadata: The value is not a number.
    """
    text = get_text(info, key)
    try:
        return None if text is None else int(text)
    except ValueError as error:
        raise CorruptMetadata(f"property {key} of a managed ledger is not a number: {text!r}") from error


def raise_number(info: ManagedLedgerInfo | ManagedLedgerInfo.LedgerInfo, key: str, value: int | None) -> None:
    """Set a numeric property if that raises it; None changes nothing."""
    if value is None:
        return
    known = get_number(info, key)
    if known is None or value > known:
        set_text(info, key, str(value))


def get_pending_deletes(info: ManagedLedgerInfo) -> tuple[int, ...]:
    """Ids of ledgers whose hot copies are to be deleted, ascending.

    Raises:
        CorruptMetadata: The value is not a list of numbers.
    """
    text = get_text(info, PENDING_DELETES)
    try:
        return tuple(sorted(int(word) for word in text.split(","))) if text else ()
    except ValueError as error:
        raise CorruptMetadata(f"property {PENDING_DELETES} is not a list of ledger ids: {text!r}") from error


def set_pending_deletes(info: ManagedLedgerInfo, ledger_ids: Iterable[int]) -> None:
    """Replace the ids of ledgers whose hot copies are to be deleted."""
    text = ",".join(str(ledger_id) for ledger_id in sorted(set(ledger_ids)))
    set_text(info, PENDING_DELETES, text or None)
