"""The broker: a server of Pulsar's binary protocol. It asks managed ledgers for entries and knows nothing of tiers.

Entry point: :class:`~afterglow.broker.service.BrokerService`.
"""
