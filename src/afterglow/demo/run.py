"""Steps of the demo, from a server on an empty directory to a topic that Spark reads back from the tier alone.

1. Start a server, ``afterglow serve --streaming``, with small segments and ledgers, so that there are several.
2. Send messages with a stock Pulsar client, while segments are offloaded, ledgers roll over and hot copies are freed.
3. Offload the rest of the log manually.
4. Seek by time with the client, served from the tier. Then stop the server.
5. Read the objects with a Spark job. Compare every message with the sent one, and seeks by time with a full scan.
"""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import signal
import statistics
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from afterglow.demo.screen import TopicSnapshot
from afterglow.errors import AfterglowError, MissingDependency
from afterglow.format.position import Position
from afterglow.metadata.admin_client import AdminHttp, parse_admin_url
from afterglow.metadata.cluster_credentials import ClusterCredentials
from afterglow.metadata.names import TopicName
from afterglow.metadata.store import wall_clock_ms
from afterglow.read.copies import StorageTier
from afterglow.source.connect import connect
from afterglow.spark.errors import summarize
from afterglow.spark.java import find_java
from afterglow.spark.session import QUIET, local_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from afterglow.demo.screen import Screen
    from afterglow.source.connect import SourceTopic

_VALUE_BYTES: Final = 3_000
_BATCH: Final = 40
_WAVE: Final = 100
"""Messages that one producer sends before the next one. All are acknowledged first, so that their order is known."""
_SEND_S: Final = 15.0
"""Time over which messages are spread, so that users can watch the offload of segments."""
_SEEKS: Final = 4
_SERVER_LOG: Final = "serve.log"
_OFFLOAD_TIMEOUT_S: Final = 180.0
_CALL_TIMEOUT_S: Final = 60.0

_MESSAGE: Final = (
    *("ledger_id", "entry_id", "batch_index", "cast(key AS string) AS key", "properties"),
    *("unix_millis(event_time) AS event_ms", "sha2(value, 256) AS digest"),
)
_READ: Final = (*_MESSAGE, "unix_millis(broker_time) AS broker_ms", "octet_length(value) AS value_bytes", "tier")
"""Columns of the Spark job; its tasks compute digests, because all values may not fit into this process."""

MessageRow = tuple[int, int, int, str | None, dict[str, str], int | None, str]
"""Ledger, entry and batch index, key, properties, event time and digest of the value of a message."""
Seek = tuple[int, Position]
"""A time in epoch milliseconds, and the position that a seek to it found."""
Streamed = tuple[list[MessageRow], list[Seek]]
"""Messages that were sent, and seeks by time of the client that sent them."""


def run_demo(home: Path, messages: int, screen: Screen) -> tuple[str, list[str]]:
    """Run all steps and check the result.

    Args:
        home: Home of the server; created if it does not exist. That of an earlier demo may be used again.
        messages: Number of messages to send.
        screen: Shows every step.

    Returns:
        The full name of the topic, and all differences: none if every message was read unchanged from the tier, and
        every seek found its entry.

    Raises:
        MissingDependency: The stock client, Spark or Java is missing.
        AfterglowError: A step failed.
        OSError: The home cannot be written.
    """
    try:
        import pulsar  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise MissingDependency("the demo needs the stock Pulsar client; run pip install pulsar-client") from error
    find_java()  # fails before anything is started: offload needs Java
    home.mkdir(parents=True, exist_ok=True)
    topic = TopicName.parse(f"demo-{secrets.token_hex(3)}")
    try:
        sent, seeks = _stream(pulsar, home, topic, messages, screen)
    except pulsar.PulsarException as error:
        raise AfterglowError(f"the stock Pulsar client failed: {error}") from error
    return str(topic), _read_back(home, str(topic), sent, seeks, screen)


def _stream(pulsar: Any, home: Path, topic: TopicName, messages: int, screen: Screen) -> Streamed:
    """Run steps 1 to 4."""
    entries = messages // 3 + 2 * messages // (3 * _BATCH) + 1  # a third of the messages are not batched
    settings = {
        # Five segments and two roll-overs within a minute.
        "maxOffloadSegmentSizeInBytes": max(messages * _VALUE_BYTES // 5, 64 << 10),
        "streamingOffloadPartSizeInBytes": 5 << 20,  # the minimum of object stores
        "managedLedgerMaxEntriesPerLedger": int(entries / 2.6) + 1,
        "managedLedgerMinLedgerRolloverTimeMinutes": 0,
        "managedLedgerOffloadDeletionLagInMillis": 0,
        "offloadTickIntervalMillis": 250,
    }
    screen.say("  Starting a server: afterglow serve --streaming")
    with _serving(home, settings) as (service_url, admin, summary):
        screen.say(f"  It serves stock Pulsar clients at {service_url}; {summary}.")
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        with closing(pulsar.Client(service_url, logger=quiet)) as client:
            sender = _Sender(pulsar, client, str(topic))
            with connect(home) as source:
                view = _TopicView(source.topic(str(topic)), topic, admin, screen, entries)
                times_ms = _send(sender, messages, view)
                _offload_rest(view)
                reader = client.create_reader(str(topic), pulsar.MessageId.earliest)
                seeks = [(time_ms, _seek_by_client(reader, time_ms)) for time_ms in times_ms]
                reader.close()
                with suppress(AfterglowError):  # a hot copy that is freed later is not a failure
                    view.wait(lambda topic: not any(ledger.hot for ledger in topic.ledgers[:-1]), "hot copies", 15.0)
                last = view.snapshot()
        freed = sum(not ledger.hot for ledger in last.ledgers)
        screen.say(f"  The hot copies of {freed} of {len(last.ledgers)} ledgers are freed; the newest is still open.")
    screen.draw_last(last)
    return sender.rows(), seeks


@contextmanager
def _serving(home: Path, settings: Mapping[str, int]) -> Iterator[tuple[str, AdminHttp, str]]:
    """Run a server on free ports; yields its address for clients, its admin API and its summary line."""
    conf, log_file = home / "demo.conf", home / _SERVER_LOG
    conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
    command = [sys.executable, "-m", "afterglow", "serve", "--streaming", "--home", str(home), "--conf", str(conf)]
    with log_file.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter
            [*command, "--listen", "127.0.0.1", "--port", "0", "--http-port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # not interrupted by Ctrl-C, because the client is closed first
        )
    assert process.stdout is not None
    stop_s = 30.0
    try:
        ready = re.match(r"ready (pulsar://\S+) (http://\S+)", process.stdout.readline())
        if ready is None:
            lines = log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise AfterglowError(f"afterglow serve did not start: {lines[-1] if lines else f'see {log_file}'}")
        yield ready[1], AdminHttp(parse_admin_url(ready[2]), ClusterCredentials()), process.stdout.readline().strip()
    except (KeyboardInterrupt, SystemExit):
        stop_s = 2.0  # ends a Spark that is starting; if the server is killed, that leaves temporary files
        raise
    finally:
        process.terminate()
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(stop_s)
        finally:  # also after Ctrl-C during the wait
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the processes of its Spark
                process.wait()
            process.stdout.close()


class _TopicView(NamedTuple):
    """The topic of a running server, read through the admin API and from the home."""

    source: SourceTopic
    name: TopicName
    admin: AdminHttp
    screen: Screen
    entries: int
    """Expected final number of entries."""

    def call(self, method: str, below: str, body: object = None) -> Any:
        """Call the admin API on the topic; returns the JSON of the answer, or None if it is empty."""
        path = f"/admin/v2/persistent/{self.name.namespace}/{self.name.local_name}/{below}"
        data = None if body is None else json.dumps(body).encode()
        answer = self.admin.exchange(method, path, data, _CALL_TIMEOUT_S)
        if answer.status >= 300:
            raise AfterglowError(f"{answer.request} failed with status {answer.status}: {answer.content.decode()}")
        return json.loads(answer.content) if answer.content else None

    def snapshot(self) -> TopicSnapshot:
        segments = self.call("GET", "segments")
        return TopicSnapshot(self.source.ledgers(), segments)  # in this order, so that no segment ends after the log

    def draw(self, caption: str) -> TopicSnapshot:
        """Draw the topic as it is now."""
        topic = self.snapshot()
        self.screen.draw(topic, self.entries, f"{caption}; {len(topic.offloaded)} segments in the tier")
        return topic

    def wait(self, is_done: Callable[[TopicSnapshot], bool], caption: str, timeout_s: float) -> float:
        """Draw the topic until a condition is true; returns the seconds until then.

        Raises:
            AfterglowError: The condition is false at the deadline.
        """
        began = time.monotonic()
        while not is_done(topic := self.draw(caption)):
            if time.monotonic() > began + timeout_s:
                reasons = "; ".join(segment["error"] for segment in topic.segments if segment["error"])
                hint = reasons or f"give --home DIR and see {_SERVER_LOG} there"
                raise AfterglowError(f"{caption} of {self.name}: not done within {timeout_s:g} s: {hint}")
            time.sleep(0.2)
        return time.monotonic() - began


def _send(sender: _Sender, messages: int, view: _TopicView) -> list[int]:
    """Send all messages at the planned rate; returns some times during the run, in epoch milliseconds."""
    times_ms: list[int] = []
    rate = max(messages / _SEND_S, 500.0)
    # Spark may still start: wait for the first segment, so that users can watch the others. Small runs end too soon.
    pause_at = messages * 0.3 if messages >= 10_000 else messages
    began, sent = time.monotonic(), 0
    while sent < messages:
        if sent >= len(times_ms) * messages / _SEEKS:
            times_ms.append(wall_clock_ms())
        sent = sender.send(min(_WAVE, messages - sent))
        topic = view.draw(f"{sent:,} of {messages:,} messages sent")
        if pause_at <= sent < messages:
            pause_at = messages
            paused_s = view.wait(lambda topic: bool(topic.offloaded), "the first segment", _OFFLOAD_TIMEOUT_S)
            view.screen.say(f"  The first segment was in the tier {paused_s:.1f} s after a third of the messages.")
            began += paused_s
        time.sleep(max(began + sent / rate - time.monotonic(), 0))
    view.screen.say(
        f"  A stock client sent {messages:,} messages, {sender.value_bytes / 1e6:.1f} MB, batched and not, at "
        f"{messages / (time.monotonic() - began):,.0f} messages/s. Meanwhile {len(topic.ledgers) - 1} ledgers were "
        f"closed, and {len(topic.offloaded)} segments completed in the tier."
    )
    return times_ms


def _offload_rest(view: _TopicView) -> None:
    """Trigger a manual offload up to the end of the log, and wait for it."""
    last_ledger_id = view.source.ledgers()[-1].ledger_id
    view.call("PUT", "offload", {"ledgerId": last_ledger_id, "entryId": 0, "partitionIndex": -1})

    def is_done(_: TopicSnapshot) -> bool:
        status = view.call("GET", "offload")
        if status["status"] == "ERROR":
            raise AfterglowError(f"the manual offload of {view.name} failed: {status['lastError']}")
        return bool(status["status"] == "SUCCESS")

    took_s = view.wait(is_done, "the manual offload", _OFFLOAD_TIMEOUT_S)
    topic = view.snapshot()
    size_mb = sum(segment["bytes"] for segment in topic.offloaded) / 1e6
    view.screen.say(
        f"  A manual offload closed the last one; {took_s:.1f} s later all {len(topic.offloaded)} segments were in the "
        f"tier, {size_mb:.1f} MB of {topic.entries:,} entries."
    )
    if lags_s := [(segment["offloaded_ms"] - segment["last_ms"]) / 1000 for segment in topic.offloaded[1:]]:
        view.screen.say(
            f"  Segments behind the first were complete in the tier {statistics.median(lags_s):.1f} s (median) after "
            f"their last entry was written, {max(lags_s):.1f} s at most."
        )


def _seek_by_client(reader: Any, time_ms: int) -> Position:
    """Return the position of the first message that a stock reader receives after a seek by time."""
    reader.seek(time_ms)
    found = reader.read_next(timeout_millis=int(_CALL_TIMEOUT_S * 1000)).message_id()
    return Position(found.ledger_id(), found.entry_id())


class _Sender:
    """Sends messages by number, in waves, with producers that differ in batching and compression."""

    def __init__(self, pulsar: Any, client: Any, topic: str) -> None:
        create = partial(client.create_producer, topic, block_if_queue_full=True)
        batched = partial(create, batching_enabled=True, batching_max_messages=_BATCH)
        zstd = pulsar.CompressionType.ZSTD
        self._producers = (batched(compression_type=zstd), batched(), create(batching_enabled=False))
        self._ok = pulsar.Result.Ok
        self._receipts: dict[int, tuple[Any, Any]] = {}
        """Result and message id by number, from a thread of the client."""
        self._sent: list[tuple[str | None, dict[str, str], int | None, str]] = []
        self.value_bytes = 0

    def send(self, count: int) -> int:
        """Send the next messages and wait for their receipts; returns how many are stored by then."""
        begin, end = len(self._sent), len(self._sent) + count
        producer = self._producers[begin // _WAVE % len(self._producers)]
        for number in range(begin, end):
            key, properties, event_ms, value = make_message(number)
            self._sent.append((key, properties, event_ms, sha256(value).hexdigest()))
            self.value_bytes += len(value)
            producer.send_async(
                value,
                lambda *receipt, number=number: self._receipts.update({number: receipt}),
                properties=properties,
                partition_key=key,
                event_timestamp=event_ms,
            )
        producer.flush()
        deadline = time.monotonic() + _CALL_TIMEOUT_S
        while len(self._receipts) < end and time.monotonic() < deadline:
            time.sleep(0.001)  # a flush may return just before the last callback
        for number in range(begin, end):
            result, _ = self._receipts.get(number, ("no receipt", None))
            if result != self._ok:
                raise AfterglowError(f"message {number} was not stored: {result}")
        return end

    def rows(self) -> list[MessageRow]:
        """Return all messages in the order of sending, with their acknowledged positions."""
        ids = [self._receipts[number][1] for number in range(len(self._sent))]
        positions = [(at.ledger_id(), at.entry_id(), at.batch_index()) for at in ids]
        return [(*position, *sent) for position, sent in zip(positions, self._sent, strict=True)]


def make_message(number: int) -> tuple[str | None, dict[str, str], int | None, bytes]:
    """Return key, properties, event time and value of a message; half of the value is compressible."""
    draw = random.Random(number)  # noqa: S311 - reproducible, not secret
    return (
        f"key-{number % 97}" if number % 3 else None,
        {"number": str(number), "source": "demo"} if number % 5 == 0 else {},
        1_790_000_000_000 + number if number % 2 else None,
        draw.randbytes(draw.randrange(_VALUE_BYTES)) + b"." * draw.randrange(_VALUE_BYTES),
    )


def _read_back(home: Path, name: str, sent: list[MessageRow], seeks: list[Seek], screen: Screen) -> list[str]:
    """Run step 5; returns all differences."""
    screen.say("  The server is stopped. From here on only the tier is read.")
    with connect(home) as source:
        topic = source.topic(name)
        back = _scan(home, topic, screen)
        found = differences(sent, message_rows(back))
        if hot := back.num_rows - back["tier"].to_pylist().count(StorageTier.TIERED):
            found.append(f"{hot:,} messages came from the hot log, not from the tier")
        if not back.num_rows:
            return found
        times = entry_times(back)
        known = list(times.values())
        first, middle, last = known[0], known[len(known) // 2], known[-1]
        wanted = [first - 1, first, *(time_ms for time_ms, _ in seeks), middle, middle + 1, last, last + 1]
        in_tier = [(time_ms, topic.seek(time_ms)) for time_ms in wanted]
        wrong = [*wrong_seeks("the stock client", times, seeks), *wrong_seeks("the reader of the tier", times, in_tier)]
        if entries := source.counters.counts().entries.get(StorageTier.HOT, 0):
            wrong.append(f"the seeks by time read {entries} entries from the hot log, not from the tier")
    if not wrong:
        screen.say(
            f"  Seek by time found the very entry that a full scan finds: {len(seeks)} times through the stock client, "
            f"{len(in_tier)} times in the tier."
        )
    return found + wrong


def _scan(home: Path, topic: SourceTopic, screen: Screen) -> pa.Table:
    """Read all messages with Spark, twice: the first query also starts workers and compiles its code in the JVM."""
    began = time.monotonic()
    options = {"source": str(home), "topic": topic.name, "readPriority": "tiered-first"}
    with local_session(**QUIET) as session:
        screen.say(f"  Spark {session.version} is up after {time.monotonic() - began:.1f} s.")
        # Small splits, so that a few megabytes make tasks for several workers.
        frame = session.read.format("afterglow").options(**options, maxPartitionBytes=4 << 20).load()
        try:
            began = time.monotonic()
            back = frame.selectExpr(*_READ).toArrow()
            cold_s = time.monotonic() - began
            began = time.monotonic()
            again = frame.selectExpr(*_READ).toArrow()
            warm_s = time.monotonic() - began
        except Exception as error:
            raise AfterglowError(f"the Spark job that reads {topic.name} failed: {summarize(error)}") from error
    if not again.equals(back):
        raise AfterglowError(f"two Spark jobs read different messages of {topic.name}; run afterglow verify on {home}")
    size_mb = sum(back["value_bytes"].to_pylist()) / 1e6
    screen.say(
        f'  spark.read.format("afterglow") read {back.num_rows:,} messages, {size_mb:.1f} MB, from '
        f"{len(topic.segments())} segments: cold, with the start of Python workers, in {cold_s:.1f} s; warm in "
        f"{warm_s:.1f} s ({back.num_rows / warm_s:,.0f} messages/s, {size_mb / warm_s:.1f} MB/s)."
    )
    return back


def message_rows(back: pa.Table) -> list[MessageRow]:
    """Convert the result of Spark to messages, in the order of reading."""
    rows = zip(*(back.column(index).to_pylist() for index in range(len(_MESSAGE))), strict=True)
    return [(*position, key, dict(properties), event_ms, value) for *position, key, properties, event_ms, value in rows]


def differences(sent: Sequence[MessageRow], back: Sequence[MessageRow]) -> list[str]:
    """Describe differences between sent and read messages, in content, position or order."""
    if len(sent) != len(back):
        return [f"{len(sent):,} messages were sent, {len(back):,} came back"]
    moved = "from another position than the broker had acknowledged"
    return [
        f"message {number} came back {'changed' if one[:3] == other[:3] else moved}"
        for number, (one, other) in enumerate(zip(sent, back, strict=True))
        if one != other
    ]


def entry_times(back: pa.Table) -> dict[Position, int]:
    """Return the broker times of all entries in the order of positions, in epoch milliseconds."""
    columns = (back[name].to_pylist() for name in ("ledger_id", "entry_id", "broker_ms"))
    return {Position(ledger, entry): time_ms for ledger, entry, time_ms in zip(*columns, strict=True)}


def wrong_seeks(reader: str, times: Mapping[Position, int], seeks: Iterable[Seek]) -> list[str]:
    """Describe seeks that did not find the first entry at or after their time, or the position after the last entry."""
    end = max(times).next()
    return [
        f"{reader} sought {time_ms} and found {found}, not {expected}"
        for time_ms, found in seeks
        if (expected := next((position for position, at in times.items() if at >= time_ms), end)) != found
    ]
