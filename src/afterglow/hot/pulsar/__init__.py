"""Raw entries of a Pulsar broker, ours or Apache Pulsar's, over the binary protocol.

Entry points: :class:`RawReader` reads ranges of a topic, :class:`RemoteLedgers` presents them as ledgers.
:class:`SubscriptionHolds` keeps a cluster from trimming them before.
"""

from __future__ import annotations

from afterglow.hot.pulsar.address import ClusterBrokers, PulsarAddress
from afterglow.hot.pulsar.hold_state import HoldState, LastMessage, SkippedRange
from afterglow.hot.pulsar.lookup import partitions
from afterglow.hot.pulsar.raw_entries import RawEntries
from afterglow.hot.pulsar.raw_reader import RawReader, ReadStatistics
from afterglow.hot.pulsar.remote_ledgers import RemoteLedger, RemoteLedgers
from afterglow.hot.pulsar.subscription_hold import DEFAULT_SUBSCRIPTION, SubscriptionHolds

__all__ = [
    "DEFAULT_SUBSCRIPTION",
    "ClusterBrokers",
    "HoldState",
    "LastMessage",
    "PulsarAddress",
    "RawEntries",
    "RawReader",
    "ReadStatistics",
    "RemoteLedger",
    "RemoteLedgers",
    "SkippedRange",
    "SubscriptionHolds",
    "partitions",
]
