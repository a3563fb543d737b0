"""Stock producers that write to a real cluster until they are stopped, and remember what was acknowledged, and where.

A producer never gives up a message: it sends it again once the broker is back. So the topic may hold a message twice if
its broker was killed, of which one position was acknowledged.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pulsar
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.support.client_programs import java_program

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAMS: Final = Path(__file__).parents[1] / "attach" / "programs"
_LIMIT_S: Final = 300.0


class At(NamedTuple):
    """Where a message was acknowledged."""

    partition: int
    ledger_id: int
    entry_id: int
    batch_index: int


@dataclass(frozen=True, slots=True)
class Kind:
    """What a producer sends."""

    name: str
    """Unique; messages begin with it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of ``create_producer``."""
    per_second: int = 60
    max_bytes: int = 4_000
    keys: int = 0
    """Number of keys; 0: without."""

    def value(self, number: int) -> bytes:
        """The content of a message."""
        lot = random.Random(f"{self.name}/{number}")
        return b"%s:%d:" % (self.name.encode(), number) + lot.randbytes(lot.randrange(self.max_bytes))


class Reading(pulsar.schema.Record):  # type: ignore[misc]
    """A message of a topic with a schema."""

    producer = pulsar.schema.String()
    number = pulsar.schema.Integer()


class StockProducer:
    """One producer of the stock Python client, in a thread.

    Args:
        client: The stock client.
        topic: Its topic.
        kind: What it sends.
        typed: Whether it sends :class:`Reading` with a schema instead of bytes.
    """

    def __init__(self, client: Any, topic: str, kind: Kind, *, typed: bool = False) -> None:
        self.topic = topic
        self.kind = kind
        self.acknowledged: dict[At, int] = {}
        """Numbers of messages by their positions."""
        self.failed: dict[int, str] = {}
        """Errors by the number of the message."""
        self.sent = 0
        self._typed = typed
        options = {"schema": pulsar.schema.JsonSchema(Reading)} if typed else {}
        self._producer = client.create_producer(
            topic,
            producer_name=kind.name,
            send_timeout_millis=0,
            block_if_queue_full=True,
            max_pending_messages=200,
            **options,
            **{"batching_enabled": False, **kind.options},
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"load-{kind.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for what was sent to be acknowledged.

        Raises:
            AssertionError: That took too long.
        """
        self._ended.set()
        self._thread.join(_LIMIT_S)
        assert not self._thread.is_alive(), f"{self.kind.name} waits for its broker"
        self._producer.flush()
        self._producer.close()

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._ended.wait(max(begin + self.sent / self.kind.per_second - time.monotonic(), 0)):
            number = self.sent
            self.sent += 1
            content: Any = self.kind.value(number)
            if self._typed:
                content = Reading(producer=self.kind.name, number=number)
            key = {"partition_key": f"k{number % self.kind.keys}"} if self.kind.keys else {}
            self._producer.send_async(content, lambda result, at, number=number: self._done(number, result, at), **key)

    def _done(self, number: int, result: Any, at: Any) -> None:
        if result != pulsar.Result.Ok:
            self.failed[number] = str(result)
            return
        self.acknowledged[At(at.partition(), at.ledger_id(), at.entry_id(), at.batch_index())] = number


def crypto_keys(directory: Path) -> Any:
    """A new pair of keys, as the stock client takes them."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = directory / "private.pem", directory / "public.pem"
    plain = serialization.NoEncryption()
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return pulsar.CryptoKeyReader(str(public), str(private))


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction of :class:`TransactionProducer`, or messages without one."""

    txn: tuple[int, int] | None
    """Most and least significant bits of its id."""
    outcome: str
    """``committed``, ``aborted``, ``plain``, or ``unknown`` if the client got no answer."""
    messages: dict[tuple[int, int], int]
    """Numbers of acknowledged messages by ledger and entry."""


class TransactionProducer:
    """The Java client with transactions, in a process of its own.

    Args:
        service_url: Address of the brokers.
        topic: Its topic.
        directory: An existing directory, for its log.
        seed: Of the outcomes.

    Raises:
        MissingDependency: There is no Java compiler, or the client cannot be fetched.
    """

    def __init__(self, service_url: str, topic: str, directory: Path, seed: int) -> None:
        self.topic = topic
        self.transactions: list[Transaction] = []
        self._stop = directory / "stop"
        self._errors = directory / "transactions.log"
        command = [*java_program(PROGRAMS), service_url, topic, str(self._stop), str(seed)]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(_LIMIT_S) or self._process.poll() is not None:
            self.kill()
            raise AssertionError(f"no transactions: {self._errors.read_text(errors='replace')[-3000:]}")

    def stop(self) -> None:
        """Stop, and wait for the end of the last transaction."""
        self._stop.touch()
        assert self._process.wait(_LIMIT_S) == 0, self._errors.read_text(errors="replace")[-3000:]
        self._reader.join()

    def kill(self) -> None:
        """End it at once."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                sys.stderr.write(line)  # the client's log
                continue
            found = json.loads(line)
            if "ready" in found:
                self._ready.set()
                continue
            txn = None if found["txn"] is None else tuple(int(part) for part in found["txn"].split(":"))
            messages = {(ledger, entry): number for number, ledger, entry in found["messages"]}
            self.transactions.append(Transaction(txn, found["outcome"], messages))  # type: ignore[arg-type]
        self._ready.set()
