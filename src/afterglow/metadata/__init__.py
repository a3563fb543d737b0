"""Versioned metadata: stores behind one protocol, names, and paths.

Entry points: :class:`~afterglow.metadata.store.MetadataStore` is the protocol,
:func:`~afterglow.metadata.address.open_metadata` opens a memory, SQLite or ZooKeeper store, ``names`` and ``paths``
define names of topics and paths of nodes. ``pulsar_cluster`` and ``admin_client`` read the metadata of a Pulsar cluster
from its ZooKeeper and from its admin API. Values are opaque here.
"""
