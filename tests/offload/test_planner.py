from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.ledgers import TOPIC

from afterglow.config import BrokerConfig
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.metadata.names import TopicName
from afterglow.offload import planner
from afterglow.offload.backoff import LedgerFailure
from afterglow.offload.explain import LedgerState, OffloadActivity, explain

NOW = 1_700_000_000_000


@dataclass(frozen=True)
class Row:
    """A ledger in the model."""

    size: int | None
    """None: open."""
    age_s: int
    tiered: str
    """``none``, ``attempted``, ``complete``, ``freed`` or ``segments``."""


ROWS = st.lists(
    st.builds(
        Row,
        size=st.integers(0, 100),
        age_s=st.integers(0, 100),
        tiered=st.sampled_from(["none", "none", "attempted", "complete", "freed", "segments"]),
    ),
    max_size=8,
)


def info_of(rows: list[Row], *, open_last: bool = False) -> ManagedLedgerInfo:
    info = ManagedLedgerInfo()
    for number, row in enumerate(rows):
        ledger = info.ledgerInfo.add(ledgerId=10 + number)
        if row.size is not None:
            ledger.entries = (row.size + 9) // 10
            ledger.size = row.size
            ledger.timestamp = NOW - 1000 * row.age_s
        context = ledger.offloadContext
        if row.tiered != "none":
            context.uidMsb, context.uidLsb = 1, number
        if row.tiered in {"complete", "freed"} and row.size:
            context.complete = True
            context.timestamp = ledger.timestamp
            context.bookkeeperDeleted = row.tiered == "freed"
        if row.tiered == "segments":
            context.offloadSegment.add(complete=True, endEntryId=0, offloadedTimestamp=NOW)
    if open_last:
        info.ledgerInfo.add(ledgerId=10 + len(rows), timestamp=0)
    return info


def policy(**changes: object) -> BrokerConfig:
    return BrokerConfig(**changes)  # type: ignore[arg-type]  # settings by name


@given(
    rows=ROWS,
    open_last=st.booleans(),
    size=st.integers(-1, 150),
    seconds=st.integers(-1, 60),
    manual=st.none() | st.integers(8, 20),
)
def test_exactly_the_ledgers_are_due_that_the_rules_name(
    *, rows: list[Row], open_last: bool, size: int, seconds: int, manual: int | None
) -> None:
    """The rules once more, said for each ledger by itself."""
    found = planner.due(
        info_of(rows, open_last=open_last),
        writing_to=None,
        policy=policy(
            managed_ledger_offload_threshold_in_bytes=size, managed_ledger_offload_threshold_in_seconds=seconds
        ),
        now_ms=NOW,
        manual_before=manual,
    )

    expected = []
    for number, row in enumerate(rows):
        newer_and_itself = sum(other.size or 0 for other in rows[number:])
        wanted = (
            (size >= 0 and newer_and_itself > size)
            or (seconds >= 0 and row.age_s >= seconds)
            or (manual is not None and 10 + number < manual)
        )
        if wanted and row.size and row.tiered in {"none", "attempted"}:
            expected.append(10 + number)
    assert list(found) == expected


@given(rows=ROWS, seconds=st.integers(0, 60), lag=st.none() | st.integers(0, 60_000))
def test_a_poll_at_the_planned_time_finds_work_and_none_is_needed_before(
    rows: list[Row], seconds: int, lag: int | None
) -> None:
    info = info_of(rows)
    obeyed = policy(
        managed_ledger_offload_threshold_in_seconds=seconds, managed_ledger_offload_deletion_lag_in_millis=lag
    )

    def work(now_ms: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (
            planner.due(info, writing_to=None, policy=obeyed, now_ms=now_ms),
            planner.freeable(info, policy=obeyed, now_ms=now_ms),
        )

    at_ms = planner.next_poll_ms(info, writing_to=None, policy=obeyed, now_ms=NOW)

    if at_ms is None:
        assert work(NOW) == work(NOW + 10**9)
    else:
        assert work(at_ms - 1) == work(NOW)
        assert work(at_ms) != work(NOW)


def test_the_ledger_in_use_is_never_due_and_counts_nothing() -> None:
    info = info_of([Row(50, 10, "none"), Row(50, 10, "none")])
    greedy = policy(managed_ledger_offload_threshold_in_bytes=0)

    assert planner.due(info, writing_to=11, policy=greedy, now_ms=NOW) == (10,)
    assert planner.kept_bytes(info, 11) == {10: 50}


def test_the_last_ledger_is_due_where_it_is_not_in_use() -> None:
    info = info_of([Row(50, 10, "none")])
    assert planner.due(info, writing_to=None, policy=policy(), now_ms=NOW, manual_before=11) == (10,)


def test_a_shuffled_list_is_read_by_ledger_id() -> None:
    info = info_of([Row(50, 90, "none"), Row(50, 50, "none"), Row(50, 10, "none")])
    shuffled = ManagedLedgerInfo(ledgerInfo=[info.ledgerInfo[1], info.ledgerInfo[2], info.ledgerInfo[0]])
    keeps_one = policy(managed_ledger_offload_threshold_in_bytes=50)
    assert planner.due(shuffled, writing_to=None, policy=keeps_one, now_ms=NOW) == (10, 11)


@pytest.mark.parametrize(
    ("name", "system"),
    [
        ("persistent://pulsar/system/transaction_coordinator_assign", True),
        ("persistent://public/default/__change_events", True),
        ("persistent://public/default/orders__", False),
        ("persistent://pulsar/systems/t", False),
    ],
)
def test_system_topics_are_known_by_their_names(name: str, *, system: bool) -> None:
    assert planner.is_system_topic(TopicName.parse(name)) is system


def explained(
    row: Row, work: OffloadActivity | None = None, *, name: str = TOPIC, obstacle: str | None = None, **changes: object
) -> tuple[LedgerState, str]:
    (found,) = explain(
        name,
        info_of([row]),
        writing_to=None,
        policy=policy(**changes),
        obstacle=obstacle,
        work=work or OffloadActivity(),
        now_ms=NOW,
    )
    return found.state, found.sentence


PLAIN = Row(50, 10, "none")
FAILURE = {10: LedgerFailure("the bucket is gone", 2, NOW + 5000)}


@pytest.mark.parametrize(
    ("row", "given", "state", "says"),
    [
        (Row(None, 0, "none"), {}, LedgerState.OPEN, "being written"),
        (Row(0, 10, "none"), {}, LedgerState.EMPTY, "no entries"),
        (PLAIN, {}, LedgerState.NOT_TRIGGERED, "only a manual offload"),
        (PLAIN, {"name": "pulsar/system/persistent/t"}, LedgerState.SYSTEM_TOPIC, "never"),
        (PLAIN, {"obstacle": "set managedLedgerOffloadDriver"}, LedgerState.NO_TIER, "managedLedgerOffloadDriver"),
        (PLAIN, {"managed_ledger_offload_threshold_in_bytes": 50}, LedgerState.WAITING, "50 B, and managed"),
        (PLAIN, {"managed_ledger_offload_threshold_in_bytes": 49}, LedgerState.DUE, "due"),
        (PLAIN, {"managed_ledger_offload_threshold_in_seconds": 15}, LedgerState.WAITING, "in 5 s"),
        (PLAIN, {"managed_ledger_offload_threshold_in_seconds": 10}, LedgerState.DUE, "due"),
        (PLAIN, {"work": OffloadActivity(manual_before=11)}, LedgerState.DUE, "due"),
        (PLAIN, {"work": OffloadActivity(running=frozenset({10}))}, LedgerState.OFFLOADING, "now"),
        (
            PLAIN,
            {"work": OffloadActivity(failures=FAILURE)},
            LedgerState.FAILED,
            "2 times: the bucket is gone. Retried in 5",
        ),
        (Row(50, 10, "freed"), {}, LedgerState.FREED, "hot copy is deleted"),
        (
            Row(50, 10, "complete"),
            {"managed_ledger_offload_deletion_lag_in_millis": None},
            LedgerState.OFFLOADED,
            "DeletionLag",
        ),
        (
            Row(50, 10, "complete"),
            {"managed_ledger_offload_deletion_lag_in_millis": 10_000},
            LedgerState.WAITING_FOR_LAG,
            "in 0 s",
        ),
        (
            Row(50, 10, "complete"),
            {"managed_ledger_offload_deletion_lag_in_millis": 9_999},
            LedgerState.TO_BE_FREED,
            "verified",
        ),
        (
            Row(50, 10, "complete"),
            {"managed_ledger_offload_deletion_lag_in_millis": 0, "work": OffloadActivity(failures=FAILURE)},
            LedgerState.TO_BE_FREED,
            "the bucket is gone",
        ),
    ],
)
def test_every_ledger_is_explained(row: Row, given: dict[str, object], state: LedgerState, says: str) -> None:
    found, sentence = explained(row, **given)  # type: ignore[arg-type]  # by name
    assert found is state
    assert says in sentence


def test_no_ledger_is_due_that_an_assigned_segment_may_reach_into() -> None:
    info = info_of([Row(10, 0, "none")] * 4)
    info.ledgerInfo[1].offloadContext.offloadSegment.add()
    due = partial(planner.due, writing_to=None, policy=policy(managed_ledger_offload_threshold_in_bytes=0), now_ms=NOW)
    assert due(info) == (10,)
    info.ledgerInfo[1].offloadContext.offloadSegment[0].complete = True
    assert due(info) == (10, 12, 13)


def test_the_lag_of_a_ledger_in_segments_counts_from_the_newest_of_them() -> None:
    """Whichever was committed last: that of the ledger's beginning may have been started again."""
    policy = BrokerConfig(managed_ledger_offload_deletion_lag_in_millis=1000)
    info = ManagedLedgerInfo()
    row = info.ledgerInfo.add(ledgerId=1, entries=4, size=4, timestamp=NOW)
    for end, at_ms in ((0, NOW + 10), (1, NOW + 500), (3, NOW + 20)):
        segment = row.offloadContext.offloadSegment.add(complete=True, endEntryId=end, offloadedTimestamp=at_ms)
        segment.uidLsb = end + 1
    assert planner.freed_at_ms(policy, row) == NOW + 500 + 1000
    assert planner.freeable(info, policy=policy, now_ms=NOW + 1500) == ()
    assert planner.freeable(info, policy=policy, now_ms=NOW + 1501) == (1,)
