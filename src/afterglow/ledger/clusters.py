"""What is known of clusters, at Pulsar's own paths and in its own JSON: addresses, peers, failure domains.

Pulsar keeps such records for replication and for placing topics, neither of which is done here: they are kept for tools
that set and read them. This cluster is always known, with a record or without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from afterglow.ledger.json_nodes import JsonNodes, dump
from afterglow.metadata.names import check_entity
from afterglow.metadata.store import MUST_NOT_EXIST

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.metadata.store import MetadataStore

    Json = dict[str, Any]

_CLUSTERS: Final = "/admin/clusters"
_DOMAINS: Final = "failureDomain"


class ClusterRecords:
    """The clusters that are known. Every change is one compare-and-set."""

    def __init__(self, metadata: MetadataStore, own: str) -> None:
        self._metadata = metadata
        self._nodes = JsonNodes(metadata)
        self._own = own

    def names(self) -> list[str]:
        """Names of all clusters, this one among them."""
        stored = (name for name in self._metadata.children(_CLUSTERS) if self._has(_path(name)))
        return sorted({self._own, *stored})

    def get(self, cluster: str) -> Json:
        """What is stored of a cluster; of this one maybe nothing.

        Raises:
            NotThere: It is not known.
        """
        path = _path(cluster)
        if cluster == self._own and not self._has(path):
            return {}
        return self._nodes.read(path, f"cluster {cluster}")[0]

    def create(self, cluster: str, data: Json) -> None:
        """Make a cluster known.

        Raises:
            AlreadyThere: It is.
        """
        self._nodes.create(_path(cluster), data, f"cluster {cluster}")

    def update(self, cluster: str, change: Callable[[Json], Json]) -> None:
        """Change what is stored of a cluster.

        Raises:
            NotThere: It is not known.
        """
        path = _path(cluster)
        if cluster == self._own and not self._has(path):
            self._put(path, change({}))
        else:
            self._nodes.update(path, change, f"cluster {cluster}")

    def delete(self, cluster: str) -> None:
        """Forget a cluster.

        1. Forget its failure domains. *Crash: it is known, with fewer of them.*
        2. Forget the cluster.

        Raises:
            NotThere: It is not known.
        """
        self._nodes.read(_path(cluster), f"cluster {cluster}")
        for domain in self.domains(cluster):
            self.delete_domain(cluster, domain)
        above = f"{_path(cluster)}/{_DOMAINS}"
        stored = self._metadata.get(above)
        if stored is not None:
            self._metadata.delete(above, stored.version)
        self._nodes.delete(_path(cluster), f"cluster {cluster}")

    # --- failure domains ---

    def domains(self, cluster: str) -> dict[str, Json]:
        """The failure domains of a cluster, by name."""
        names = self._metadata.children(f"{_path(cluster)}/{_DOMAINS}")
        return {name: self.domain(cluster, name) for name in names}

    def domain(self, cluster: str, domain: str) -> Json:
        """One failure domain.

        Raises:
            NotThere: There is none of that name.
        """
        return self._nodes.read(_domain_path(cluster, domain), f"failure domain {domain} of cluster {cluster}")[0]

    def put_domain(self, cluster: str, domain: str, data: Json) -> None:
        """Set a failure domain."""
        self._put(_domain_path(cluster, domain), data)

    def delete_domain(self, cluster: str, domain: str) -> None:
        """Forget a failure domain.

        Raises:
            NotThere: There is none of that name.
        """
        self._nodes.delete(_domain_path(cluster, domain), f"failure domain {domain} of cluster {cluster}")

    # --- inside ---

    def _has(self, path: str) -> bool:
        stored = self._metadata.get(path)
        return stored is not None and bool(stored.value)

    def _put(self, path: str, data: Json) -> None:
        stored = self._metadata.get(path)
        self._metadata.put(path, dump(data), MUST_NOT_EXIST if stored is None else stored.version)


def _path(cluster: str) -> str:
    return f"{_CLUSTERS}/{check_entity('cluster', cluster)}"


def _domain_path(cluster: str, domain: str) -> str:
    return f"{_path(cluster)}/{_DOMAINS}/{check_entity('failure domain', domain)}"
