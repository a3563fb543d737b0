"""Subscriptions that hold back trimming, against a scripted broker and against a server of ours."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.hold_broker import EARLIEST, TOPIC, HoldBroker
from tests.support.raw_client import ErrorAnswer, RawClient, encode_send
from tests.support.scripted_broker import LookupResponse, SectionKind, answer_lookup
from tests.support.servers import free_port
from tests.support.serving import serving

from afterglow.errors import (
    AccessDenied,
    HotLogError,
    HotLogTimeout,
    HotLogUnavailable,
    InvalidName,
    NotSupported,
    SubscriptionBusy,
    TopicMissing,
)
from afterglow.format.entry import encode_entry
from afterglow.format.position import Position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.hot.pulsar import HoldState, PulsarAddress, SkippedRange, SubscriptionHolds
from afterglow.hot.pulsar.hold_state import is_recreated, joined, skipped_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.scripted_broker import Reaction, ScriptedBroker, Session
    from tests.support.serving import Served

WAIT_S = 120.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def start(stack: ExitStack) -> Callable[..., HoldBroker]:
    def begin(**reactions: Reaction) -> HoldBroker:
        broker = HoldBroker(**reactions)
        stack.callback(broker.close)
        return broker

    return begin


@pytest.fixture
def holding(stack: ExitStack) -> Callable[..., SubscriptionHolds]:
    def begin(broker: ScriptedBroker, **options: Any) -> SubscriptionHolds:
        return stack.enter_context(SubscriptionHolds(PulsarAddress(broker.url), **{"timeout_s": 30.0, **options}))

    return begin


def held_again(holds: SubscriptionHolds, topic: str = TOPIC) -> HoldState:
    """The state of a topic once it is held after an interruption."""
    return holds.hold(topic).result(WAIT_S)


def subscribes(broker: ScriptedBroker, count: int) -> list[wire.CommandSubscribe]:
    return [command.subscribe for command in broker.await_commands(SectionKind.SUBSCRIBE, count)]


def after_unload(holds: SubscriptionHolds, broker: HoldBroker) -> HoldState:
    """The state after the topic was unloaded and is held again."""
    count = len(broker.translated(SectionKind.SUBSCRIBE))
    broker.unload()
    subscribes(broker, count + 1)
    return held_again(holds)


# --- holding -------------------------------------------------------------------------------------------------------


def test_a_hold_is_a_durable_exclusive_subscription_from_the_earliest_entry_that_creates_no_topic(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    broker = start()
    before_ms = time.time_ns() // 1_000_000
    state = holding(broker, subscription="tier").hold("t").result(WAIT_S)
    (request,) = subscribes(broker, 1)
    assert (request.topic, request.subscription, request.durable) == (TOPIC, "tier", True)
    assert request.subType == wire.CommandSubscribe.Exclusive
    assert request.initialPosition == wire.CommandSubscribe.Earliest
    assert not request.force_topic_creation
    assert state.held
    assert state.since_ms is not None
    assert before_ms <= state.since_ms <= time.time_ns() // 1_000_000
    assert (state.mark_delete, state.acknowledged, state.last_error) == (EARLIEST, None, None)
    assert not state.recreated
    assert state.may_be_lost is None


def test_no_permit_is_ever_granted(start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]) -> None:
    broker = start()
    holds = holding(broker)
    holds.hold(TOPIC).result(WAIT_S)
    holds.acknowledge(TOPIC, Position(7, 3)).result(WAIT_S)
    after_unload(holds, broker)
    holds.last_message_id(TOPIC).result(WAIT_S)
    holds.release(TOPIC).result(WAIT_S)
    assert not broker.translated(SectionKind.FLOW)


def test_a_thousand_idle_topics_take_one_connection_one_thread_and_no_processor_time(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    broker = start()
    holds = holding(broker)
    before = set(threading.enumerate())
    for future in [holds.hold(f"t-{number}") for number in range(1000)]:
        assert future.result(WAIT_S).held
    ours = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("afterglow-hold")]
    assert len(ours) == 2  # for the broker, and for lookups
    assert len({id(session) for session, _ in broker.consumers.values()}) == 1
    time.sleep(0.5)  # lets what follows the last response end
    used = time.process_time()
    time.sleep(3.0)  # the measurement
    assert time.process_time() - used < 0.03


def test_topics_of_several_brokers_have_a_connection_each(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    owners = [start(), start()]

    def lookup(session: Session, command: wire.BaseCommand) -> None:
        owner = owners[int(command.lookupTopic.topic[-1]) % 2]
        answer_lookup(session, command, LookupResponse.Connect, owner.url)

    service = start(lookup=lookup)
    holds = holding(service)
    for future in [holds.hold(f"t{number}") for number in range(8)]:
        future.result(WAIT_S)
    for owner in owners:
        assert len(owner.consumers) == 4
        assert len(owner.translated(SectionKind.CONNECT)) == 1
    assert not service.translated(SectionKind.SUBSCRIBE)


def test_a_redirect_is_followed_to_the_owner(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    owner = start()
    first = start(
        lookup=lambda session, command: answer_lookup(
            session, command, LookupResponse.Redirect, owner.url, authoritative=True
        )
    )
    assert holding(first).hold(TOPIC).result(WAIT_S).held
    assert owner.translated(SectionKind.LOOKUP)[0].lookupTopic.authoritative
    assert not first.consumers


def test_a_proxy_gets_the_broker_to_connect_to(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    proxy = start(
        lookup=lambda session, command: answer_lookup(
            session, command, LookupResponse.Connect, "pulsar://inside.example:6650", proxy_through_service_url=True
        )
    )
    assert holding(proxy).hold(TOPIC).result(WAIT_S).held
    urls = [command.connect.proxy_to_broker_url for command in proxy.translated(SectionKind.CONNECT)]
    assert urls == ["", "inside.example:6650"]


# --- acknowledgements ----------------------------------------------------------------------------------------------


def test_an_acknowledgement_is_cumulative_and_counts_once_its_receipt_came(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    broker = start()
    holds = holding(broker)
    holds.hold(TOPIC).result(WAIT_S)
    assert holds.acknowledge(TOPIC, Position(7, 40)).result(WAIT_S) == Position(7, 40)
    assert holds.state(TOPIC).acknowledged == Position(7, 40)
    assert holds.acknowledge(TOPIC, Position(7, 30)).result(WAIT_S) == Position(7, 30)
    assert len(broker.translated(SectionKind.ACK)) == 1, "an older position was sent"


def test_without_a_receipt_nothing_counts_as_acknowledged(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    broker = start(ack=lambda *_: None)
    holds = holding(broker)
    holds.hold(TOPIC).result(WAIT_S)
    pending = holds.acknowledge(TOPIC, Position(7, 40))
    broker.await_commands(SectionKind.ACK)
    holds.last_message_id(TOPIC).result(WAIT_S)
    assert not pending.done()
    assert holds.state(TOPIC).acknowledged is None


def test_an_acknowledgement_that_was_lost_with_its_connection_is_sent_again(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    lost: list[Any] = []

    def ack(session: Session, command: wire.BaseCommand) -> None:
        if not lost:
            lost.append(command)
            session.socket.close()
        else:
            HoldBroker._ack(broker, session, command)

    broker = start(ack=ack)
    holds = holding(broker)
    holds.hold(TOPIC).result(WAIT_S)
    assert holds.acknowledge(TOPIC, Position(7, 40)).result(WAIT_S) == Position(7, 40)
    assert broker.marked[TOPIC] == Position(7, 40)
    state = held_again(holds)
    assert not state.recreated
    assert state.may_be_lost is None


def test_the_committed_end_is_acknowledged_when_a_subscription_behind_it_is_held(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    broker = start()
    broker.marked[TOPIC] = Position(7, 10)
    holds = holding(broker)
    state = holds.hold(TOPIC, acknowledged=Position(7, 20)).result(WAIT_S)
    broker.await_commands(SectionKind.ACK)
    holds.last_message_id(TOPIC).result(WAIT_S)
    assert holds.state(TOPIC).mark_delete == Position(7, 20)
    assert not state.recreated, "a broker that crashed may have forgotten acknowledgements"


def test_a_refused_acknowledgement_is_an_error_and_the_topic_stays_held(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    def ack(session: Session, command: wire.BaseCommand) -> None:
        response = wire.CommandAckResponse(consumer_id=command.ack.consumer_id, request_id=command.ack.request_id)
        response.error, response.message = wire.NotAllowedError, "as scripted"
        session.send(SectionKind(type=SectionKind.ACK_RESPONSE, ackResponse=response))

    broker = start(ack=ack)
    holds = holding(broker)
    holds.hold(TOPIC).result(WAIT_S)
    with pytest.raises(NotSupported, match=f"ACK of subscription 'afterglow' on {TOPIC}"):
        holds.acknowledge(TOPIC, Position(7, 40)).result(WAIT_S)
    assert holds.state(TOPIC).held
    assert isinstance(holds.state(TOPIC).last_error, NotSupported)


def test_a_topic_that_is_not_to_be_held_cannot_be_acknowledged(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    holds = holding(start())
    with pytest.raises(HotLogError, match="call hold"):
        holds.acknowledge(TOPIC, Position(7, 1))


# --- interruptions -------------------------------------------------------------------------------------------------


def test_a_topic_that_was_unloaded_is_held_again(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    broker = start()
    holds = holding(broker)
    holds.hold(TOPIC).result(WAIT_S)
    holds.acknowledge(TOPIC, Position(7, 5)).result(WAIT_S)
    state = after_unload(holds, broker)
    assert state.held
    assert state.last_error is None
    assert state.acknowledged == Position(7, 5)
    assert len(broker.translated(SectionKind.LOOKUP)) == 2


def test_a_restarted_broker_gets_all_its_topics_back(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    broker = start()
    holds = holding(broker)
    topics = [f"persistent://public/default/t{number}" for number in range(20)]
    for future in [holds.hold(topic) for topic in topics]:
        future.result(WAIT_S)
    session, _ = broker.consumers[topics[0]]
    session.socket.shutdown(2)
    subscribes(broker, 40)
    for topic in topics:
        assert held_again(holds, topic).held


def test_a_broker_that_is_down_is_tried_until_it_is_up(
    stack: ExitStack, holding: Callable[..., SubscriptionHolds], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    holds = stack.enter_context(SubscriptionHolds(PulsarAddress(f"pulsar://127.0.0.1:{port}")))
    first = holds.hold(TOPIC)
    probe = holds.last_message_id(TOPIC)
    with pytest.raises(HotLogUnavailable, match="not held now"):
        probe.result(WAIT_S)
    broker = HoldBroker(port)
    stack.callback(broker.close)
    assert first.result(WAIT_S).held


def test_a_broker_that_does_not_respond_to_one_topic_does_not_delay_another(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    seen: list[str] = []

    def subscribe(session: Session, command: wire.BaseCommand) -> None:
        topic = command.subscribe.topic
        seen.append(topic)
        if topic != TOPIC or seen.count(TOPIC) > 1:
            HoldBroker._subscribe(broker, session, command)

    broker = start(subscribe=subscribe)
    holds = holding(broker, timeout_s=2.0)
    silent = holds.hold(TOPIC)
    assert holds.hold("other").result(WAIT_S).held
    assert silent.result(WAIT_S).held
    (closed,) = broker.translated(SectionKind.CLOSE_CONSUMER)
    first = next(request for request in subscribes(broker, 3) if request.topic == TOPIC)
    assert closed.close_consumer.consumer_id == first.consumer_id, "the broker may have connected it"


def test_a_probe_without_a_response_fails_in_time(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    probes: list[Any] = []

    def last(session: Session, command: wire.BaseCommand) -> None:
        probes.append(command)
        if len(probes) == 1:
            HoldBroker._get_last_message_id(broker, session, command)

    broker = start(get_last_message_id=last)
    holds = holding(broker, timeout_s=1.0)
    holds.hold(TOPIC).result(WAIT_S)
    with pytest.raises(HotLogTimeout):
        holds.last_message_id(TOPIC).result(WAIT_S)


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "fix"),
    [
        (wire.AuthenticationError, AccessDenied, "--token"),
        (wire.AuthorizationError, AccessDenied, "grant-permission public/default .*--actions consume"),
        (wire.TopicNotFound, TopicMissing, "the topic was deleted"),
        (wire.NotAllowedError, NotSupported, "maxSubscriptionsPerTopic"),
    ],
)
def test_a_permanent_refusal_names_topic_subscription_and_fix_and_is_not_retried(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds], code: Any, kind: Any, fix: str
) -> None:
    broker = start()
    broker.refusals[TOPIC] = [code]
    holds = holding(broker)
    with pytest.raises(
        kind, match=f"SUBSCRIBE of subscription 'afterglow' on {TOPIC} was refused: as scripted; .*{fix}"
    ):
        holds.hold(TOPIC).result(WAIT_S)
    assert isinstance(holds.state(TOPIC).last_error, kind)
    assert not holds.state(TOPIC).held
    assert holds.hold(TOPIC).result(WAIT_S).held, "a later hold tries again"
    assert len(broker.translated(SectionKind.SUBSCRIBE)) == 2


def test_a_token_that_is_not_accepted_is_named_with_its_setting(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    broker = start(connect=lambda session, _: session.error(wire.AuthenticationError))
    with pytest.raises(AccessDenied, match=rf"{TOPIC}.*set --token \(AFTERGLOW_TOKEN\)"):
        holding(broker).hold(TOPIC).result(WAIT_S)


def test_a_subscription_of_another_consumer_is_taken_once_that_one_has_ended(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    seen: list[HoldState] = []

    def subscribe(session: Session, command: wire.BaseCommand) -> None:
        seen.append(holds.state(TOPIC))
        HoldBroker._subscribe(broker, session, command)

    broker = start(subscribe=subscribe)
    broker.refusals[TOPIC] = [wire.ConsumerBusy]
    holds = holding(broker)
    assert holds.hold(TOPIC).result(WAIT_S).held
    error = seen[1].last_error
    assert isinstance(error, SubscriptionBusy)
    assert "stop the other consumer" in str(error)


def test_a_topic_that_is_deleted_while_it_is_held_is_reported_and_left_alone(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    broker = start()
    holds = holding(broker)
    holds.hold(TOPIC).result(WAIT_S)
    broker.refusals[TOPIC] = [wire.TopicNotFound]
    pending = holds.acknowledge(TOPIC, Position(7, 1))
    pending.result(WAIT_S)
    broker.unload()
    subscribes(broker, 2)
    failed = holds.unsubscribe("other")  # passes through the same threads behind it
    failed.result(WAIT_S)
    assert isinstance(holds.state(TOPIC).last_error, TopicMissing)
    assert not holds.state(TOPIC).held


def test_a_permission_that_is_withdrawn_for_a_while_does_not_end_a_hold(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds], monkeypatch: pytest.MonkeyPatch
) -> None:
    from afterglow.hot.pulsar import subscription_hold
    from afterglow.pacing import Backoff

    monkeypatch.setattr(subscription_hold, "_BACKOFF_S", Backoff(0.01, 0.05))
    broker = start()
    holds = holding(broker)
    holds.hold(TOPIC).result(WAIT_S)
    broker.refusals[TOPIC] = [wire.AuthorizationError, wire.AuthorizationError]
    broker.unload()
    subscribes(broker, 4)
    assert held_again(holds).held


def test_names_that_are_not_valid_are_refused_at_once(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    broker = start()
    with pytest.raises(InvalidName):
        holding(broker, subscription="")
    with pytest.raises(InvalidName):
        holding(broker).hold("a/b")


# --- what the cluster does behind our back --------------------------------------------------------------------------


def test_a_subscription_that_was_deleted_and_lost_entries_is_noticed_with_the_range(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    broker = start()
    holds = holding(broker)
    holds.hold(TOPIC).result(WAIT_S)
    holds.acknowledge(TOPIC, Position(7, 40)).result(WAIT_S)
    broker.marked[TOPIC] = Position(9, -1)  # deleted, ledgers 7 and 8 trimmed, created again
    state = after_unload(holds, broker)
    assert state.recreated
    assert state.may_be_lost == SkippedRange(Position(7, 40), Position(9, -1))
    assert str(state.may_be_lost) == "entries behind 7:40 through 9:-1"


def test_a_subscription_that_was_deleted_before_entries_were_trimmed_lost_nothing(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    broker = start()
    holds = holding(broker)
    holds.hold(TOPIC).result(WAIT_S)
    holds.acknowledge(TOPIC, Position(7, 40)).result(WAIT_S)
    broker.marked[TOPIC] = EARLIEST
    state = after_unload(holds, broker)
    assert state.recreated
    assert state.may_be_lost is None
    broker.await_commands(SectionKind.ACK, 2)
    holds.last_message_id(TOPIC).result(WAIT_S)
    assert broker.marked[TOPIC] == Position(7, 40), "acknowledged again"


def test_entries_that_expire_while_the_topic_is_held_are_noticed_by_the_next_probe(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    broker = start()
    broker.marked[TOPIC] = Position(7, 10)
    holds = holding(broker)
    holds.hold(TOPIC, acknowledged=Position(7, 10)).result(WAIT_S)
    broker.marked[TOPIC] = Position(7, 60)
    found = holds.last_message_id(TOPIC).result(WAIT_S)
    assert (found.last, found.mark_delete) == (Position(7, 99), Position(7, 60))
    state = holds.state(TOPIC)
    assert state.may_be_lost == SkippedRange(Position(7, 10), Position(7, 60))
    assert not state.recreated


def test_the_start_of_the_next_ledger_is_not_a_loss_where_the_caller_knows_of_no_entries_between(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    broker = start()
    asked: list[tuple[str, Position, Position]] = []

    def has_entries(topic: Any, after: Position, through: Position) -> bool:
        asked.append((str(topic), after, through))
        return False

    broker.marked[TOPIC] = Position(7, 99)
    holds = holding(broker, has_entries=has_entries)
    holds.hold(TOPIC, acknowledged=Position(7, 99)).result(WAIT_S)
    broker.marked[TOPIC] = Position(8, -1)
    state = after_unload(holds, broker)
    assert asked == [(TOPIC, Position(7, 99), Position(8, -1))]
    assert state.may_be_lost is None
    assert not state.recreated


def test_a_broker_that_reports_no_mark_delete_position_is_held_and_acknowledged(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    broker = start()
    broker.reports_mark_delete = False
    broker.last = Position(-1, -1)
    holds = holding(broker)
    assert holds.hold(TOPIC).result(WAIT_S).mark_delete is None
    assert holds.acknowledge(TOPIC, Position(7, 1)).result(WAIT_S)
    assert holds.last_message_id(TOPIC).result(WAIT_S).last is None


def test_skipped_ranges_are_those_ahead_of_every_acknowledgement() -> None:
    def has_entries(_: Position, __: Position) -> bool:
        return True

    five, nine = Position(3, 5), Position(3, 9)
    assert skipped_range(None, nine, has_entries) is None
    assert skipped_range(nine, nine, has_entries) is None
    assert skipped_range(nine, five, has_entries) is None
    skipped = skipped_range(five, nine, has_entries)
    assert skipped == SkippedRange(five, nine)
    assert not is_recreated(five, nine, skipped), "expired or skipped: a new subscription is at the start of a ledger"
    assert not is_recreated(None, Position(3, -1), None)
    assert joined(skipped, SkippedRange(Position(3, 2), Position(3, 7))) == SkippedRange(Position(3, 2), nine)
    assert joined(None, skipped) == skipped


# --- the end of a hold ---------------------------------------------------------------------------------------------


def test_release_closes_the_consumer_and_keeps_the_subscription(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    broker = start()
    holds = holding(broker)
    holds.hold(TOPIC).result(WAIT_S)
    holds.release(TOPIC).result(WAIT_S)
    assert len(broker.translated(SectionKind.CLOSE_CONSUMER)) == 1
    assert not broker.translated(SectionKind.UNSUBSCRIBE)
    assert TOPIC in broker.marked
    assert holds.state(TOPIC) == HoldState(TOPIC)
    assert holds.hold(TOPIC).result(WAIT_S).held


def test_unsubscribe_deletes_the_subscription_also_where_it_is_not_held(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    broker = start()
    holds = holding(broker)
    holds.hold(TOPIC).result(WAIT_S)
    broker.marked["persistent://public/default/other"] = Position(7, 3)
    holds.unsubscribe(TOPIC).result(WAIT_S)
    holds.unsubscribe("other").result(WAIT_S)
    assert broker.marked == {}
    assert not holds.state(TOPIC).held


def test_unsubscribe_is_repeated_after_a_lost_connection(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    lost: list[Any] = []

    def unsubscribe(session: Session, command: wire.BaseCommand) -> None:
        if lost:
            HoldBroker._unsubscribe(broker, session, command)
        else:
            lost.append(command)
            session.socket.shutdown(2)

    broker = start(unsubscribe=unsubscribe)
    holds = holding(broker)
    holds.hold(TOPIC).result(WAIT_S)
    holds.unsubscribe(TOPIC).result(WAIT_S)
    assert broker.marked == {}


def test_close_ends_every_thread_and_fails_what_is_pending(
    start: Callable[..., HoldBroker], holding: Callable[..., SubscriptionHolds]
) -> None:
    broker = start(ack=lambda *_: None)
    before = set(threading.enumerate())
    holds = SubscriptionHolds(PulsarAddress(broker.url))
    holds.hold(TOPIC).result(WAIT_S)
    pending = holds.acknowledge(TOPIC, Position(7, 1))
    holds.close()
    with pytest.raises(HotLogError, match="closed"):
        pending.result(0)
    with pytest.raises(HotLogError, match="closed"):
        holds.hold(TOPIC)
    assert not [each for each in set(threading.enumerate()) - before if each.name.startswith("afterglow-hold")]


# --- a server of ours ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home: Path = tmp_path_factory.mktemp("home")
    conf = home / "broker.conf"
    conf.write_text("managedLedgerMaxEntriesPerLedger=10\nmanagedLedgerMinLedgerRolloverTimeMinutes=0\n")
    with serving(home / "home", "--conf", str(conf)) as served:
        yield served


def publish(served: Served, topic: str, count: int) -> list[Position]:
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    with RawClient(served.service_url) as client:
        producer = client.open_producer(topic)
        frames = (encode_send(producer, number, encode_entry(metadata, b"x")) for number in range(count))
        return client.publish(frames, window=1)


def ledgers(served: Served, topic: str) -> set[int]:
    """The ledgers that remain after a trim."""
    served.admin("POST", f"persistent/public/default/{topic}/trim")
    stats = served.admin("GET", f"persistent/public/default/{topic}/internalStats")
    return {row["ledgerId"] for row in stats["ledgers"]}


def test_a_server_keeps_entries_until_they_are_acknowledged(served: Served) -> None:
    served.admin("PUT", "persistent/public/default/kept")
    with SubscriptionHolds(PulsarAddress(served.service_url)) as holds:
        holds.hold("kept").result(WAIT_S)
        positions = publish(served, "kept", 35)
        assert {each.ledger_id for each in positions} <= ledgers(served, "kept")
        assert holds.last_message_id("kept").result(WAIT_S).last == positions[-1]
        holds.acknowledge("kept", positions[19]).result(WAIT_S)
        deadline = time.monotonic() + WAIT_S
        while positions[0].ledger_id in ledgers(served, "kept"):
            assert time.monotonic() < deadline, "acknowledged entries are not trimmed"
        assert positions[20].ledger_id in ledgers(served, "kept")
        stats = served.admin("GET", "persistent/public/default/kept/stats")
        assert stats["subscriptions"]["afterglow"]["type"] == "Exclusive"
        with RawClient(served.service_url) as client, pytest.raises(ErrorAnswer, match="ConsumerBusy"):
            client.subscribe("persistent://public/default/kept", "afterglow")


def test_a_server_that_unloads_a_topic_gets_its_subscription_back(served: Served) -> None:
    served.admin("PUT", "persistent/public/default/moved")
    with SubscriptionHolds(PulsarAddress(served.service_url)) as holds:
        holds.hold("moved").result(WAIT_S)
        positions = publish(served, "moved", 5)
        holds.acknowledge("moved", positions[2]).result(WAIT_S)
        since_ms = holds.state("moved").since_ms
        served.admin("PUT", "persistent/public/default/moved/unload")
        deadline = time.monotonic() + WAIT_S
        while (state := holds.hold("moved").result(WAIT_S)).since_ms == since_ms:
            assert time.monotonic() < deadline
        assert state.mark_delete == positions[2]
        assert state.may_be_lost is None


def test_a_server_deletes_the_subscription_on_unsubscribe(served: Served) -> None:
    served.admin("PUT", "persistent/public/default/ended")
    with SubscriptionHolds(PulsarAddress(served.service_url)) as holds:
        holds.hold("ended").result(WAIT_S)
        holds.unsubscribe("ended").result(WAIT_S)
    assert served.admin("GET", "persistent/public/default/ended/subscriptions") == []


def test_a_server_does_not_create_a_topic_for_a_hold(served: Served) -> None:
    with SubscriptionHolds(PulsarAddress(served.service_url)) as holds, pytest.raises(TopicMissing):
        holds.hold("never-made").result(WAIT_S)
