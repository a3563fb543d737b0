"""Handle to a running server: the parts that the admin API and the metrics use.

The embedded broker and the process that is attached to a cluster have different services. What both have is
:class:`TopicService`; routes and metrics that depend on nothing else serve either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, ParamSpec, Protocol, TypeVar

from afterglow.broker.authorization import RoleGrants
from afterglow.offload.task_dispatch import JobCounts
from afterglow.offload.topics import OffloadTopics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from afterglow.broker.auth import Authenticator
    from afterglow.broker.authorization import Authorizer
    from afterglow.config import BrokerConfig
    from afterglow.ledger.environment import Clock
    from afterglow.metadata.names import NamespaceName, TopicName
    from afterglow.offload.service import OffloadService
    from afterglow.offload.topics import OffloadPolicies
    from afterglow.pipeline.verify_runs import VerifyRuns
    from afterglow.read.counters import ReadCounts
    from afterglow.storage.wrapper import OperationCount

P = ParamSpec("P")
T = TypeVar("T")


class TopicCatalog(RoleGrants, Protocol):
    """Names of tenants, namespaces and topics. Thread-safe; every method may wait for metadata.

    Every method raises ``MetadataError`` if metadata cannot be read.
    """

    def tenants(self) -> Sequence[str]:
        """Names of all tenants."""
        ...

    def namespaces(self, tenant: str) -> Sequence[NamespaceName]:
        """Namespaces of a tenant.

        Raises:
            NotFound: The tenant does not exist.
        """
        ...

    def topics(self, namespace: NamespaceName) -> Sequence[TopicName]:
        """Topics of a namespace; each partition is a topic."""
        ...

    def partitioned_topics(self, namespace: NamespaceName) -> Sequence[TopicName]:
        """Partitioned topics of a namespace."""
        ...

    def partitions(self, topic: TopicName) -> int:
        """Number of partitions of a topic; 0 if it is not partitioned."""
        ...


class TopicStore(OffloadTopics, Protocol):
    """The topics of a process, with the clock of their times. Thread-safe."""

    @property
    def clock(self) -> Clock:
        """The clock."""
        ...

    def exists(self, name: str) -> bool:
        """Whether a topic exists, by its managed-ledger name.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        ...


class TopicService(Protocol):
    """The topics of a running process: those of a broker, or of a cluster that it is attached to.

    Belongs to the event loop's thread, except for work that it runs in its thread pools.
    """

    @property
    def config(self) -> BrokerConfig:
        """The settings."""
        ...

    @property
    def catalog(self) -> TopicCatalog:
        """Names of tenants, namespaces and topics."""
        ...

    @property
    def store(self) -> TopicStore:
        """The topics."""
        ...

    @property
    def policies(self) -> OffloadPolicies:
        """Effective policies of topics."""
        ...

    @property
    def authenticator(self) -> Authenticator:
        """Identifies callers."""
        ...

    @property
    def authorizer(self) -> Authorizer:
        """Finds the rights of their roles."""
        ...

    async def blocking(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work that waits for a disk or for metadata, in a thread."""
        ...

    async def run_in_tier_pool(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work that may wait for a tier, in a thread."""
        ...


S_co = TypeVar("S_co", bound=TopicService, covariant=True)


@dataclass(slots=True)
class ServerHandle(Generic[S_co]):
    """The parts of one running server. The defaults describe a server without a tier."""

    service: S_co
    offload: OffloadService | None = None
    verify_runs: VerifyRuns | None = None
    read_counts: Callable[[str], ReadCounts | None] = lambda _name: None
    """Reads of a topic by serving tier, from the managed-ledger name; None for a topic that was not opened."""
    tier_requests: Callable[[], Mapping[str, OperationCount]] = dict
    """Requests of this process to tiers since the start, by operation; tasks make theirs on their own."""
    offload_jobs: Callable[[], JobCounts] = JobCounts
    """Counts of offload jobs since the start."""
    on_shutdown: Callable[[], None] | None = None
    """Starts a clean end of the process and returns at once; None: the program around the server ends it."""
