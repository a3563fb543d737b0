"""A topic that streams, with everything under a test's control: tasks run and processes crash on request."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NoReturn
from uuid import UUID

from tests.support.ledgers import World, settings

from afterglow.format.objects import get_uuid
from afterglow.format.position import EARLIEST
from afterglow.metadata.paths import AfterglowPaths
from afterglow.offload.environment import SegmentEnvironment, frame_end
from afterglow.offload.segments.part_planner import Sizes
from afterglow.offload.segments.topic_stream import TopicStream
from afterglow.offload.task import run_task
from afterglow.storage.memory import MemoryStore
from afterglow.tier.locations import TierLocation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from afterglow.config import BrokerConfig
    from afterglow.format.position import Position
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.offload.task import StreamTask
    from afterglow.storage.store import ObjectStore

LOCATION = TierLocation("memory", "streams")


def streaming(**changes: object) -> BrokerConfig:
    """Settings with small segments, blocks and parts."""
    given: dict[str, object] = {
        "streaming_offload_enabled": True,
        "max_offload_segment_size_in_bytes": 1000,
        "managed_ledger_cache_size_mb": 0,
    }
    return settings(**(given | changes))


class StreamWorld:
    """One topic, its stream, and a tier in memory.

    Args:
        config: The settings, which are the topic's policy too.
        world: The ledgers; by default fresh ones.
    """

    tasks_cut_blocks: ClassVar = False
    """Whether tasks cut the blocks of their parts, as those of an attached cluster."""

    def __init__(self, config: BrokerConfig | None = None, world: World | None = None) -> None:
        self.policy = config or streaming()
        self.world = world or World(self.policy)
        self.store: ObjectStore = MemoryStore()
        self.paths = AfterglowPaths()
        self.sizes = Sizes(256, 512)
        self.given_up: dict[UUID, str] = {}
        self.ledgers_given_up: list[int] = []
        self.tasks: list[StreamTask] = []
        self.open()

    def open(self) -> None:
        """Open the topic, as its owner."""
        self.ledger: ManagedLedger = self.world.open()
        self.stream = TopicStream(self.environment(self.ledger))

    def crash(self) -> None:
        """Kill the process and start another; tasks that were handed out are forgotten."""
        self.world.crash()
        self.tasks = []
        self.open()

    def environment(self, ledger: ManagedLedger) -> SegmentEnvironment:
        """What the topic's segments share."""
        hot = self.world.hot
        return SegmentEnvironment(
            ledger=ledger,
            metadata=self.world.metadata,
            paths=self.paths,
            clock=self.world.clock,
            instance="us",
            home="",
            policy=lambda: self.policy,
            location=lambda: LOCATION,
            sizes=lambda _policy: self.sizes,
            frame_end=partial(frame_end, hot),
            offsets=None if self.tasks_cut_blocks else lambda id_, first, last: hot.open(id_).offsets(first, last),
            open_store=lambda _location: self.store,
            store_options=lambda _location: {},
            driver_task=_no_external_driver,
            open_copy=_no_external_driver,
            user_metadata=_metadata,
            give_up=lambda uuid, _location, reason: self.given_up.update({uuid: reason}),
            give_up_ledger=self.ledgers_given_up.append,
        )

    def change(self, **changes: object) -> None:
        """Change the policy."""
        self.policy = replace(self.policy, **changes)  # type: ignore[arg-type]  # settings by name

    def append(self, *entries: bytes) -> list[Position]:
        """Append entries, and wait until they are durable."""
        return self.world.append(self.ledger, *entries)

    def advance(self) -> int:
        """Let the stream go forward; returns how many tasks it handed out."""
        tasks = self.stream.advance()
        self.tasks += tasks
        return len(tasks)

    def run(self, count: int | None = None) -> int:
        """Run tasks, all or the oldest ones, and tell the stream; returns how many."""
        running = self.tasks[:count]
        del self.tasks[: len(running)]
        for task in running:
            result = run_task(
                task,
                open_ledger=lambda ledger_id: nullcontext(self.world.hot.open(ledger_id)),
                open_store=lambda _url, _options: self.store,
            )
            self.stream.on_part_result(UUID(task.key), task.number, result)
        return len(running)

    def settle(self) -> None:
        """Go forward until nothing is due and no task waits."""
        for _ in range(1000):
            self.advance()
            if not self.run():
                return
        raise AssertionError("the stream never comes to rest")

    @property
    def is_idle(self) -> bool:
        """Whether the stream has no assigned segment."""
        return self.stream.is_loaded and not self.stream.uploads

    def segments(self) -> list[tuple[str, str, bool]]:
        """What the list says: for each ledger's items its id, end entry and whether complete."""
        return [
            (f"{row.ledgerId}:{item.endEntryId if item.complete else ''}", str(get_uuid(item))[:8], item.complete)
            for row in self.ledger.info.ledgerInfo
            for item in row.offloadContext.offloadSegment
        ]

    def covered(self) -> list[str]:
        """The last entry of each committed piece, ledger by ledger."""
        return [name for name, _, complete in self.segments() if complete]

    def entries(self) -> list[bytes]:
        """Every entry of the topic."""
        return [bytes(entry.data) for entry in self.ledger.reader.read(EARLIEST, 100_000, 1 << 30)]


def _no_external_driver(*_: object) -> NoReturn:
    raise AssertionError("the tier is that of a built-in driver")


def _metadata(role: str) -> Mapping[str, str]:
    return {"role": role, "afterglowinstance": "us"}
