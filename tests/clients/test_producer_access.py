"""Access modes of producers (PIP-68), on the wire and with the stock client."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from tests.support.raw_client import ErrorAnswer, RawClient, encode_send
from tests.support.serving import serving

from afterglow.format.entry import encode_entry
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.raw_client import Frame
    from tests.support.serving import Served

Kind = wire.BaseCommand
Mode = wire.ProducerAccessMode
ENTRY = encode_entry(wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"payload")
WAIT_S = 20


@pytest.fixture
def raw(served: Served) -> Iterator[RawClient]:
    with RawClient(served.service_url) as client:
        yield client


def ask(
    client: RawClient, topic: str, number: int, mode: wire.ProducerAccessMode.ValueType, epoch: int | None = None
) -> None:
    """Send PRODUCER; its producer, its request and its name are of the number."""
    command = wire.CommandProducer(topic=topic, producer_id=number, request_id=number, producer_name=f"p-{number}")
    command.producer_access_mode = mode
    if epoch is not None:
        command.topic_epoch = epoch
    client.send(Kind(type=Kind.PRODUCER, producer=command))


def answer(client: RawClient, number: int) -> wire.CommandProducerSuccess:
    """The next answer to a PRODUCER."""

    def wanted(frame: Frame) -> bool:
        command = frame.command
        found = command.error if command.type == Kind.ERROR else command.producer_success
        return found.request_id == number

    command = client.next(wanted).command
    if command.type == Kind.ERROR:
        raise ErrorAnswer(command.error.error, command.error.message)
    return command.producer_success


def opened(
    client: RawClient, topic: str, number: int, mode: wire.ProducerAccessMode.ValueType, epoch: int | None = None
) -> wire.CommandProducerSuccess:
    ask(client, topic, number, mode, epoch)
    return answer(client, number)


def refused(
    client: RawClient, topic: str, number: int, mode: wire.ProducerAccessMode.ValueType, epoch: int | None = None
) -> str:
    with pytest.raises(ErrorAnswer) as caught:
        opened(client, topic, number, mode, epoch)
    return wire.ServerError.Name(caught.value.code)


def close(client: RawClient, number: int) -> None:
    command = wire.CommandCloseProducer(producer_id=number, request_id=1_000 + number)
    client._ask(Kind(type=Kind.CLOSE_PRODUCER, close_producer=command), 1_000 + number)


def stats(served: Served, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = served.admin("GET", f"persistent/{topic.removeprefix('persistent://')}/stats")
    return found


def test_an_exclusively_held_topic_is_busy_for_those_that_share_and_fences_others(raw: RawClient, topic: str) -> None:
    assert opened(raw, topic, 1, wire.Exclusive).topic_epoch == 0
    assert refused(raw, topic, 2, wire.Shared) == "ProducerBusy"
    assert refused(raw, topic, 3, wire.Exclusive) == "ProducerFenced"
    close(raw, 1)
    assert opened(raw, topic, 2, wire.Shared).topic_epoch == 0
    assert refused(raw, topic, 3, wire.Exclusive) == "ProducerFenced"


def test_a_topic_that_was_only_shared_has_no_epoch(raw: RawClient, topic: str) -> None:
    success = opened(raw, topic, 1, wire.Shared)
    assert success.producer_ready
    assert not success.HasField("topic_epoch")


def test_producers_that_wait_get_the_topic_one_after_another(served: Served, raw: RawClient, topic: str) -> None:
    assert opened(raw, topic, 1, wire.Shared).producer_ready
    for number in (2, 3):
        waiting = opened(raw, topic, number, wire.WaitForExclusive)
        assert not waiting.producer_ready
        assert waiting.producer_name == f"p-{number}"
        assert not waiting.HasField("topic_epoch")
    assert stats(served, topic)["waitingPublishers"] == 2
    assert refused(raw, topic, 4, wire.Shared) == "ProducerBusy"
    assert refused(raw, topic, 5, wire.Exclusive) == "ProducerFenced"
    for number, epoch in ((2, 0), (3, 1)):
        close(raw, number - 1)
        ready = answer(raw, number)
        assert (ready.producer_ready, ready.topic_epoch) == (True, epoch)
        assert len(raw.publish([encode_send(number, 0, ENTRY)])) == 1
        found = stats(served, topic)
        assert [(publisher["producerName"], publisher["accessMode"]) for publisher in found["publishers"]] == [
            (f"p-{number}", "WaitForExclusive")
        ]
        assert found["topicEpoch"] == epoch


def test_a_producer_need_not_wait_for_a_free_topic(raw: RawClient, topic: str) -> None:
    success = opened(raw, topic, 1, wire.WaitForExclusive)
    assert (success.producer_ready, success.topic_epoch) == (True, 0)


def test_a_waiting_producer_leaves_the_queue_with_its_connection(served: Served, raw: RawClient, topic: str) -> None:
    opened(raw, topic, 1, wire.Exclusive)
    with RawClient(served.service_url) as other:
        assert not opened(other, topic, 2, wire.WaitForExclusive).producer_ready
    assert not opened(raw, topic, 3, wire.WaitForExclusive).producer_ready
    close(raw, 1)
    assert answer(raw, 3).topic_epoch == 1


def test_a_waiting_producer_leaves_the_queue_when_it_is_closed(served: Served, raw: RawClient, topic: str) -> None:
    opened(raw, topic, 1, wire.Exclusive)
    assert not opened(raw, topic, 2, wire.WaitForExclusive).producer_ready
    assert refused(raw, topic, 2, wire.WaitForExclusive) == "ServiceNotReady"
    close(raw, 2)
    assert stats(served, topic)["waitingPublishers"] == 0
    assert not opened(raw, topic, 2, wire.WaitForExclusive).producer_ready
    close(raw, 1)
    assert answer(raw, 2).producer_ready


def test_a_fencing_producer_takes_the_topic_from_all_others(raw: RawClient, topic: str) -> None:
    opened(raw, topic, 1, wire.Exclusive)
    assert not opened(raw, topic, 2, wire.WaitForExclusive).producer_ready
    assert opened(raw, topic, 3, wire.ExclusiveWithFencing).topic_epoch == 1
    with pytest.raises(ErrorAnswer, match="ProducerFenced"):
        answer(raw, 2)
    assert raw.next(lambda frame: frame.command.type == Kind.CLOSE_PRODUCER).command.close_producer.producer_id == 1
    for number, mode in enumerate((wire.Exclusive, wire.ExclusiveWithFencing, wire.WaitForExclusive), 4):
        assert refused(raw, topic, number, mode, epoch=0) == "ProducerFenced"
    assert len(raw.publish([encode_send(3, 0, ENTRY)])) == 1


def test_a_producer_that_comes_back_keeps_its_epoch_unless_another_had_the_topic(raw: RawClient, topic: str) -> None:
    assert opened(raw, topic, 1, wire.Exclusive).topic_epoch == 0
    close(raw, 1)
    assert opened(raw, topic, 2, wire.Exclusive, epoch=0).topic_epoch == 0
    close(raw, 2)
    assert opened(raw, topic, 3, wire.Exclusive).topic_epoch == 1
    close(raw, 3)
    for mode in (wire.Exclusive, wire.WaitForExclusive):
        assert refused(raw, topic, 4, mode, epoch=0) == "ProducerFenced"


def test_an_old_epoch_is_fenced_after_a_restart_too(tmp_path: Path, topic: str) -> None:
    with serving(tmp_path) as served, RawClient(served.service_url) as client:
        for epoch in range(2):
            assert opened(client, topic, 1, wire.Exclusive).topic_epoch == epoch
            close(client, 1)
    with serving(tmp_path) as served, RawClient(served.service_url) as client:
        assert refused(client, topic, 1, wire.Exclusive, epoch=0) == "ProducerFenced"
        assert opened(client, topic, 2, wire.Exclusive, epoch=1).topic_epoch == 1
        close(client, 2)
        assert opened(client, topic, 3, wire.Exclusive).topic_epoch == 2


def test_a_terminated_topic_refuses_those_that_wait_for_it(served: Served, raw: RawClient, topic: str) -> None:
    opened(raw, topic, 1, wire.Shared)
    assert not opened(raw, topic, 2, wire.WaitForExclusive).producer_ready
    served.admin("POST", f"persistent/{topic.removeprefix('persistent://')}/terminate")
    with pytest.raises(ErrorAnswer, match="TopicTerminatedError"):
        answer(raw, 2)


def test_an_unloaded_topic_has_its_waiting_producers_ask_again(served: Served, raw: RawClient, topic: str) -> None:
    opened(raw, topic, 1, wire.Shared)
    assert not opened(raw, topic, 2, wire.WaitForExclusive).producer_ready
    served.admin("PUT", f"persistent/{topic.removeprefix('persistent://')}/unload")
    with pytest.raises(ErrorAnswer, match="ServiceNotReady"):
        answer(raw, 2)
    assert opened(raw, topic, 2, wire.WaitForExclusive).producer_ready


def test_the_stock_client_waits_for_its_turn(client: Any, topic: str) -> None:
    first = client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    got: list[Any] = []
    second = threading.Thread(
        target=lambda: got.append(
            client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.WaitForExclusive)
        ),
        daemon=True,
    )
    second.start()
    assert first.send(b"while the other waits").entry_id() == 0
    assert not got
    first.close()
    second.join(WAIT_S)
    assert got[0].send(b"in its turn").entry_id() == 1
