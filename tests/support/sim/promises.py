"""Coming to rest after faults, and the promises of which each must hold then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.support.sim.invariants import uuid_of
from tests.support.sim.process import INSTANCE
from tests.support.sim.reading import read_all, read_by_priority

from afterglow.config.choices import ReadPriority
from afterglow.errors import AfterglowError
from afterglow.format.position import EARLIEST
from afterglow.metadata.paths import AfterglowPaths
from afterglow.offload import planner
from afterglow.offload.status import OffloadState
from afterglow.read.copies import StorageTier
from afterglow.verify import FindingKind, sweep, verify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.sim.world import SimWorld

    from afterglow.verify import Finding

_MOST_ROUNDS: Final = 60
MOST_SKEW_S: Final = 7200
"""By how much the clock of a machine may be wrong, either way: what one process has dated, another may take for due
only twice as much later."""
_HARMLESS: Final = (FindingKind.FOREIGN, FindingKind.UNCHECKED)
_FOREIGN: Final = "foreign"


def come_to_rest(world: SimWorld) -> list[str]:
    """Let the owner do all that is due until nothing is, past every back-off and lag; returns why it does not end."""
    # After the longest lag all is offloaded and freed; then what was given up meanwhile stays on record for 600 s.
    # Each deletion is seen by a listing only after its lag.
    for seconds in (
        0,
        1,
        10,
        31,
        10,
        4000 + 4 * MOST_SKEW_S,
        10,
        31,
        31,
        31,
        10,
        600,
        31,
        2 * MOST_SKEW_S,
        31,
        world.lag_s,
        10,
    ):
        world.clock.advance(seconds)
        for _ in range(_MOST_ROUNDS):
            world.act(world.owner, world.owner.tick)
            if not _work(world):
                break
            world.clock.advance(1)
        else:
            return [f"after {_MOST_ROUNDS} ticks there is still something to do"]
    return []


def _work(world: SimWorld) -> bool:
    owner = world.owner
    worked = False
    while len(owner.executor) or owner.tasks:
        worked = True
        if len(owner.executor):
            world.act(owner, owner.executor.run)
        else:
            world.run_task(owner, 0)
    return worked


def check(world: SimWorld) -> list[str]:
    """What does not hold of the promises, for a world at rest and without faults."""
    return [*_readable(world), *_finished(world), *_clean(world)]


def _readable(world: SimWorld) -> Iterator[str]:
    """Promises 1, 5 and 6: everything is there, in order, byte for byte, from the tier that is named."""
    owner = world.owner
    for model in world.models.values():
        if model.name not in world.invariants.lists:
            continue
        try:
            ledger = owner.open(model.name)
            found = read_all(ledger)
            yield from model.wrong_entries(found, current=True)
            yield from model.missing(EARLIEST, [position for position, _ in found], whole=True)
            for priority in ReadPriority:
                before = owner.sources(model.name).counters.counts()
                yield from read_by_priority(owner, ledger, model, priority)
                after = owner.sources(model.name).counters.counts()
                for (tier, reason), count in after.fallbacks.items():
                    if count > before.fallbacks.get((tier, reason), 0) and (tier, reason) != (StorageTier.HOT, "gone"):
                        yield f"{model.name}: without any fault, {tier} did not serve: {reason}"
        except AfterglowError as error:
            yield f"{model.name} cannot be read: {error!r}"


def _finished(world: SimWorld) -> Iterator[str]:
    """Promises 3 and 9: nothing stands half-way, nothing is under way, and what is due was done."""
    paths = AfterglowPaths()
    owner = world.owner
    if owner.buffer.statistics.entries:
        yield f"all is offloaded, and the offload buffer holds {owner.buffer.statistics}"
    for model in world.models.values():
        for child in world.metadata.children(paths.uploads(model.name)):
            yield f"{model.name}: the upload {child} is left over"
        # An intent stays on record where its ledger was to leave the list, and could not: it will, some day.
        for child in set(world.metadata.children(paths.deletes(model.name))) - world.invariants.named():
            yield f"{model.name}: the intent to delete {child} is left over"
        info = world.invariants.lists.get(model.name)
        if info is None:
            continue
        for row in info.ledgerInfo:
            context = row.offloadContext
            if context.HasField("uidMsb") and not context.complete and not context.offloadSegment:
                yield f"{model.name}: ledger {row.ledgerId} stands half-way as {uuid_of(context)}"
            if not all(segment.complete for segment in context.offloadSegment):
                yield f"{model.name}: a segment of ledger {row.ledgerId} stands half-way"
        policy = owner.policies.of(model.name)
        opened = owner.store.opened(model.name)
        writing_to = None if opened is None else opened.writing_to
        now_ms = owner.clock.now_ms()
        if due := planner.due(info, writing_to=writing_to, policy=policy, now_ms=now_ms):
            yield f"{model.name}: ledgers {due} are due, and nobody offloads them"
        if freeable := planner.freeable(info, policy=policy, now_ms=now_ms):
            yield f"{model.name}: hot copies of {freeable} may go, and nobody frees them"
        if running := owner.offload.statistics(model.name).running:
            yield f"{model.name}: ledgers {running} are said to be on their way"
        if owner.offload.status(model.name).state is OffloadState.RUNNING:
            yield f"{model.name}: an offload by hand does not end"


def _clean(world: SimWorld) -> Iterator[str]:
    """Promises 2, 4 and 9, by the verifier: no object is missing, and none exists that metadata does not name."""
    world.clock.advance(1 + world.lag_s)
    for finding in _verify(world):
        late = (finding.object or "")[:36] in world.invariants.late
        if not (late and finding.kind in {FindingKind.ORPHAN_OBJECT, FindingKind.LEAKED_UPLOAD}):
            yield f"the verifier finds {finding}"
    swept = _sweep(world)
    for finding in swept:
        if finding.kind is FindingKind.ORPHAN_OBJECT and (finding.object or "")[:36] in world.invariants.named():
            yield f"the sweep has taken {finding}, which a list names"
    world.clock.advance(world.lag_s)
    for finding in _verify(world) if swept else ():
        yield f"after a sweep the verifier finds {finding}"
    for upload in (upload for tier in world.tiers.values() for upload in tier.uploads()):
        if not upload.key.startswith(_FOREIGN) and upload.key[:36] not in world.invariants.named():
            yield f"upload {upload.upload_id} of {upload.key} is left over"
    if not world.foreign_intact():
        yield "what is not ours was touched"


def _verify(world: SimWorld) -> list[Finding]:
    hot = set(world.hot.ledgers())
    found = verify(
        world.metadata,
        lambda location: world.tiers[f"memory://{location.bucket}"],
        tiers=world.tiers.values(),
        instance=INSTANCE,
        now_ms=world.clock.now_ms(),
        grace_ms=0,
        deep=True,
        hot=hot.__contains__,
    )
    return [
        finding
        for finding in found
        if finding.kind not in _HARMLESS or not (finding.object or _FOREIGN).startswith(_FOREIGN)
    ]


def _sweep(world: SimWorld) -> list[Finding]:
    swept = sweep(
        world.metadata,
        tiers=world.tiers.values(),
        instance=INSTANCE,
        now_ms=world.clock.now_ms(),
        grace_ms=0,
        dry_run=False,
    )
    return [one.finding for one in swept if one.removed]
