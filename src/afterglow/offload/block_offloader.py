"""Offloader of the built-in drivers: a ledger becomes one data object in Pulsar's format V1, with an index object.

Tasks do the bulk work (:mod:`afterglow.offload.task`), in this process or in workers; this module plans them, and
combines their results into an object with an index. The index is derived from plans and results alone, so that any
process that finishes it writes the same bytes.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow import __version__
from afterglow.errors import (
    HotLogError,
    ObjectExists,
    PartMismatch,
    StorageError,
    StoreTimeout,
    UploadMissing,
    WrongLength,
)
from afterglow.format.blocks import plan_v1
from afterglow.format.index import ClosedLedger, encode_index, index_v1
from afterglow.format.objects import INDEX_SUFFIX, INSTANCE_KEY, ObjectKey, user_metadata
from afterglow.format.proto.managed_ledger_pb2 import KeyValue, OffloadDriverMetadata
from afterglow.offload.offloader import CLUSTER_KEY, EXTRA_KEYS, NAME_KEY, VERSION_KEY, LedgerOffloader
from afterglow.offload.task import LedgerPart, PartTask, run_part
from afterglow.tier.locations import driver_metadata, driver_setting, location_of_driver, store_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from afterglow.config import BrokerConfig
    from afterglow.format.blocks import BlockPlan
    from afterglow.hot.bookkeeper.address import BookKeeperAddress
    from afterglow.hot.log import ReadableLedger
    from afterglow.hot.pulsar.address import ClusterBrokers, PulsarAddress
    from afterglow.offload.block_handle import BlockHandle
    from afterglow.offload.offloader import OffloadedLedger
    from afterglow.offload.task import PartResult
    from afterglow.read.copies import LedgerCopy
    from afterglow.storage.store import ObjectStore, Part, Upload
    from afterglow.tier.locations import TierLocation, Tiers


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """Parameters of one attempt to copy a closed ledger."""

    ledger_id: int
    entries: int
    """Number of entries by the ledger list."""
    closed_ms: int
    uuid: UUID
    """UUID of the attempt."""
    extra: Mapping[str, str]
    """Extra metadata of the objects; see :func:`~afterglow.offload.offloader.extra_metadata`."""
    home: str = ""
    """The server's home directory."""
    instance: str = ""
    """Id of the hot log in that directory."""
    remote: PulsarAddress | BookKeeperAddress | ClusterBrokers | None = None
    """Address at which tasks that do not share the server's disk read the topic."""

    @property
    def key(self) -> str:
        """Key of the data object."""
        return str(ObjectKey(self.uuid, self.ledger_id))


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Upload of a ledger into an object, with the tasks that write its parts."""

    request: CopyRequest
    parts: tuple[tuple[BlockPlan, ...], ...]
    """The blocks of each part."""
    upload: Upload
    tasks: tuple[PartTask, ...]
    """One for each part."""

    @property
    def plans(self) -> tuple[BlockPlan, ...]:
        """All blocks."""
        return tuple(plan for part in self.parts for plan in part)

    @property
    def size_bytes(self) -> int:
        """Length of the data object."""
        return sum(task.size_bytes for task in self.tasks)


class BlockOffloader(LedgerOffloader):
    """Writes ledgers and segments as blocks to one tier location.

    Args:
        location: The tier location.
        policy: Sizes and credentials.
        tiers: Opens the store of the location.
        block_bytes: Size of blocks; by default the policy's.
        part_bytes: Maximum bytes of a part, which a task holds in memory; by default the policy's. A larger block is a
            part by itself.
    """

    def __init__(
        self,
        location: TierLocation,
        policy: BrokerConfig,
        tiers: Tiers,
        *,
        block_bytes: int | None = None,
        part_bytes: int | None = None,
    ) -> None:
        self._location = location
        self._policy = policy
        self._tiers = tiers
        self._block_bytes = block_bytes or int(driver_setting(policy, location.driver, "MaxBlockSizeInBytes"))
        self._part_bytes = part_bytes or policy.spark_task_buffer_max_bytes

    @property
    def location(self) -> TierLocation:
        """The tier location of new objects."""
        return self._location

    def driver_metadata(self) -> Mapping[str, str]:
        """The tier location in Pulsar's own terms."""
        return driver_metadata(self._location)

    # --- in steps, with tasks in workers ------------------------------------------------------------------------------

    def plan(self, ledger: ReadableLedger, entries: int) -> tuple[tuple[BlockPlan, ...], ...]:
        """The blocks of a ledger, part by part. Changes nothing.

        Raises:
            EntryTooLarge: An entry does not fit into a block of the policy's size.
            HotLogError: The ledger cannot be read, or has too few entries.
        """
        try:
            offsets = ledger.offsets(0, entries - 1)
        except IndexError as error:
            raise HotLogError(
                f"ledger {ledger.ledger_id} should have {entries} entries, but its hot copy ends at entry "
                f"{ledger.confirmed}"
            ) from error
        return tuple(group_blocks(plan_v1(offsets, self._block_bytes), self._part_bytes))

    def begin(self, request: CopyRequest, parts: tuple[tuple[BlockPlan, ...], ...]) -> BlockCopy:
        """Create the upload, and describe the tasks that write its parts.

        A ledger of a single part has an upload too. Otherwise a task that puts the object long after its attempt was
        replaced and cleaned up would leave an object that no record names. The store refuses a part of an aborted
        upload.

        Raises:
            StorageError: The store failed; an upload may have been created.
        """
        metadata = object_metadata("data", request.extra)
        upload = self._store().create_upload(request.key, metadata=metadata)
        tasks = tuple(
            PartTask(
                topic=request.extra.get(NAME_KEY, ""),
                key=request.key,
                number=number,
                upload_id=upload.upload_id,
                url=self._location.url,
                options=tuple(store_options(self._location, self._policy).items()),
                home=request.home,
                instance=request.instance,
                ledgers=(LedgerPart(request.ledger_id, part),),
                remote=request.remote,
            )
            for number, part in enumerate(parts, 1)
        )
        return BlockCopy(request, parts, upload, tasks)

    def finish(self, copy: BlockCopy, results: Sequence[PartResult]) -> None:
        """Complete the upload, check the length of the object, and put its index. Can be repeated.

        Args:
            copy: The upload.
            results: Results of all its tasks, in order.

        Raises:
            WrongLength: The object does not have the planned length.
            StorageError: The store failed.
        """
        store = self._store()
        parts = [result.part for result in results if result.part is not None]
        if [part.number for part in parts] != [task.number for task in copy.tasks]:
            raise PartMismatch(f"object {copy.request.key} has {len(parts)} uploaded parts of {len(copy.tasks)}")
        self._complete(store, copy, parts)
        found = store.head(copy.request.key).size_bytes
        if found != copy.size_bytes:
            raise WrongLength(f"object {copy.request.key} in {self._location} has {found} bytes, not {copy.size_bytes}")
        self._put_index(store, copy, results)

    def _complete(self, store: ObjectStore, copy: BlockCopy, parts: Sequence[Part]) -> None:
        try:
            store.complete_upload(copy.upload, parts)
        except (UploadMissing, StoreTimeout):
            # An earlier request may have completed it, with a lost response: only this attempt writes the key.
            found = store.head(copy.request.key)
            ours = found.metadata.get(INSTANCE_KEY) == copy.request.extra.get(INSTANCE_KEY)
            if found.size_bytes != copy.size_bytes or not ours:
                raise

    def _put_index(self, store: ObjectStore, copy: BlockCopy, results: Sequence[PartResult]) -> None:
        request, plans = copy.request, copy.plans
        statistics = [block for result in results for blocks in result.statistics for block in blocks]
        broker_times = [block.min_broker_time for block in statistics if block.min_broker_time is not None]
        ledger = ClosedLedger(
            last_entry_id=request.entries - 1,
            length_bytes=sum(plan.payload_bytes for plan in plans),
            # The creation time of a ledger is not recorded; its first entry follows immediately.
            created_ms=min(broker_times, default=request.closed_ms),
            managed_ledger=request.extra.get(NAME_KEY, ""),
        )
        index = encode_index(index_v1(ledger, plans, statistics))
        put_index(store, request.key, index, object_metadata("index", request.extra))

    # --- all at once --------------------------------------------------------------------------------------------------

    def offload(self, ledger: ReadableLedger, uuid: UUID, extra_metadata: Mapping[str, str]) -> None:
        """Copy a ledger in this process; see :class:`LedgerOffloader`."""
        entries = ledger.confirmed + 1
        request = CopyRequest(ledger.ledger_id, entries, 0, uuid, extra_metadata)
        store = self._store()
        copy = self.begin(request, self.plan(ledger, entries))
        results = []
        for task in copy.tasks:
            result = run_part(task, open_ledger=lambda _id: nullcontext(ledger), open_store=lambda *_: store)
            if result.error is not None:
                raise result.error
            results.append(result)
        self.finish(copy, results)

    def streaming_offload(self, uuid: UUID, driver_metadata: Mapping[str, str]) -> BlockHandle:
        """Begin a segment, with the policy's sizes of blocks and parts; see :class:`LedgerOffloader`."""
        # Imported here: tasks import this module too, and do not need them.
        from afterglow.offload.block_handle import BlockHandle, SegmentLimits  # noqa: PLC0415
        from afterglow.offload.segments.part_planner import Sizes  # noqa: PLC0415

        policy = self._policy
        limits = SegmentLimits(
            sizes=Sizes.of_policy(policy),
            max_bytes=policy.max_offload_segment_size_in_bytes,
            buffer_bytes=policy.spark_task_buffer_max_bytes,
            uploads=policy.managed_ledger_offload_max_threads,
        )
        extra = {name: driver_metadata[name] for name in EXTRA_KEYS if name in driver_metadata}
        return BlockHandle(
            self._store(self._location_of(driver_metadata)),
            uuid,
            limits=limits,
            data_metadata=object_metadata("data", extra),
            index_metadata=object_metadata("index", extra),
        )

    def read_offloaded(self, ledger_id: int, context: OffloadedLedger) -> LedgerCopy:
        """The copy of a ledger at its recorded tier location; see :class:`LedgerOffloader`."""
        # Imported here: writers do not need the caches of readers.
        from afterglow.read.counters import ReadCounters  # noqa: PLC0415
        from afterglow.read.objects import TierObject  # noqa: PLC0415
        from afterglow.read.tier_reader import TierReader  # noqa: PLC0415

        key = ObjectKey(context.uuid, None if context.segment else ledger_id)
        located = TierObject(self._location_of(context.driver_metadata), str(key))
        return TierReader(self._tiers, self._policy).copy(located, ledger_id, self._policy, ReadCounters())

    def delete_offloaded(self, ledger_id: int | None, uuid: UUID, driver_metadata: Mapping[str, str]) -> None:
        """Delete data object and index, and abort unfinished uploads; see :class:`LedgerOffloader`.

        Raises:
            StorageError: The store failed, or still lists one of them.
        """
        location, key = self._location_of(driver_metadata), str(ObjectKey(uuid, ledger_id))
        store = self._store(location)
        delete_objects(store, key)
        if left := objects_left(store, key):
            raise StorageError(f"{', '.join(left)} in {location} is still listed after it was deleted")

    def _location_of(self, properties: Mapping[str, str]) -> TierLocation:
        """The recorded tier location of objects; by default that of new objects."""
        given = [KeyValue(key=key, value=value) for key, value in properties.items() if key not in EXTRA_KEYS]
        if not given:
            return self._location
        return location_of_driver(OffloadDriverMetadata(name=self._location.driver, properties=given))

    def _store(self, location: TierLocation | None = None) -> ObjectStore:
        return self._tiers.store(location or self._location, self._policy)


def group_blocks(plans: Sequence[BlockPlan], max_bytes: int) -> list[tuple[BlockPlan, ...]]:
    """Group blocks into parts of at most ``max_bytes`` each; a larger block is a part by itself."""
    parts: list[list[BlockPlan]] = []
    free_bytes = 0
    for plan in plans:
        if plan.header.block_bytes > free_bytes:
            parts.append([])
            free_bytes = max_bytes
        parts[-1].append(plan)
        free_bytes -= plan.header.block_bytes
    return [tuple(part) for part in parts]


def put_index(store: ObjectStore, key: str, index: bytes, metadata: Mapping[str, str]) -> None:
    """Put the index of a data object, unless an earlier attempt has put the same index.

    Raises:
        ObjectExists: The object has another index.
        StorageError: The store failed.
    """
    try:
        store.put(key + INDEX_SUFFIX, index, metadata=metadata, if_absent=True)
    except ObjectExists:
        if bytes(store.get(key + INDEX_SUFFIX)) != index:
            raise


def delete_objects(store: ObjectStore, key: str) -> None:
    """Delete a data object and its index, and abort unfinished uploads of its key. Missing objects are not an error.

    Uploads are aborted first: an upload that is completed meanwhile becomes an object, which is deleted next.

    Raises:
        StorageError: The store failed; some objects may be deleted.
    """
    for upload in store.list_uploads(key):
        if upload.key == key:
            store.abort_upload(upload)
    store.delete((key, key + INDEX_SUFFIX))


def objects_left(store: ObjectStore, key: str) -> tuple[str, ...]:
    """Keys of a data object, its index and its unfinished uploads that the store lists.

    Raises:
        StorageError: The store failed.
    """
    keys = (key, key + INDEX_SUFFIX)
    listed = [found.key for found in store.list(key) if found.key in keys]
    return tuple(listed) + tuple(upload.key for upload in store.list_uploads(key) if upload.key == key)


def object_metadata(role: str, extra: Mapping[str, str]) -> dict[str, str]:
    """User metadata of an object in the role ``data`` or ``index``, given the extra metadata of its writer."""
    known = {NAME_KEY, CLUSTER_KEY, INSTANCE_KEY, VERSION_KEY}
    return user_metadata(
        role,
        extra.get(NAME_KEY, ""),
        cluster=extra.get(CLUSTER_KEY, ""),
        instance=extra.get(INSTANCE_KEY, ""),
        software_version=extra.get(VERSION_KEY, __version__),
        extra={name: value for name, value in extra.items() if name not in known},
    )
