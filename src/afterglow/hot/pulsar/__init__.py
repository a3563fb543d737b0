"""Raw entries of a Pulsar broker, ours or Apache Pulsar's, over the binary protocol.

Entry points: :class:`RawReader` reads ranges of a topic, :class:`RemoteLedgers` presents them as ledgers.
"""

from __future__ import annotations

from afterglow.hot.pulsar.address import PulsarAddress
from afterglow.hot.pulsar.lookup import partitions
from afterglow.hot.pulsar.raw_entries import RawEntries
from afterglow.hot.pulsar.raw_reader import RawReader, ReadStatistics
from afterglow.hot.pulsar.remote_ledgers import RemoteLedger, RemoteLedgers

__all__ = [
    "PulsarAddress",
    "RawEntries",
    "RawReader",
    "ReadStatistics",
    "RemoteLedger",
    "RemoteLedgers",
    "partitions",
]
