"""Durable ledgers on the local disk.

Entry points: :class:`LocalLog` writes a home, :func:`open_shared` reads its ledgers from other processes.
"""

from __future__ import annotations

from afterglow.hot.local.log import LocalLog
from afterglow.hot.local.shared_ledger import SharedLedger, open_shared, read_instance

__all__ = ["LocalLog", "SharedLedger", "open_shared", "read_instance"]
