"""A server of Pulsar's binary protocol. It asks the ledger room for entries and knows nothing of tiers."""
