"""A scripted broker with durable subscriptions, which a test moves, deletes and refuses, and with readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.support.scripted_broker import ScriptedBroker, SectionKind

from afterglow.format.position import Position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import encode_head
from afterglow.hot.pulsar.raw_subscription import message_position

if TYPE_CHECKING:
    from tests.support.scripted_broker import Reaction, Session

TOPIC: Final = "persistent://public/default/t"
EARLIEST: Final = Position(7, -1)


class HoldBroker(ScriptedBroker):
    """Has subscriptions with mark-delete positions, and refuses what a test lets it refuse."""

    def __init__(self, port: int = 0, /, **reactions: Reaction) -> None:
        self.marked: dict[str, Position] = {}
        self.consumers: dict[str, tuple[Session, int]] = {}
        self.refusals: dict[str, list[Any]] = {}
        """Errors for the next subscribes of a topic."""
        self.last = Position(7, 99)
        self.reports_mark_delete = True
        self.entries: dict[str, dict[Position, bytes]] = {}
        """Entries that readers get, by topic."""
        self._readers: dict[tuple[Session, int], tuple[str, Position]] = {}
        super().__init__(port, **reactions)

    def unload(self, topic: str = TOPIC) -> None:
        """Disconnect the consumer of a topic, as a broker that unloads it does."""
        session, consumer_id = self.consumers.pop(topic)
        close = wire.CommandCloseConsumer(consumer_id=consumer_id, request_id=2**64 - 1)
        session.send(SectionKind(type=SectionKind.CLOSE_CONSUMER, close_consumer=close))

    def topic_of(self, session: Session, consumer_id: int) -> str | None:
        return next((topic for topic, found in self.consumers.items() if found == (session, consumer_id)), None)

    def _subscribe(self, session: Session, command: wire.BaseCommand) -> None:  # type: ignore[override]
        request = command.subscribe
        refusals = self.refusals.get(request.topic, [])
        if refusals:
            session.error(refusals.pop(0), request.request_id)
            return
        if not request.durable:
            self._readers[session, request.consumer_id] = request.topic, message_position(request.start_message_id)
            session.success(request.request_id)
            return
        self.marked.setdefault(request.topic, EARLIEST)
        self.consumers[request.topic] = (session, request.consumer_id)
        session.success(request.request_id)

    def _flow(self, session: Session, command: wire.BaseCommand) -> None:  # type: ignore[override]
        key = session, command.flow.consumer_id
        topic, start = self._readers[key]
        entries = self.entries.get(topic, {})
        for position in sorted(each for each in entries if each >= start)[: command.flow.messagePermits]:
            message = SectionKind(type=SectionKind.MESSAGE)
            message.message.consumer_id = command.flow.consumer_id
            message.message.message_id.ledgerId = position.ledger_id
            message.message.message_id.entryId = position.entry_id
            data = entries[position]
            session.socket.sendall(encode_head(message.SerializeToString(), len(data)) + data)
            self._readers[key] = topic, position.next()

    def _get_last_message_id(self, session: Session, command: wire.BaseCommand) -> None:
        request = command.getLastMessageId
        topic = self.topic_of(session, request.consumer_id)
        if topic is None:
            session.error(wire.MetadataError, request.request_id)
            return
        answer = SectionKind(type=SectionKind.GET_LAST_MESSAGE_ID_RESPONSE)
        response = answer.getLastMessageIdResponse
        response.request_id = request.request_id
        parts = [(response.last_message_id, self.last)]
        if self.reports_mark_delete:
            parts.append((response.consumer_mark_delete_position, self.marked[topic]))
        for message_id, position in parts:
            message_id.ledgerId = position.ledger_id & 0xFFFFFFFFFFFFFFFF
            message_id.entryId = position.entry_id & 0xFFFFFFFFFFFFFFFF
        session.send(answer)

    def _ack(self, session: Session, command: wire.BaseCommand) -> None:
        topic = self.topic_of(session, command.ack.consumer_id)
        if topic is None:
            return  # as in Pulsar
        assert command.ack.ack_type == wire.CommandAck.Cumulative
        (message_id,) = command.ack.message_id
        self.marked[topic] = max(self.marked[topic], Position(message_id.ledgerId, message_id.entryId))
        response = wire.CommandAckResponse(consumer_id=command.ack.consumer_id, request_id=command.ack.request_id)
        session.send(SectionKind(type=SectionKind.ACK_RESPONSE, ackResponse=response))

    def _unsubscribe(self, session: Session, command: wire.BaseCommand) -> None:
        topic = self.topic_of(session, command.unsubscribe.consumer_id)
        assert topic is not None
        del self.marked[topic]
        session.success(command.unsubscribe.request_id)
