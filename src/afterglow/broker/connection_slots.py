"""Limits on the number of connections of a service, in all and per client address.

A connection holds its slot from the moment that it is accepted, also while its TLS handshake is under way: a client
that never finishes the handshake counts like any other.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

from afterglow.broker.log_throttle import LogThrottle

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

log = logging.getLogger(__name__)


class ConnectionSlots:
    """Slots for the connections of one service, whichever of its ports they come to.

    Belongs to the event loop's thread.

    Args:
        total: Most connections in all; 0: no limit.
        per_address: Most connections from one address; 0: no limit.
        total_setting: Name of the setting that `total` comes from, for the log.
        per_address_setting: Name of the setting that `per_address` comes from.
        now_s: The clock, in seconds.
    """

    def __init__(
        self,
        total: int,
        per_address: int,
        total_setting: str,
        per_address_setting: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._per_address = per_address
        self._total_setting = total_setting
        self._per_address_setting = per_address_setting
        self._addresses: dict[object, str] = {}
        self._counts: Counter[str] = Counter()
        self._throttle = LogThrottle(now_s)

    def __len__(self) -> int:
        return len(self._addresses)

    def acquire(self, holder: object, transport: asyncio.BaseTransport) -> bool:
        """Take a slot for a connection.

        Args:
            holder: The protocol of the connection, which gives the slot back.
            transport: Knows the client's address.

        Returns:
            False where a limit is reached; the reason is logged.
        """
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        if self._total and len(self._addresses) >= self._total:
            self._report(self._total_setting, self._total, address)
            return False
        if self._per_address and self._counts[address] >= self._per_address:
            self._report(self._per_address_setting, self._per_address, address)
            return False
        self._addresses[holder] = address
        self._counts[address] += 1
        return True

    def release(self, holder: object) -> None:
        """Give a slot back; without effect for a connection that holds none."""
        address = self._addresses.pop(holder, None)
        if address is None:
            return
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def _report(self, setting: str, limit: int, address: str) -> None:
        if (more := self._throttle.admit(setting)) is None:
            return
        log.warning("connection from %s was refused: %s is %d%s", address, setting, limit, more)
