"""Raw reads from a scripted broker, which does what ours does not do on demand."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.scripted_broker import ENTRIES, LEDGER, LookupResponse, ScriptedBroker, SectionKind, answer_lookup

from afterglow.errors import (
    AccessDenied,
    ConfigError,
    EntriesMissing,
    HotLogTimeout,
    InvalidFrame,
    TopicMissing,
)
from afterglow.format.frames import iter_entries
from afterglow.format.position import LedgerRange, Position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.hot.pulsar import PulsarAddress, RawReader, partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.scripted_broker import Reaction, Session


@pytest.fixture
def start() -> Iterator[Callable[..., ScriptedBroker]]:
    with ExitStack() as stack:

        def begin(**reactions: Reaction) -> ScriptedBroker:
            broker = ScriptedBroker(**reactions)
            stack.callback(broker.close)
            return broker

        yield begin


def read(url: str, first: int = 0, last: int = 19, token: str | None = None, **options: Any) -> list[bytes]:
    """The entries from ``first`` to ``last``, one run after the other."""
    options = {"timeout_s": 10, "deadline_s": 20, **options}
    with RawReader(PulsarAddress(url, token), "t", **options) as reader:
        runs = list(reader.read(Position(LEDGER, first), Position(LEDGER, last)))
    return [bytes(data) for run in runs for _, data in iter_entries(run.data, run.frames)]


# --- finding the broker --------------------------------------------------------------------------------------------


def test_redirects_are_followed_with_their_authoritative_flag(start: Callable[..., ScriptedBroker]) -> None:
    owner = start()
    middle = start(
        lookup=lambda session, command: answer_lookup(
            session, command, LookupResponse.Redirect, owner.url, authoritative=True
        )
    )
    first = start(lookup=lambda session, command: answer_lookup(session, command, LookupResponse.Redirect, middle.url))
    assert read(first.url) == ENTRIES
    asked = [broker.translated(SectionKind.LOOKUP)[0].lookupTopic.authoritative for broker in (first, middle, owner)]
    assert asked == [False, False, True]
    assert not first.translated(SectionKind.SUBSCRIBE)
    assert owner.translated(SectionKind.SUBSCRIBE)


def test_redirects_without_end_are_given_up(start: Callable[..., ScriptedBroker]) -> None:
    broker = start(
        lookup=lambda session, command: answer_lookup(session, command, LookupResponse.Redirect, session.broker.url)
    )
    with pytest.raises(HotLogTimeout, match="redirects"):
        read(broker.url, deadline_s=0.5)
    assert len(broker.translated(SectionKind.CONNECT)) < 30, "no pause between attempts"


def test_a_proxy_gets_the_broker_to_connect_to(start: Callable[..., ScriptedBroker]) -> None:
    def behind(session: Session, command: wire.BaseCommand) -> None:
        answer_lookup(
            session, command, LookupResponse.Connect, "pulsar://inside.example:6650", proxy_through_service_url=True
        )

    proxy = start(lookup=behind)
    assert read(proxy.url) == ENTRIES
    urls = [command.connect.proxy_to_broker_url for command in proxy.translated(SectionKind.CONNECT)]
    assert urls == ["", "inside.example:6650"]


def test_a_host_that_is_down_costs_nothing_where_another_is_up(start: Callable[..., ScriptedBroker]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        down = gone.getsockname()[1]
    up = start()
    assert read(f"pulsar://127.0.0.1:{down},{up.url.removeprefix('pulsar://')}") == ENTRIES


def test_the_listener_that_was_chosen_is_asked_for(start: Callable[..., ScriptedBroker]) -> None:
    broker = start()
    address = PulsarAddress(broker.url, listener_name="inside")
    with RawReader(address, "t") as reader:
        next(reader.read(Position(LEDGER, 0), Position(LEDGER, 0)))
    assert broker.translated(SectionKind.LOOKUP)[0].lookupTopic.advertised_listener_name == "inside"


def test_a_broker_without_the_required_kind_of_address_is_reported(start: Callable[..., ScriptedBroker]) -> None:
    broker = start(lookup=lambda session, command: answer_lookup(session, command, LookupResponse.Connect, ""))
    with pytest.raises(ConfigError, match="brokerServicePort"):
        read(broker.url)


def failed_lookup(code: Any) -> Reaction:
    return lambda session, command: answer_lookup(
        session, command, LookupResponse.Failed, "", error=code, message="as scripted"
    )


def test_refusals_for_good_are_not_tried_again(start: Callable[..., ScriptedBroker]) -> None:
    for code, kind in [(wire.TopicNotFound, TopicMissing), (wire.AuthorizationError, AccessDenied)]:
        broker = start(lookup=failed_lookup(code))
        with pytest.raises(kind, match="as scripted"):
            read(broker.url)
        assert len(broker.translated(SectionKind.LOOKUP)) == 1


def test_a_broker_that_is_not_ready_is_asked_until_the_deadline(start: Callable[..., ScriptedBroker]) -> None:
    broker = start(lookup=failed_lookup(wire.ServiceNotReady))
    with pytest.raises(HotLogTimeout, match=r"deadline_s=0\.5.*ServiceNotReady: as scripted"):
        read(broker.url, deadline_s=0.5)
    assert len(broker.translated(SectionKind.LOOKUP)) > 1


def test_partitions_are_asked_for_without_creating_any(start: Callable[..., ScriptedBroker]) -> None:
    def answer(session: Session, command: wire.BaseCommand) -> None:
        assert not command.partitionMetadata.metadata_auto_creation_enabled
        found = wire.CommandPartitionedTopicMetadataResponse(
            request_id=command.partitionMetadata.request_id, partitions=4
        )
        session.send(SectionKind(type=SectionKind.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=found))

    assert partitions(PulsarAddress(start(partitioned_metadata=answer).url), "t") == 4


# --- the connection ------------------------------------------------------------------------------------------------


def challenge(session: Session) -> None:
    command = SectionKind(type=SectionKind.AUTH_CHALLENGE)
    command.authChallenge.challenge.auth_method_name = "token"
    session.send(command)


def test_a_challenge_is_answered_in_the_handshake_and_while_reading(start: Callable[..., ScriptedBroker]) -> None:
    def flow(session: Session, command: wire.BaseCommand) -> None:
        challenge(session)
        ScriptedBroker._flow(session, command)

    broker = start(
        connect=lambda session, _: challenge(session),
        auth_response=ScriptedBroker._connect,
        flow=flow,
    )
    assert read(broker.url, token="secret") == ENTRIES
    answers = broker.translated(SectionKind.AUTH_RESPONSE)
    assert len(answers) > 1
    for command in answers:
        response = command.authResponse.response
        assert (response.auth_method_name, response.auth_data) == ("token", b"secret")


def test_signs_of_life_are_given(start: Callable[..., ScriptedBroker]) -> None:
    def flow(session: Session, command: wire.BaseCommand) -> None:
        session.send(SectionKind(type=SectionKind.PING, ping=wire.CommandPing()))
        ScriptedBroker._flow(session, command)

    broker = start(flow=flow)
    assert read(broker.url) == ENTRIES
    assert len(broker.translated(SectionKind.PONG)) == len(broker.translated(SectionKind.FLOW))


def test_a_broker_that_falls_silent_is_left_for_a_new_connection(start: Callable[..., ScriptedBroker]) -> None:
    """It sends some entries, then nothing and no end either, as behind a network that has gone."""
    silent: list[int] = []

    def flow(session: Session, command: wire.BaseCommand) -> None:
        if len(silent) < 2 and session.next_entry >= 5:
            silent.append(session.next_entry)
        elif session.next_entry < 5 or len(silent) == 2:
            ScriptedBroker._flow(session, command)

    broker = start(flow=flow, get_last_message_id=lambda *_: None)
    assert read(broker.url, receive_bytes=200, timeout_s=0.3) == ENTRIES
    assert len(broker.translated(SectionKind.SUBSCRIBE)) > 1


def test_a_broker_that_never_answers_ends_at_the_deadline(start: Callable[..., ScriptedBroker]) -> None:
    broker = start(connect=lambda *_: None)
    begun = time.monotonic()
    with pytest.raises(HotLogTimeout, match=r"deadline_s=0\.4"):
        read(broker.url, timeout_s=0.1, deadline_s=0.4)
    assert time.monotonic() - begun < 5


def test_an_unreachable_broker_ends_the_read_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"pulsar://127.0.0.1:{gone.getsockname()[1]}"
    with pytest.raises(HotLogTimeout, match="cannot be reached"):
        read(url, deadline_s=0.2)


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x08\0\0\0\x04\xff\xff\xff\xff"])
def test_what_speaks_another_protocol_is_refused_at_once(start: Callable[..., ScriptedBroker], garbage: bytes) -> None:
    broker = start(connect=lambda session, _: session.socket.sendall(garbage))
    with pytest.raises(InvalidFrame):
        read(broker.url)


def test_an_entry_larger_than_the_broker_takes_is_refused(start: Callable[..., ScriptedBroker]) -> None:
    def flow(session: Session, _: wire.BaseCommand) -> None:
        session.socket.sendall((1000 + 10_240 + 1).to_bytes(4, "big") + bytes(4))

    with pytest.raises(InvalidFrame, match="maxMessageSize"):
        read(start(flow=flow).url)


# --- the subscription ----------------------------------------------------------------------------------------------


def test_a_consumer_begins_before_its_first_entry_and_ends_with_its_last(start: Callable[..., ScriptedBroker]) -> None:
    broker = start()
    assert read(broker.url, 5, 9) == ENTRIES[5:10]
    (subscribe,) = (command.subscribe for command in broker.translated(SectionKind.SUBSCRIBE))
    assert (subscribe.start_message_id.ledgerId, subscribe.start_message_id.entryId) == (LEDGER, 4)
    assert (subscribe.durable, subscribe.force_topic_creation) == (False, False)
    # A broker of ours begins with the entry that is wanted; this one takes no notice, as Apache Pulsar.
    assert {pair.key: pair.value for pair in subscribe.metadata} == {
        "afterglow.raw": "true",
        "afterglow.start": f"{LEDGER}:5",
    }
    # One for the entry before, which is dropped.
    assert sum(command.flow.messagePermits for command in broker.translated(SectionKind.FLOW)) == 6
    assert len(broker.translated(SectionKind.CLOSE_CONSUMER)) == 1


def test_reading_continues_after_the_broker_closed_the_consumer(start: Callable[..., ScriptedBroker]) -> None:
    closed: list[int] = []

    def flow(session: Session, command: wire.BaseCommand) -> None:
        consumer_id = command.flow.consumer_id
        for _ in range(min(command.flow.messagePermits, len(ENTRIES) - session.next_entry)):
            if session.next_entry in {3, 7, 11} and session.next_entry not in closed:
                closed.append(session.next_entry)
                close = wire.CommandCloseConsumer(consumer_id=consumer_id, request_id=2**64 - 1)
                session.send(SectionKind(type=SectionKind.CLOSE_CONSUMER, close_consumer=close))
                return
            session.entry(consumer_id, session.next_entry)
            session.next_entry += 1

    broker = start(flow=flow)
    assert read(broker.url) == ENTRIES
    assert closed == [3, 7, 11]
    assert len(broker.translated(SectionKind.SUBSCRIBE)) == 4


def test_a_hole_is_believed_the_second_time_only(start: Callable[..., ScriptedBroker]) -> None:
    skipped: list[int] = []

    def flow(session: Session, command: wire.BaseCommand) -> None:
        if session.next_entry >= 5 and not skipped:
            session.next_entry = 9
            skipped.append(9)
        ScriptedBroker._flow(session, command)

    broker = start(flow=flow)
    assert read(broker.url, receive_bytes=80) == ENTRIES
    assert len(broker.translated(SectionKind.SUBSCRIBE)) == 2


@pytest.mark.parametrize(("number", "ledger_id"), [(7, LEDGER), (0, LEDGER + 1)])
def test_a_hole_that_stays_is_an_error_that_names_it(
    start: Callable[..., ScriptedBroker], number: int, ledger_id: int
) -> None:
    def flow(session: Session, command: wire.BaseCommand) -> None:
        for entry in range(session.next_entry, 6):
            session.entry(command.flow.consumer_id, entry)
        session.entry(command.flow.consumer_id, number, ledger_id)

    broker = start(flow=flow)
    with RawReader(PulsarAddress(broker.url), "t") as reader:
        runs = reader.read(Position(LEDGER, 0), Position(LEDGER, 19))
        assert next(runs).count == 6
        with pytest.raises(EntriesMissing, match=f"no entry 7:6 .*up to 7:19.*continues with {ledger_id}:{number}"):
            next(runs)
    assert len(broker.translated(SectionKind.SUBSCRIBE)) == 3


def test_entries_that_the_broker_skips_are_empty_where_gaps_are_filled(start: Callable[..., ScriptedBroker]) -> None:
    def flow(session: Session, command: wire.BaseCommand) -> None:
        for number in (0, 1, 4, 9, 19):
            session.entry(command.flow.consumer_id, number)

    broker = start(flow=flow)
    expected = [entry if number in {0, 1, 4, 9, 19} else b"" for number, entry in enumerate(ENTRIES)]
    assert read(broker.url, fills_gaps=True) == expected
    assert len(broker.translated(SectionKind.SUBSCRIBE)) == 1


def test_a_gap_goes_through_ledgers_up_to_the_next_delivered_entry(start: Callable[..., ScriptedBroker]) -> None:
    def flow(session: Session, command: wire.BaseCommand) -> None:
        session.entry(command.flow.consumer_id, 2, LEDGER)
        session.entry(command.flow.consumer_id, 1, LEDGER + 2)

    broker = start(flow=flow)
    ranges = [LedgerRange(LEDGER, 0, 4), LedgerRange(LEDGER + 1, 0, 2), LedgerRange(LEDGER + 2, 0, 1)]
    with RawReader(PulsarAddress(broker.url), "t", fills_gaps=True) as reader:
        runs = list(reader.read(Position(LEDGER, 0), Position(LEDGER + 2, 1), ranges))
    found = {
        (run.ledger_id, entry_id): bytes(data) for run in runs for entry_id, data in iter_entries(run.data, run.frames)
    }
    positions = [(each.ledger_id, entry_id) for each in ranges for entry_id in range(each.first, each.last + 1)]
    assert list(found) == positions
    assert [position for position in positions if found[position]] == [(LEDGER, 2), (LEDGER + 2, 1)]


def test_entries_at_the_end_that_are_not_delivered_are_not_filled(start: Callable[..., ScriptedBroker]) -> None:
    """A transaction that has not ended may still deliver them."""

    def last_message_id(session: Session, command: wire.BaseCommand) -> None:
        answer = SectionKind(type=SectionKind.GET_LAST_MESSAGE_ID_RESPONSE)
        answer.getLastMessageIdResponse.request_id = command.getLastMessageId.request_id
        answer.getLastMessageIdResponse.last_message_id.ledgerId = LEDGER
        answer.getLastMessageIdResponse.last_message_id.entryId = 15
        session.send(answer)

    def flow(session: Session, command: wire.BaseCommand) -> None:
        for number in range(session.next_entry, 16):
            session.entry(command.flow.consumer_id, number)

    broker = start(flow=flow, get_last_message_id=last_message_id)
    with pytest.raises(EntriesMissing, match="the log ends with 7:15"):
        read(broker.url, fills_gaps=True)
