"""Random topics in the home of a server that writes, rolls, offloads, frees, trims and restarts.

Bytes and metadata come about by the production writers; what was produced is kept as a plain list beside them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from tests.support.homes import ServerHome
from tests.support.produced import FIRST, LAST, Asked, Ledger, Produced
from tests.support.random_messages import ABORT, COMMIT, Producer, marker

from afterglow.config.choices import EntryInterceptor
from afterglow.ledger.retention import Retention
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.support.produced import Point
    from tests.support.random_messages import Row, Sent

PLAIN: Final = ("persistent://public/default/a", "persistent://public/default/b")
PARTITIONED: Final = "persistent://public/default/parts"

_STAMPS: Final = (
    (),
    (EntryInterceptor.BROKER_TIMESTAMP,),
    (EntryInterceptor.INDEX,),
    (EntryInterceptor.BROKER_TIMESTAMP, EntryInterceptor.INDEX),
)


class RandomTopics:
    """Topics of one home, for the time of a ``with``.

    Args:
        path: The home; must exist.
        draw: Where all chances come from.
        transactions: Whether there are any.

    Attributes:
        parts: What was produced, topic by topic in the order of reading.
        story: What has happened.
    """

    def __init__(self, path: Path, draw: random.Random, *, transactions: bool = False) -> None:
        self.path = path
        self.story: list[str] = []
        self._draw = draw
        self._transactions = transactions
        self._next_transaction = 0
        # Stamps come or go at most once: a topic that had them, lost them and has them again knows no index.
        self._stamps = draw.choice(_STAMPS)
        self._server = ServerHome(path, broker_entry_metadata_interceptors=self._stamps)
        self._restarted = False
        self._server.catalog.create_partitioned(TopicName.parse(PARTITIONED), 1)
        self.parts = [Produced(name) for name in (*PLAIN, f"{PARTITIONED}-partition-0")]
        self._producers = [Producer(f"producer-{number}", draw) for number in range(3)]
        for part in self.parts:
            self._server.open(part.name)
        if transactions:  # as a Pulsar that takes some has it
            self._server.open("persistent://public/default/__transaction_buffer_snapshot")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    # --- what is asked ---

    def asked(self) -> Asked:
        """A random window: between entries, within batches, before and behind all; and of time."""
        draw = self._draw
        rows = [row for part in self.parts for row, _, _ in part.rows]
        locations = [(row["ledger_id"], row["entry_id"], row["batch_index"]) for row in rows] or [(0, 0, -1)]
        times = [
            row[name] // 1000 for row in rows for name in ("publish_time", "broker_time") if row[name] is not None
        ] or [self._server.clock.now_ms()]

        def point() -> Point:
            ledger_id, entry_id, number = draw.choice(locations)
            if draw.random() < 0.3:
                entry_id = max(entry_id + draw.randint(-2, 2), 0)
            if draw.random() < 0.2:
                number = draw.randint(1, 3)
            return (ledger_id, entry_id, number if number > 0 else -1)

        def moment() -> int:
            time_ms: int = draw.choice(times)
            return max(time_ms + draw.choice([-1, 0, 0, 1]), 0)

        kind = draw.choice(["all", "places", "places", "times", "times", "both"])
        asked = Asked()
        if kind in {"places", "both"}:
            first, last = sorted((point(), point()))
            start, end = draw.choice([(first, last), (first, LAST), (FIRST, last)])
            asked = Asked(start, end)
        if kind in {"times", "both"}:
            since, until = sorted((moment(), moment()))
            bounds = draw.choice([(since, until), (since, None), (None, until)])
            asked = Asked(asked.start, asked.end, *bounds)
        return asked

    def rows(self, asked: Asked, parts: Sequence[Produced] | None = None, *, hot_first: bool = False) -> list[Row]:
        """The wanted messages in order, with the tier that serves them."""
        return [
            {**row, "tier": part.tier(row, hot_first=hot_first)}
            for part in (self.parts if parts is None else parts)
            for row in part.there()
            if asked.takes(row)
        ]

    # --- what happens ---

    def happen(self, steps: int) -> None:
        """Let random things happen."""
        happenings: list[tuple[int, Callable[[], str | None]]] = [
            (12, self._write),
            (3, self._roll),
            (4, self._offload),
            (5, self._segment),
            (3, self._free),
            (1, self._trim),
            (1, self._restart),
            (1, self._grow),
        ]
        weights, calls = zip(*happenings, strict=True)
        for _ in range(steps):
            event = self._draw.choices(calls, weights)[0]()
            self.story += [] if event is None else [event]
        self._server.hot.flush()  # others see at once what they would see a little later

    @property
    def undecided(self) -> bool:
        """Whether a transaction was not ended."""
        return any(part.open for part in self.parts)

    def decide(self) -> None:
        """End every transaction, and finish or give up what is in chunks."""
        for part in self.parts:
            while part.waiting:
                self._send(part, self._next_chunk(part))
            for transaction in sorted(part.open):
                self._end(part, transaction)
        self._server.hot.flush()

    def read_by_stream(self, *, ended: bool) -> None:
        """Note that a stream has read everything, and what stands before the last ledger may be trimmed; or not."""
        for part in self.parts:
            part.read_to = max(part.ledgers, default=-1) if ended else -1

    def _write(self) -> str:
        part, draw = self._draw.choice(self.parts), self._draw
        count = draw.randint(1, 15)
        for _ in range(count):
            self._server.clock.advance(draw.choice([0, 0.001, 1, 60]))
            if draw.random() < 0.05:  # as clocks are now and then
                self._server.clock.set_now_ms(self._server.clock.now_ms() - draw.randint(1, 10_000))
            if part.waiting and draw.random() < 0.6:
                self._send(part, self._next_chunk(part))
            elif part.open and draw.random() < 0.2:
                self._end(part, draw.choice(sorted(part.open)))
            else:
                self._send(part, self._new_message(part))
        return f"{part.name}: {count} entries"

    def _new_message(self, part: Produced) -> Sent:
        draw, transaction = self._draw, None
        if self._transactions and draw.random() < 0.3:
            if not part.open or draw.random() < 0.3:
                self._next_transaction += 1
                part.open.add(self._next_transaction)
            transaction = draw.choice(sorted(part.open))
        sent = draw.choice(self._producers).message(self._server.clock.now_ms(), transaction)
        if len(sent) > 1:
            part.waiting.append(sent)
            return self._next_chunk(part, sent)
        return sent[0]

    def _next_chunk(self, part: Produced, sent: list[Sent] | None = None) -> Sent:
        """The next entry of a message in chunks; now and then the rest of it never comes."""
        sent = sent or self._draw.choice(part.waiting)
        found = sent.pop(0)
        if not sent or self._draw.random() < 0.05:
            part.waiting = [each for each in part.waiting if each is not sent]
        return found

    def _send(self, part: Produced, sent: Sent) -> None:
        position = self._server.append(part.name, sent.data, sent.messages)
        stamps = self._stamps
        if EntryInterceptor.INDEX in stamps and sent.messages:
            part.index = sent.messages - 1 if part.index is None else part.index + sent.messages
        if EntryInterceptor.BROKER_TIMESTAMP in stamps:
            part.broker_time_ms = max(part.broker_time_ms, self._server.clock.now_ms())
        for ledger in part.ledgers.values():
            ledger.closed = ledger.ledger_id != position.ledger_id
        ledger = part.ledgers.setdefault(position.ledger_id, Ledger(position.ledger_id))
        ledger.entries = position.entry_id + 1
        held = {position.ledger_id}
        if sent.chunk_of is not None:
            held = part.chunks.setdefault(sent.chunk_of, set())
            held.add(position.ledger_id)
        for row in sent.rows:
            where = {"topic": part.name, "ledger_id": position.ledger_id, "entry_id": position.entry_id}
            stamped: Row = {"broker_time": None, "index": None}
            if EntryInterceptor.BROKER_TIMESTAMP in stamps:
                stamped["broker_time"] = part.broker_time_ms * 1000
            if EntryInterceptor.INDEX in stamps and part.index is not None:
                behind = sent.messages - 1 - row["batch_index"] if row["batch_index"] >= 0 else 0
                stamped["index"] = part.index - behind
            part.rows.append(({**where, **row, **stamped}, frozenset(held), sent.transaction))

    def _end(self, part: Produced, transaction: int) -> None:
        part.waiting = [each for each in part.waiting if each[0].transaction != transaction]
        kind = self._draw.choice([COMMIT, COMMIT, ABORT])
        self._send(part, marker(transaction, kind, self._server.clock.now_ms()))
        part.open.discard(transaction)
        if kind == COMMIT:
            part.committed.add(transaction)

    def _roll(self) -> str:
        part = self._draw.choice(self.parts)
        if part.ledgers:
            self._server.open(part.name).roll()
            for ledger in part.ledgers.values():
                ledger.closed = True
        return f"{part.name}: rolled"

    def _offload(self) -> str | None:
        """Copy a closed ledger into an object of its own."""
        found = [
            (part, ledger)
            for part in self.parts
            for ledger in part.ledgers.values()
            if ledger.closed and not ledger.tiered
        ]
        if not found:
            return None
        part, ledger = self._draw.choice(found)
        self._server.offload(part.name, ledger.ledger_id, block_bytes=self._draw.choice([7_000, 20_000, None]))
        ledger.whole, ledger.tiered = True, ledger.entries
        return f"{part.name}: ledger {ledger.ledger_id} offloaded"

    def _segment(self) -> str | None:
        """Copy what follows on what segments have, as far as chance goes, over the ends of ledgers."""
        part, draw = self._draw.choice(self.parts), self._draw
        ranges: list[tuple[Ledger, int]] = []
        for ledger in part.ledgers.values():
            if ledger.whole or ledger.tiered == ledger.entries:
                if ranges:
                    break
                continue
            if ranges and ledger.tiered:
                break
            to_its_end = ledger.closed and draw.random() < 0.6
            ranges.append((ledger, ledger.entries if to_its_end else draw.randint(ledger.tiered + 1, ledger.entries)))
            if ranges[-1][1] < ledger.entries or not ledger.closed or draw.random() < 0.2:
                break
        if not ranges:
            return None
        self._server.offload_segment(
            part.name,
            *((ledger.ledger_id, ledger.tiered, end - 1) for ledger, end in ranges),
            block_bytes=draw.choice([500, 5_000, 1 << 20]),
            recorded=draw.random() < 0.8,
            statistics=draw.random() < 0.6,
        )
        for ledger, end in ranges:
            ledger.tiered = end
        return f"{part.name}: segment of {[(ledger.ledger_id, end) for ledger, end in ranges]}"

    def _free(self) -> str | None:
        found = [
            (part, ledger)
            for part in self.parts
            for ledger in part.ledgers.values()
            if ledger.closed and ledger.tiered == ledger.entries and not ledger.freed
        ]
        if not found:
            return None
        part, ledger = self._draw.choice(found)
        self._server.free(part.name, ledger.ledger_id)
        ledger.freed = True
        return f"{part.name}: ledger {ledger.ledger_id} freed"

    def _trim(self) -> str | None:
        """Let retention take the oldest ledgers, as many as chance says of those that no stream needs."""
        part = self._draw.choice(self.parts)
        opened = self._server.open(part.name)
        read = [row for row in opened.ledgers if row.finished and row.ledger_id < part.read_to]
        if not read:
            return None
        self._server.clock.advance(1)
        opened.retention = Retention(self._server.clock.now_ms() - self._draw.choice(read).closed_ms - 1, -1)
        gone = opened.trim()
        opened.retention = Retention(-1, -1)
        assert all(ledger_id < part.read_to for ledger_id in gone)
        part.ledgers = {each: ledger for each, ledger in part.ledgers.items() if each not in gone}
        return f"{part.name}: ledgers {gone} trimmed"

    def _restart(self) -> str | None:
        """Stop the server and start another, which stamps otherwise."""
        if self._restarted:
            return None
        self._restarted = True
        self._server.stop()
        now_ms = self._server.clock.now_ms()
        self._stamps = (
            () if self._stamps and self._draw.random() < 0.5 else _STAMPS[-1] if not self._stamps else self._stamps
        )
        self._server = ServerHome(self.path, broker_entry_metadata_interceptors=self._stamps)
        self._server.clock.set_now_ms(now_ms)
        for part in self.parts:
            self._server.open(part.name)
            for ledger in part.ledgers.values():
                ledger.closed = True
        return f"restarted, with {self._stamps}"

    def _grow(self) -> str:
        number = len(self.parts) - len(PLAIN)
        self._server.catalog.update_partitions(TopicName.parse(PARTITIONED), number + 1)
        self.parts.append(Produced(f"{PARTITIONED}-partition-{number}"))
        self._server.open(self.parts[-1].name)
        return f"{number + 1} partitions"
