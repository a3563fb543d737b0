"""Records of clusters, at Pulsar's own paths and in its own JSON.

Pulsar keeps them for replication, which is not done here: they are kept for tools that set and read them. The
broker's own cluster is always known, with a record or without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from afterglow.catalog.json_nodes import JsonNodes
from afterglow.metadata.names import check_entity

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.metadata.store import MetadataStore

    Json = dict[str, Any]

_CLUSTERS: Final = "/admin/clusters"


class ClusterRecords:
    """The clusters that are known. Every change is one compare-and-set."""

    def __init__(self, metadata: MetadataStore, own: str) -> None:
        self._metadata = metadata
        self._nodes = JsonNodes(metadata)
        self._own = own

    def names(self) -> list[str]:
        """Names of all clusters, the broker's own among them."""
        stored = (name for name in self._metadata.children(_CLUSTERS) if self._has(_path(name)))
        return sorted({self._own, *stored})

    def get(self, cluster: str) -> Json:
        """The record of a cluster; empty for the broker's own where it has none.

        Raises:
            NotFound: The cluster is not known.
        """
        path = _path(cluster)
        if cluster == self._own and not self._has(path):
            return {}
        return self._nodes.read(path, f"cluster {cluster}")[0]

    def create(self, cluster: str, data: Json) -> None:
        """Add the record of a cluster.

        Raises:
            AlreadyExists: It has one.
        """
        self._nodes.create(_path(cluster), data, f"cluster {cluster}")

    def update(self, cluster: str, change: Callable[[Json], Json]) -> None:
        """Change the record of a cluster.

        Raises:
            NotFound: It has none.
        """
        self._nodes.update(_path(cluster), change, f"cluster {cluster}")

    def delete(self, cluster: str) -> None:
        """Delete the record of a cluster.

        Raises:
            NotFound: It has none.
        """
        self._nodes.delete(_path(cluster), f"cluster {cluster}")

    def _has(self, path: str) -> bool:
        stored = self._metadata.get(path)
        return stored is not None and bool(stored.value)


def _path(cluster: str) -> str:
    return f"{_CLUSTERS}/{check_entity('cluster', cluster)}"
