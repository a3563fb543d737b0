"""Raw entries of a Pulsar broker, ours or any other, over the binary protocol."""

from __future__ import annotations

from afterglow.hot.pulsar.address import PulsarAddress
from afterglow.hot.pulsar.ledgers import RemoteLedger, RemoteLedgers
from afterglow.hot.pulsar.lookup import partitions
from afterglow.hot.pulsar.reader import RawReader, ReadStatistics
from afterglow.hot.pulsar.runs import RawRun

__all__ = [
    "PulsarAddress",
    "RawReader",
    "RawRun",
    "ReadStatistics",
    "RemoteLedger",
    "RemoteLedgers",
    "partitions",
]
