"""A broker of frames for tests, whose reactions a test replaces: it does what a real one does not do on demand."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from afterglow.format.entry import encode_entry
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import FrameBuffer, encode_command, encode_head

if TYPE_CHECKING:
    from collections.abc import Callable

SectionKind = wire.BaseCommand
LookupResponse = wire.CommandLookupTopicResponse
LEDGER: Final = 7
ENTRIES: Final = [
    encode_entry(wire.MessageMetadata(producer_name="p", sequence_id=i, publish_time=1), b"%d" % i) for i in range(20)
]


class Session:
    """One connection of a client."""

    def __init__(self, broker: ScriptedBroker, connected: socket.socket) -> None:
        self.broker = broker
        self.socket = connected
        self.next_entry = 0

    def send(self, command: wire.BaseCommand) -> None:
        self.socket.sendall(encode_command(command))

    def entry(self, consumer_id: int, number: int, ledger_id: int = LEDGER) -> None:
        command = SectionKind(type=SectionKind.MESSAGE)
        command.message.consumer_id = consumer_id
        command.message.message_id.ledgerId = ledger_id
        command.message.message_id.entryId = number
        self.socket.sendall(encode_head(command.SerializeToString(), len(ENTRIES[number])) + ENTRIES[number])

    def error(self, code: Any, request_id: int = 2**64 - 1) -> None:
        command = SectionKind(type=SectionKind.ERROR)
        command.error.request_id, command.error.error, command.error.message = request_id, code, "as scripted"
        self.send(command)

    def success(self, request_id: int) -> None:
        self.send(SectionKind(type=SectionKind.SUCCESS, success=wire.CommandSuccess(request_id=request_id)))


Reaction: TypeAlias = "Callable[[Session, Any], None]"


class ScriptedBroker:
    """Serves ENTRIES; reactions given by the name of a command replace its own."""

    def __init__(self, port: int = 0, /, **reactions: Reaction) -> None:
        self.reactions = reactions
        self.received: list[wire.BaseCommand] = []
        self._arrived = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", port))
        self.url = f"pulsar://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """End every connection and thread."""
        # A thread that waits in accept or recv is woken by a shutdown, not by a close.
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def await_commands(self, kind: SectionKind.Type.ValueType, count: int = 1) -> list[wire.BaseCommand]:
        """Wait until as many commands of a kind were received; returns those."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.translated(kind)) >= count, 60.0), self.received
            return self.translated(kind)

    def translated(self, kind: SectionKind.Type.ValueType) -> list[wire.BaseCommand]:
        """The commands of a kind that were received."""
        return [command for command in self.received if command.type == kind]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connected, _ = self._listener.accept()
                self._sockets.append(connected)
                thread = threading.Thread(target=self._serve, args=(Session(self, connected),))
                self._threads.append(thread)
                thread.start()

    def _serve(self, session: Session) -> None:
        buffer = FrameBuffer(1 << 20)
        with suppress(OSError), session.socket:
            while count := session.socket.recv_into(buffer.space()):
                for data, _ in buffer.received(count):
                    command = SectionKind.FromString(bytes(data))
                    with self._arrived:
                        self.received.append(command)
                        self._arrived.notify_all()
                    name = SectionKind.Type.Name(command.type).lower()
                    reaction = self.reactions.get(name) or getattr(self, f"_{name}", None)
                    if reaction is not None:
                        reaction(session, command)

    @staticmethod
    def _connect(session: Session, _: wire.BaseCommand) -> None:
        connected = wire.CommandConnected(server_version="scripted", protocol_version=19, max_message_size=1000)
        session.send(SectionKind(type=SectionKind.CONNECTED, connected=connected))

    def _lookup(self, session: Session, command: wire.BaseCommand) -> None:
        answer_lookup(session, command, LookupResponse.Connect, self.url)

    @staticmethod
    def _subscribe(session: Session, command: wire.BaseCommand) -> None:
        start = command.subscribe.start_message_id.entryId
        session.next_entry = 0 if start == 2**64 - 1 else start
        session.success(command.subscribe.request_id)

    @staticmethod
    def _flow(session: Session, command: wire.BaseCommand) -> None:
        for _ in range(command.flow.messagePermits):
            if session.next_entry < len(ENTRIES):
                session.entry(command.flow.consumer_id, session.next_entry)
                session.next_entry += 1

    @staticmethod
    def _close_consumer(session: Session, command: wire.BaseCommand) -> None:
        session.success(command.close_consumer.request_id)


def answer_lookup(session: Session, command: wire.BaseCommand, kind: Any, url: str, **more: Any) -> None:
    answer = LookupResponse(request_id=command.lookupTopic.request_id, response=kind, brokerServiceUrl=url, **more)
    session.send(SectionKind(type=SectionKind.LOOKUP_RESPONSE, lookupTopicResponse=answer))
