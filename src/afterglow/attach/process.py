"""The attached process: streams topics of a cluster to the tier until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from uuid import uuid4

from afterglow.attach.catalog import AttachedCatalog
from afterglow.attach.cluster import AttachedCluster, check_cluster, cluster_settings
from afterglow.attach.cluster_checks import WhenBehind, check
from afterglow.attach.cluster_instance import check_instance, read_instance, record_instance
from afterglow.attach.cluster_settings import SettingsReader
from afterglow.attach.entry_path import choose_path, trusted_certificates
from afterglow.attach.follower import Follower
from afterglow.attach.hot_ledgers import BrokerLedgers, ClusterLedgers
from afterglow.attach.policies import AttachPolicies
from afterglow.attach.quota_release import QuotaLimits, QuotaRelease
from afterglow.attach.records import attachment_instance, record_subscription
from afterglow.attach.service import AttachedService, ClusterLink
from afterglow.attach.tier_retention import TierRetention
from afterglow.attach.topics import AttachedTopics
from afterglow.broker.auth import Authenticator
from afterglow.config.choices import EntryPath
from afterglow.errors import AccessDenied, AfterglowError, ConfigError, Fenced
from afterglow.hot.bookkeeper import BookKeeperAddress, BookKeeperClient, BookKeeperCluster, ReadLimits
from afterglow.hot.pulsar.address import ClusterBrokers, PulsarAddress
from afterglow.hot.pulsar.subscription_hold import SubscriptionHolds
from afterglow.ledger.environment import SystemClock
from afterglow.metadata.address import open_metadata
from afterglow.metadata.admin_client import AdminClient
from afterglow.metadata.lease import become_owner, open_lease
from afterglow.metadata.paths import AfterglowPaths
from afterglow.metadata.pulsar_cluster import PulsarCluster
from afterglow.offload.service import OffloadService
from afterglow.pipeline.server_handle import ServerHandle
from afterglow.pipeline.tier_verifier import TierStores, TierVerifier
from afterglow.pipeline.upkeep import run_with_timeout
from afterglow.pipeline.verify_runs import VerifyRuns
from afterglow.spark.offload_jobs import SparkRunner
from afterglow.spark.session import spark_properties
from afterglow.storage import open_store
from afterglow.storage.health import TierHealth, spawn_thread
from afterglow.storage.wrapper import CountingStore, RequestCounters
from afterglow.tier.locations import Tiers, own_tier, store_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.attach.entry_path import ChosenPath
    from afterglow.attach.policies import PolicyFile
    from afterglow.config import BrokerConfig
    from afterglow.metadata.cluster_credentials import ClusterCredentials
    from afterglow.pipeline.tier_verifier import VerifyControl
    from afterglow.tier.locations import TierLocation

_log = logging.getLogger(__name__)

_THREADS: Final = 8
"""Threads of offload, which wait for metadata, bookies and the tier."""
_GRACE_S: Final = 3.0
"""Wait for requests to the tier at shutdown. Metadata records their purpose, and the next start continues them."""
_RELEASE_CHECK_S: Final = 2.0
"""Interval between comparisons of backlogs with quotas; brokers check theirs every minute by default."""
_TIER_CHECK_S: Final = 10.0
"""A tier that does not respond for this time at the start is reported instead of waited for."""
DEFAULT_READ_RATE: Final = 100 << 20
"""Bytes per second that a worker process reads from all bookies together, unless ``--max-read-rate`` is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachOptions:
    """What ``afterglow attach`` is given, beside the settings."""

    admin_url: str
    """Admin API of the cluster."""
    pattern: str
    """Regular expression of names of topics."""
    tier: str
    """Address of the tier."""
    metadata: str
    """Address of our own metadata: ``sqlite:PATH`` or ``zk://…``."""
    credentials: ClusterCredentials
    zookeeper: str | None = None
    """Address of the cluster's metadata; None: the one that its brokers report."""
    cluster: str | None = None
    """Name of the cluster; None: the one that its brokers report."""
    subscription: str = "afterglow"
    """Name of the subscription that holds back trimming."""
    when_behind: WhenBehind = WhenBehind.HOLD
    """What becomes of the hold when a backlog quota comes near."""
    entries: EntryPath = EntryPath.AUTO
    """Where entries are read."""
    accept_risk: bool = False
    """Whether to attach although policies of the cluster endanger entries, producers or the subscription."""
    read_rate: int = DEFAULT_READ_RATE
    """Bytes per second that each worker process reads from bookies."""


class AttachProcess:
    """A running process. Created by :meth:`start`."""

    server: ServerHandle[AttachedService]
    """For the admin API and the metrics."""

    def __init__(
        self,
        topics: AttachedTopics,
        offload: OffloadService,
        cluster: AttachedCluster,
        location: TierLocation,
        path: ChosenPath,
        *,
        ended: threading.Event,
    ) -> None:
        self.topics = topics
        self.offload = offload
        self.cluster = cluster
        self.location = location
        """The tier."""
        self.path = path
        """Where entries are read, and why."""
        self.fenced: Fenced | None = None
        """Set once another process has taken over."""
        self.ended = ended
        """Set when the process should end."""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @classmethod
    def start(
        cls,
        options: AttachOptions,
        config: BrokerConfig,
        policies: PolicyFile,
        *,
        ended: threading.Event | None = None,
        on_standby: Callable[[str], None] = lambda _holder: None,
    ) -> Self | None:
        """Check everything, take ownership of the cluster's records, and begin to follow its topics.

        1. Read the cluster's settings and topics, and the tier. *Crash: nothing was changed.*
        2. Wait for the lease, and take ownership below ``/afterglow/<cluster>/``. *Crash: an earlier process is fenced,
           and the next one takes over.*
        3. Record the name of the subscription, for ``detach``. *Crash: a name of which no topic has a subscription.*
        4. Hold a subscription on each topic. *Crash: the subscriptions stay, and the next process holds them.*

        Args:
            options: The options.
            config: The settings.
            policies: The policy file.
            ended: Set from outside when the process should end, also while it is a standby.
            on_standby: Called with the description of the process that holds the lease, when the wait begins.

        Returns:
            The process; None if ``ended`` was set before it became the owner.

        Raises:
            ConfigError: An option is not valid, the pattern matches no topic, or a risk is not accepted; or the records
                belong to another cluster of the same name.
            MetadataInUse: Another process uses the same SQLite file.
            StorageError: The tier cannot be used.
            MetadataError: A store cannot be reached.
            AccessDenied: The token is not accepted.
        """
        ended = ended or threading.Event()
        waited: list[str] = []

        def wait_as_standby(holder: str) -> None:
            waited.append(holder)
            on_standby(holder)

        with ExitStack() as stack:
            admin = AdminClient(options.admin_url, options.credentials)
            settings = cluster_settings(admin, options.zookeeper, options.cluster)
            config = replace(config, cluster_name=settings.name)
            cluster_store = open_metadata(settings.zookeeper, config)
            stack.callback(cluster_store.close)
            cluster_metadata = PulsarCluster(cluster_store)
            check_cluster(cluster_metadata, settings, options.admin_url)
            cluster = AttachedCluster(settings, admin, cluster_metadata, _compiled(options.pattern))
            _check_topics(cluster, options)
            attach_policies = AttachPolicies(config, policies)
            authenticator = Authenticator.from_config(config)
            requests = RequestCounters()
            tiers = Tiers(partial(CountingStore, counters=requests), TierHealth(spawn=spawn_thread))
            location = own_tier(Path(), options.tier, config)
            _check_tier(location, config)
            limits = ReadLimits(bytes_per_s=options.read_rate)
            bookies = BookKeeperCluster(cluster_store)
            client = BookKeeperClient(bookies, limits)
            stack.callback(client.close)
            service_url = _service_url(cluster_metadata, options.admin_url)
            pulsar = PulsarAddress(service_url, options.credentials.token, trusted_certificates(options.credentials))
            path = choose_path(options.entries, cluster, bookies, client, pulsar)
            from_brokers = path.entries is EntryPath.BROKER
            _check_broker_path(cluster, options, from_brokers=from_brokers)
            paths = AfterglowPaths(settings.name)
            opened = open_metadata(options.metadata, config)
            stack.callback(opened.close)
            instance = read_instance(cluster_store)
            check_instance(opened, paths, instance, options.metadata)
            lease = open_lease(options.metadata, opened, paths.lease)
            stack.callback(lease.release)
            metadata = become_owner(opened, lease, paths.owners, ended, wait_as_standby)
            if metadata is None:
                return None
            if waited:  # for hours, perhaps
                check_instance(metadata, paths, instance, options.metadata)
                _check_topics(cluster, options)
            record_instance(metadata, paths, instance)
            clock = SystemClock()
            topics = AttachedTopics(
                cluster=cluster,
                hot=BrokerLedgers() if from_brokers else ClusterLedgers(client),
                metadata=metadata,
                paths=paths,
                config=attach_policies.config,
                clock=clock,
            )
            attachment = attachment_instance(metadata, paths)
            record_subscription(metadata, paths, options.subscription)
            runner = SparkRunner(
                config.spark_master, max_jobs=config.spark_max_concurrent_jobs, properties=spark_properties(config)
            )
            stack.callback(runner.close)
            threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="afterglow-offload")
            stop_threads = partial(threads.shutdown, cancel_futures=True)
            stack.callback(run_with_timeout, _GRACE_S, "stopping threads of offload", stop_threads)
            stack.callback(lease.release)  # before Spark, which takes seconds to end
            address = ClusterBrokers(pulsar) if from_brokers else BookKeeperAddress(settings.zookeeper, limits=limits)
            offload = OffloadService(
                metadata=metadata,
                paths=paths,
                policies=attach_policies,
                tiers=tiers,
                own=location,
                runner=runner,
                executor=threads,
                clock=clock,
                instance=attachment,
                home="",
                remote=lambda: address,
                tasks_cut_blocks=True,
                ledger_list=paths.managed_ledger,
                check_undelivered=topics.check_listed if from_brokers else None,
            )
            offload.attach(topics)
            stack.callback(offload.close)
            process = cls(topics, offload, cluster, location, path, ended=ended)
            lease.keep(metadata.guard, process._on_fenced)
            holds = SubscriptionHolds(pulsar, options.subscription, has_entries=topics.has_entries)
            stack.callback(holds.close)
            follower = Follower(cluster, topics, holds, clock, process._on_fenced)
            stack.callback(follower.close)

            def open_verifier(control: VerifyControl) -> TierVerifier:
                stores = TierStores(tiers.store(location, config), config, tiers=tiers, control=control)
                return TierVerifier(None, attachment, metadata, stores, config, quiet=False)

            verify_runs = VerifyRuns(open_verifier)
            stack.callback(verify_runs.close)
            calls = ThreadPoolExecutor(_THREADS, thread_name_prefix="attach-call")
            stack.callback(run_with_timeout, _GRACE_S, "stopping calls", partial(calls.shutdown, cancel_futures=True))
            service = AttachedService(
                ClusterLink(settings.name, options.admin_url, options.subscription),
                config=attach_policies.config,
                store=topics,
                catalog=AttachedCatalog(topics, cluster_metadata),
                policies=attach_policies,
                holds=holds,
                follower=follower,
                authenticator=authenticator,
                pool=calls,
            )
            process.server = ServerHandle(
                service,
                offload,
                verify_runs,
                tier_requests=requests.counts,
                offload_jobs=runner.counts,
                on_shutdown=process.ended.set,
            )
            offload.start()
            follower.start()
            retention = TierRetention(topics=topics, hooks=offload, policies=attach_policies, clock=clock)
            jobs: list[tuple[float, str, Callable[[], None]]] = [
                (config.offload_tick_interval_millis / 1000, "offload", offload.tick),
                (config.retention_check_interval_in_seconds, "tier retention", retention.check),
            ]
            if options.when_behind is WhenBehind.RELEASE:
                release = QuotaRelease(topics, holds, QuotaLimits(admin, clock).release_bytes)
                jobs.append((_RELEASE_CHECK_S, "release of holds", release.check))
            for interval_s, what, work in jobs:
                thread = threading.Thread(target=process._repeat, args=(interval_s, what, work), name=f"attach {what}")
                thread.start()
                stack.callback(thread.join)
            stack.callback(process.ended.set)
            process._stack = stack.pop_all()
            return process
        raise AssertionError("unreachable: the block returns or raises")

    def summarize(self) -> str:
        """Describe entry path, tier and topics in one line."""
        count = len(self.topics.all_opened())
        name = self.cluster.settings.name
        return f"{self.path}, tier {self.location}, {count} topic{'s' * (count != 1)} of cluster {name}"

    async def wait_for_end(self) -> None:
        """Wait until the process should end, without blocking the event loop."""
        await asyncio.to_thread(self.ended.wait)

    def stop(self) -> None:
        """Stop all parts. Subscriptions stay, so that the cluster keeps what is not in the tier."""
        self.ended.set()
        self._stack.close()

    def _repeat(self, interval_s: float, what: str, work: Callable[[], None]) -> None:
        while not self.ended.wait(interval_s):
            try:
                work()
            except Fenced as error:
                self._on_fenced(error)
            except AfterglowError as error:
                _log.warning("%s failed, will retry: %s", what, error)

    def _on_fenced(self, error: Fenced) -> None:
        self.fenced = self.fenced or error
        self.ended.set()


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--topics {pattern!r} is not a regular expression: {error}") from error


def _check_topics(cluster: AttachedCluster, options: AttachOptions) -> None:
    """Find topics, and policies of the cluster that endanger entries which are not in the tier yet.

    Raises:
        ConfigError: No topic matches, or there are such policies, and they are not accepted.
    """
    topics = cluster.topics()
    if not topics:
        raise ConfigError(
            f"--topics {options.pattern!r} matches no topic of cluster {cluster.settings.name}; names look like "
            "public/default/orders"
        )
    risks = [
        risk
        for settings in SettingsReader(cluster.admin).read(topics)
        for risk in check(settings, options.subscription, when_behind=options.when_behind)
    ]
    if risks and not options.accept_risk:
        more = f" ({len(risks) - 1} more)" if len(risks) > 1 else ""
        raise ConfigError(f"{risks[0]}{more}")
    for risk in risks:
        _log.warning("accepted: %s", risk)


def _check_broker_path(cluster: AttachedCluster, options: AttachOptions, *, from_brokers: bool) -> None:
    """Check that brokers do not skip entries that they cannot read.

    Raises:
        ConfigError: They do, or it is not known, and that is not accepted.
    """
    if not from_brokers or options.accept_risk:
        return
    name = "autoSkipNonRecoverableData"
    try:
        value = str((cluster.admin.runtime_configuration() or {}).get(name, "unknown"))
    except AccessDenied as error:
        value = f"unknown ({error})"
    if value != "false":
        raise ConfigError(
            f"{name}={value} of the brokers: they may skip entries that cannot be read, which looks like entries that "
            "they do not deliver; set it to false, read from bookies (--entries bookkeeper), or accept it with "
            "--accept-risk"
        )


def _check_tier(location: TierLocation, config: BrokerConfig) -> None:
    """Ask the tier for uploads of a key that it does not have.

    Raises:
        StorageError: The bucket is missing, access is denied, or the tier does not respond.
    """
    options = store_options(location, config)
    if "retry_deadline_s" in options:
        options["retry_deadline_s"] = str(min(float(options["retry_deadline_s"]), _TIER_CHECK_S))
    open_store(location.url, **options).list_uploads(str(uuid4()))


def _service_url(cluster: PulsarCluster, admin_url: str) -> str:
    for broker in cluster.brokers():
        if url := broker.get("pulsarServiceUrl") or broker.get("pulsarServiceUrlTls"):
            return str(url)
    raise ConfigError(f"no broker of {admin_url} is registered in the cluster's metadata; start one")
