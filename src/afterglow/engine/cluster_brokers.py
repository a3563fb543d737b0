"""The brokers of a cluster that run now, asked for what its metadata leaves open."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from afterglow.errors import AfterglowError
from afterglow.metadata.admin_rest import AdminRest
from afterglow.metadata.pulsar_views import last_confirmed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from afterglow.format.position import Position
    from afterglow.metadata.cluster_proof import ClusterProof
    from afterglow.metadata.names import TopicName
    from afterglow.metadata.pulsar_cluster import PulsarCluster

_log = logging.getLogger(__name__)


class ClusterBrokers:
    """Whichever brokers have registered themselves. Thread-safe.

    Args:
        cluster: Its metadata.
        proof: What brokers are shown.
        service_url: Where they are reached, if not where they say.
    """

    def __init__(self, cluster: PulsarCluster, proof: ClusterProof, service_url: str | None) -> None:
        self._cluster = cluster
        self._proof = proof
        self._service_url = service_url

    def service_url(self) -> str | None:
        """Where they speak the binary protocol; None where none runs."""
        if self._service_url is not None:
            return self._service_url
        return next((url for broker in self._cluster.brokers() if (url := _url(broker, "pulsarServiceUrl"))), None)

    def admin(self) -> AdminRest | None:
        """The admin API of one of them; None where none runs."""
        for broker in self._cluster.brokers():
            url = _url(broker, "webServiceUrl")
            if url is not None:
                return AdminRest(url, self._proof)
        return None

    def last_confirmed(self, topic: TopicName) -> Position | None:
        """The last entry of a topic; None where no broker tells."""
        try:
            api = self.admin()
            stats = None if api is None else api.internal_stats(topic)
            return None if stats is None else last_confirmed(stats, str(topic))
        except AfterglowError as error:
            _log.warning("%s: the end of its last ledger is not known, which is left out: %s", topic, error)
            return None


def _url(broker: Mapping[str, Any], name: str) -> str | None:
    """One of a broker's addresses, that by TLS where there is no other."""
    found = broker.get(name) or broker.get(f"{name}Tls")
    return str(found) if found else None
