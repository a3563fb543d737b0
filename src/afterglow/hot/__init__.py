"""Hot logs: ledgers in which entries are durable before, and while, they are offloaded.

Entry points: :class:`~afterglow.hot.log.HotLog` is the protocol, :class:`~afterglow.hot.local.log.LocalLog` keeps
ledgers on the local disk, :mod:`~afterglow.hot.pulsar` reads those of a broker.
"""
