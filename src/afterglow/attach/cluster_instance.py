"""Identity of the attached cluster: records of one cluster are never continued with the topics of another.

Two clusters may have the same name, such as ``standalone``, or one may have been set up anew. Their ledger ids start at
0 again, so that ledgers of one would be taken for those of the other. BookKeeper names each instance of a cluster when
it is set up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.errors import ConfigError
from afterglow.metadata.identity import read_identity, record_identity

if TYPE_CHECKING:
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.pulsar_cluster import MetadataReader
    from afterglow.metadata.store import MetadataStore

_INSTANCE = "/ledgers/INSTANCEID"


def read_instance(cluster: MetadataReader) -> str:
    """The instance id of a cluster's BookKeeper; empty if it has none, as in a standalone Pulsar.

    Raises:
        MetadataUnavailable: The store cannot be reached.
    """
    return read_identity(cluster, _INSTANCE)


def check_instance(metadata: MetadataReader, paths: AfterglowPaths, instance: str, address: str) -> None:
    """Check that records belong to an instance of a cluster. Only reads. Records without an instance id fit any.

    Args:
        metadata: Holds our records.
        paths: Their paths.
        instance: The instance id of the cluster.
        address: Address of the metadata, for the message.

    Raises:
        ConfigError: They belong to another cluster of the same name.
        MetadataUnavailable: The store cannot be reached.
    """
    recorded = read_identity(metadata, paths.cluster_instance)
    if recorded and recorded != instance:
        raise ConfigError(
            f"metadata {address} has records of another cluster of the name {paths.cluster}: its BookKeeper has the "
            f"instance id {recorded}, and that of this cluster is {instance or 'missing'}; give another --metadata, or "
            "--zookeeper of the cluster that it belongs to"
        )


def record_instance(metadata: MetadataStore, paths: AfterglowPaths, instance: str) -> None:
    """Record the instance of the cluster with the first attachment to it; for the owner.

    Raises:
        Fenced: Another process has become the owner.
        MetadataError: The store failed.
    """
    if instance:
        record_identity(metadata, paths.cluster_instance, instance)
