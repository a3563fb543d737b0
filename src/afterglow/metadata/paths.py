"""Paths in the metadata store: Pulsar's own, and Afterglow's under ``/afterglow/<cluster>/``.

Pure functions over names. A managed-ledger name contains slashes, so each of its components is a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.errors import InvalidName
from afterglow.metadata.names import TopicName, check_entity, encode_name

if TYPE_CHECKING:
    from uuid import UUID

    from afterglow.metadata.names import NamespaceName

MANAGED_LEDGERS: Final = "/managed-ledgers"
"""Pulsar's root of all managed ledgers; the embedded server uses it too."""

STANDALONE: Final = "standalone"
"""The cluster name of an embedded server."""


def managed_ledger_path(ledger_name: str) -> str:
    """Return the path of a topic's ``ManagedLedgerInfo`` in Pulsar."""
    return f"{MANAGED_LEDGERS}/{ledger_name}"


def topics_path(namespace: NamespaceName) -> str:
    """Return the node whose children are the encoded local names of the namespace's persistent topics."""
    return f"{MANAGED_LEDGERS}/{namespace}/persistent"


def cursor_path(ledger_name: str, subscription: str) -> str:
    """Return the path of a subscription's ``ManagedCursorInfo`` in Pulsar."""
    return f"{managed_ledger_path(ledger_name)}/{encode_name(subscription)}"


def topic_of(path: str) -> TopicName:
    """Return the topic of a path of :func:`managed_ledger_path`.

    Raises:
        InvalidName: It is not such a path.
    """
    if not path.startswith(f"{MANAGED_LEDGERS}/"):
        raise InvalidName(f"metadata path {path!r} is not below {MANAGED_LEDGERS}")
    return TopicName.from_managed_ledger_name(path.removeprefix(f"{MANAGED_LEDGERS}/"))


def topic_label(path: str) -> str:
    """Return the topic of a managed ledger's path, or of a copy of one, for messages; the path itself for any other."""
    name = path.partition(f"{MANAGED_LEDGERS}/")[2]
    try:
        return str(TopicName.from_managed_ledger_name(name))
    except InvalidName:
        return path


@dataclass(frozen=True, slots=True)
class AfterglowPaths:
    """Afterglow's paths for one cluster, all below :attr:`root`."""

    cluster: str = STANDALONE
    """The Pulsar cluster that Afterglow is attached to, or ``standalone``."""

    def __post_init__(self) -> None:
        check_entity("cluster", self.cluster)

    @property
    def root(self) -> str:
        """The common parent of these paths."""
        return f"/afterglow/{self.cluster}"

    @property
    def owners(self) -> str:
        """The node whose child is the guard of the process that owns all these paths."""
        return f"{self.root}/owners"

    @property
    def instance(self) -> str:
        """The node with the id of an attachment, which its objects carry; a server keeps its own in its home."""
        return f"{self.root}/instance"

    @property
    def lease(self) -> str:
        """The node of the lease by which one process becomes the owner of all these paths."""
        return f"{self.root}/lease"

    @property
    def cluster_instance(self) -> str:
        """The node that identifies the cluster whose topics are attached, beside its name."""
        return f"{self.root}/cluster-instance"

    @property
    def hot_log(self) -> str:
        """The node with the instance id of the hot log whose ledgers the topics of a server have."""
        return f"{self.root}/hot-log"

    @property
    def subscriptions(self) -> str:
        """The node with the names of the subscriptions by which an attachment holds back trimming."""
        return f"{self.root}/subscriptions"

    @property
    def managed_ledgers(self) -> str:
        """The common parent of the copies of a Pulsar cluster's ``ManagedLedgerInfo``."""
        return f"{self.root}/managed-ledgers"

    def managed_ledger(self, ledger_name: str) -> str:
        """Return the path of the copy of a Pulsar cluster's ``ManagedLedgerInfo``; a server uses Pulsar's path."""
        return f"{self.managed_ledgers}/{ledger_name}"

    def segments(self, ledger_name: str) -> str:
        """Return the node whose children are the topic's segments, by UUID."""
        return f"{self.root}/segments/{ledger_name}"

    def segment(self, ledger_name: str, segment_id: UUID) -> str:
        """Return the path of a segment's record."""
        return f"{self.segments(ledger_name)}/{segment_id}"

    def uploads(self, ledger_name: str) -> str:
        """Return the node whose children are the topic's unfinished uploads, by segment UUID."""
        return f"{self.root}/uploads/{ledger_name}"

    def upload(self, ledger_name: str, segment_id: UUID) -> str:
        """Return the path of the record of a segment's unfinished upload."""
        return f"{self.uploads(ledger_name)}/{segment_id}"

    def deletes(self, ledger_name: str) -> str:
        """Return the node whose children are the topic's pending deletes, by the UUID of the object."""
        return f"{self.root}/deletes/{ledger_name}"

    def delete(self, ledger_name: str, object_id: UUID) -> str:
        """Return the path of the pending delete of an object, or of the abort of its upload."""
        return f"{self.deletes(ledger_name)}/{object_id}"

    def schemas(self, ledger_name: str) -> str:
        """Return the path of the versions of a topic's schema; the partitions of a topic share one."""
        return f"{self.root}/schemas/{ledger_name}"

    def topic_policies(self, ledger_name: str) -> str:
        """Return the path of a topic's own policies; the partitions of a topic share one."""
        return f"{self.root}/topic-policies/{ledger_name}"
