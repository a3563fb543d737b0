"""The yardstick of ``bench.broker``: the least that a durable broker has to do, and nothing else.

Receive frames, parse commands, verify checksums, append to one file in groups, sync, answer with receipts. There are no
topics, no offsets, nobody who reads. ``python -m bench.bare_broker FILE`` prints where it listens.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
from typing import TYPE_CHECKING

from crc32c import crc32c

from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import FrameBuffer, encode_command

if TYPE_CHECKING:
    from typing import TypeAlias

    Group: TypeAlias = list[tuple["Peer", int, int, bytes]]

Kind = wire.BaseCommand


class Journal:
    """One file, written and synced by one thread, all that is queued at once."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        self._loop = loop
        self._groups: queue.SimpleQueue[Group] = queue.SimpleQueue()
        self._gathering: Group = []
        self._busy = False
        self._entries = 0
        threading.Thread(target=self._run, daemon=True).start()

    def append(self, peer: Peer, producer_id: int, sequence_id: int, entry: bytes) -> None:
        """Have an entry written and answered."""
        self._gathering.append((peer, producer_id, sequence_id, entry))
        if not self._busy:
            self._busy = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        group, self._gathering = self._gathering, []
        self._busy = bool(group)
        if group:
            self._groups.put(group)

    def _run(self) -> None:
        while True:
            group = self._groups.get()
            os.write(self._file, b"".join(entry for *_, entry in group))
            os.fdatasync(self._file)
            self._loop.call_soon_threadsafe(self._answer, group)

    def _answer(self, group: Group) -> None:
        receipt = wire.BaseCommand(type=Kind.SEND_RECEIPT)
        answers: dict[Peer, list[bytes]] = {}
        for peer, producer_id, sequence_id, _ in group:
            receipt.send_receipt.producer_id = producer_id
            receipt.send_receipt.sequence_id = sequence_id
            receipt.send_receipt.message_id.ledgerId = 0
            receipt.send_receipt.message_id.entryId = self._entries
            self._entries += 1
            answers.setdefault(peer, []).append(encode_command(receipt))
        for peer, frames in answers.items():
            peer.transport.write(b"".join(frames))
        self._start()


class Peer(asyncio.BufferedProtocol):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._buffer = FrameBuffer(8 << 20)
        self._command = wire.BaseCommand()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the buffer knows what it needs
        """Where the loop puts what arrives."""
        return self._buffer.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Take what arrived."""
        command = self._command
        for data, payload in self._buffer.received(nbytes):
            command.Clear()
            command.MergeFromString(bytes(data))
            if command.type == Kind.SEND:
                if crc32c(payload[6:]) != int.from_bytes(payload[2:6], "big"):
                    raise ValueError("a checksum does not fit")
                self._journal.append(self, command.send.producer_id, command.send.sequence_id, bytes(payload))
            elif command.type == Kind.CONNECT:
                connected = wire.CommandConnected(server_version="bare", protocol_version=19)
                self.transport.write(encode_command(Kind(type=Kind.CONNECTED, connected=connected)))
            elif command.type == Kind.PRODUCER:
                opened = wire.CommandProducerSuccess(request_id=command.producer.request_id, producer_name="p")
                self.transport.write(encode_command(Kind(type=Kind.PRODUCER_SUCCESS, producer_success=opened)))


async def serve(path: str) -> None:
    loop = asyncio.get_running_loop()
    journal = Journal(path, loop)
    server = await loop.create_server(lambda: Peer(journal), "127.0.0.1", 0)
    print(f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
