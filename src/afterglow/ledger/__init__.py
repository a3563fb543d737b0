"""Managed ledgers: a topic as a list of ledgers that is appended to, read, acknowledged, and trimmed.

Entry points: :class:`~afterglow.ledger.store.LedgerStore` opens topics,
:class:`~afterglow.ledger.managed_ledger.ManagedLedger` is an open topic. Everything here is synchronous and
thread-safe. Clock and executor are parameters, so that the same code runs behind an event loop and in the simulator.
The package parses only the broker entry metadata of entries, and knows tiers only through
:mod:`~afterglow.ledger.entry_source` (reads) and :mod:`~afterglow.ledger.offload_hooks` (notifications).
"""
