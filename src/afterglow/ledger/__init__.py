"""Managed ledgers: a topic as a list of ledgers that is appended to, read, acknowledged, and trimmed.

``store.LedgerStore`` opens topics, ``managed_ledger.ManagedLedger`` is one. Everything here is synchronous and
thread-safe; time and background work come from a clock and an executor that are given, so that the same code runs
behind an event loop and in a simulator. What entries hold beyond the broker's own envelope is not known here, nor where
they go when the hot log lets go of them.
"""
