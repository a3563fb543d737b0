"""Durable subscriptions that keep a Pulsar cluster from trimming entries that are not in the tier yet.

* **Nothing is received.** The consumers never grant permits. They are Exclusive: while they are connected no other
  consumer can move the subscription, and a standby subscribes as soon as this process, or its connection, has ended.
* **Acknowledgements follow commits.** The caller acknowledges the ends of committed segments, cumulatively. An
  acknowledgement survives lost connections: the newest one is sent again when the topic is held again. A broker may
  forget confirmed ones when it crashes, which holds back more than needed and never less.
* **The subscription is watched.** After each subscribe, and with each probe of the last message, the mark-delete
  position is compared with the acknowledgements. Whatever deleted, expired, skipped or reset the subscription behind
  the caller's back is recorded in :class:`~afterglow.hot.pulsar.hold_state.HoldState`, with the range concerned.
* **Idle topics cost nothing.** There is one connection with one thread per broker, and one thread for lookups; see
  :mod:`afterglow.hot.pulsar.hold_connection`.
"""

from __future__ import annotations

import heapq
import itertools
import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, Final, Self

from afterglow.errors import AfterglowError, HotLogError, HotLogUnavailable, TopicMissing
from afterglow.hot.pulsar.broker_connection import Deadline
from afterglow.hot.pulsar.hold_connection import HoldConnection, connection_error
from afterglow.hot.pulsar.hold_state import HoldState, is_recreated, joined, skipped_range
from afterglow.hot.pulsar.lookup import BrokerLookup, Dialer
from afterglow.metadata.names import TopicName, encode_name
from afterglow.pacing import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from afterglow.format.position import Position
    from afterglow.hot.pulsar.address import PulsarAddress
    from afterglow.hot.pulsar.hold_state import LastMessage
    from afterglow.hot.pulsar.lookup import Route

    Settle: TypeAlias = Callable[[], None]
    HasEntries: TypeAlias = Callable[[TopicName, Position, Position], bool]

DEFAULT_SUBSCRIPTION: Final = "afterglow"

_BACKOFF_S: Final = Backoff(0.1, 30.0)
_STABLE_S: Final = 10.0
"""Time after which a hold counts as successful, so that the next backoff starts anew."""


class _Wanted(Enum):
    HOLD = auto()
    RELEASE = auto()
    UNSUBSCRIBE = auto()


@dataclass(slots=True)
class _Hold:
    topic: TopicName
    state: HoldState
    wanted: _Wanted
    """RELEASE if nothing is under way: for a new topic, and after a permanent error."""
    requested: Position | None = None
    connection: HoldConnection | None = None
    """Has the connected consumer; None while the topic is not held."""
    was_held: bool = False
    held_at: float = 0.0
    failures: int = 0
    holding: list[Future[HoldState]] = field(default_factory=list)
    acknowledging: list[tuple[Position, Future[Position]]] = field(default_factory=list)
    ending: list[Future[None]] = field(default_factory=list)
    """Futures of ``release`` and ``unsubscribe``."""


class SubscriptionHolds:
    """Holds one durable subscription per topic. Thread-safe; every method returns at once.

    Results arrive in futures, which a caller may ignore: :meth:`state` reports the same.

    Args:
        address: The cluster.
        subscription: Name of the subscription of every topic.
        timeout_s: Longest wait for a response of a broker.
        has_entries: Whether a topic has, or had, entries behind the first position up to the second one. It is called
            in threads of this object when the mark-delete position is ahead of the acknowledgements, as it also is
            when Pulsar moved it from the end of a ledger to the start of the next one. None: always assumed.

    Raises:
        InvalidName: The subscription name is not well-formed.
    """

    def __init__(
        self,
        address: PulsarAddress,
        subscription: str = DEFAULT_SUBSCRIPTION,
        *,
        timeout_s: float = 30.0,
        has_entries: HasEntries | None = None,
    ) -> None:
        encode_name(subscription)
        self.subscription = subscription
        self._dialer = Dialer(address)
        self._timeout_s = timeout_s
        self._has_entries = has_entries
        self._changed = Condition()
        self._holds: dict[TopicName, _Hold] = {}
        self._connections: dict[Route, HoldConnection] = {}
        self._due: list[tuple[float, int, TopicName]] = []
        self._sequence = itertools.count()
        self._closed = False
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- methods of callers ---

    def hold(self, topic: str, acknowledged: Position | None = None) -> Future[HoldState]:
        """Hold the subscription of a topic, or of one partition; create it before the earliest entry if it is missing.

        Transient failures are retried until :meth:`release`. A permanent one is retried only if the subscription was
        held before; a missing topic never is.

        Args:
            topic: Name of the topic, in any form. It must exist.
            acknowledged: The end of the last committed segment, which is acknowledged if the subscription is behind
                it, and with which a mark-delete position ahead of it is compared; None if nothing was committed.

        Returns:
            A future of the state once it is held. It raises ``AccessDenied`` if the token is not accepted or the role
            may not consume, ``TopicMissing`` if the topic does not exist, ``NotSupported`` if a limit forbids the
            subscription, ``ConfigError`` if a certificate is not trusted.

        Raises:
            InvalidName: The topic's name is not well-formed.
            HotLogError: This object is closed.
        """
        name = TopicName.parse(topic)
        result: Future[HoldState] = Future()
        with self._changed:
            hold = self._start(name, _Wanted.HOLD)
            if acknowledged is not None and (hold.requested is None or acknowledged > hold.requested):
                hold.requested = acknowledged
                hold.state = replace(hold.state, acknowledged=acknowledged)
            if hold.connection is None:
                hold.holding.append(result)
                return result
            state = hold.state
        result.set_result(state)
        return result

    def acknowledge(self, topic: str, position: Position) -> Future[Position]:
        """Acknowledge all entries of a topic up to ``position``, which must be in committed segments.

        Returns:
            A future of the position once the broker has confirmed it, or a later one. It survives lost connections. It
            raises ``HotLogError`` if the topic is released before, or the broker refuses the position.

        Raises:
            InvalidName: The topic's name is not well-formed.
            HotLogError: The topic is not to be held: call :meth:`hold` first.
        """
        name = TopicName.parse(topic)
        result: Future[Position] = Future()
        with self._changed:
            hold = self._holds.get(name)
            if hold is None or hold.wanted is not _Wanted.HOLD:
                raise HotLogError(f"the subscription of {name} is not to be held; call hold() first")
            if hold.state.acknowledged is None or position > hold.state.acknowledged:
                hold.acknowledging.append((position, result))
                if hold.requested is None or position > hold.requested:
                    hold.requested = position
                    if hold.connection is not None:
                        hold.connection.acknowledge(name, position)
                return result
        result.set_result(position)
        return result

    def state(self, topic: str) -> HoldState:
        """The state of a topic's subscription; that of a topic which was never to be held is empty.

        Raises:
            InvalidName: The topic's name is not well-formed.
        """
        name = TopicName.parse(topic)
        with self._changed:
            hold = self._holds.get(name)
            return HoldState(str(name)) if hold is None else hold.state

    def last_message_id(self, topic: str) -> Future[LastMessage]:
        """Request the last message of a held topic: one small request to its broker, which reads at most one entry.

        Returns:
            A future of the response. It raises ``HotLogUnavailable`` if the topic is not held now.

        Raises:
            InvalidName: The topic's name is not well-formed.
        """
        name = TopicName.parse(topic)
        result: Future[LastMessage] = Future()
        with self._changed:
            hold = self._holds.get(name)
            connection = None if hold is None else hold.connection
        if connection is None or not connection.request_last_message(name, result):
            result.set_exception(HotLogUnavailable(f"the subscription of {name} is not held now; retry"))
        return result

    def release(self, topic: str) -> Future[None]:
        """Close the consumer of a topic and keep its subscription, so that another process can hold it.

        Returns:
            A future without value, once it is closed.

        Raises:
            InvalidName: The topic's name is not well-formed.
        """
        name = TopicName.parse(topic)
        result: Future[None] = Future()
        settled: list[Settle] = []
        with self._changed:
            hold = self._holds.pop(name, None)
            connection = None if hold is None else hold.connection
            if hold is not None:
                hold.wanted = _Wanted.RELEASE
                error = HotLogError(f"the subscription of {name} was released")
                self._fail(hold, error, settled)
                self._fail_ending(hold, error, settled)
            # A subscribe may be under way: the connection gets it before this request.
            closing = [connection] if connection is not None else list(self._connections.values())
        _run_all(settled)
        closed: list[Future[None]] = []
        for each in closing if hold is not None else ():
            done: Future[None] = Future()
            if each.close_consumer(name, done):
                closed.append(done)
        _when_all(closed, result)
        return result

    def unsubscribe(self, topic: str) -> Future[None]:
        """Delete the subscription of a topic: the cluster then trims by its own policies. Needs no :meth:`hold` before.

        Returns:
            A future without value, once it is deleted. It raises as that of :meth:`hold` does.

        Raises:
            InvalidName: The topic's name is not well-formed.
            HotLogError: This object is closed.
        """
        name = TopicName.parse(topic)
        result: Future[None] = Future()
        settled: list[Settle] = []
        with self._changed:
            hold = self._start(name, _Wanted.UNSUBSCRIBE)
            self._fail(hold, HotLogError(f"the subscription of {name} is being deleted"), settled)
            hold.ending.append(result)
            if hold.connection is not None:
                hold.connection.unsubscribe(name)
        _run_all(settled)
        return result

    def close(self) -> None:
        """Close every consumer; subscriptions remain. Pending futures fail."""
        settled: list[Settle] = []
        with self._changed:
            self._closed = True
            connections = list(self._connections.values())
            for hold in self._holds.values():
                error = HotLogError(f"the holder of the subscription of {hold.topic} was closed")
                self._fail(hold, error, settled)
                self._fail_ending(hold, error, settled)
            self._holds.clear()
            thread = self._thread
            self._changed.notify_all()
        _run_all(settled)
        for connection in connections:
            connection.close()
        for connection in connections:
            connection.join(self._timeout_s)
        if thread is not None:
            thread.join(self._timeout_s)

    # --- results of connections, in their threads ---

    def on_held(self, connection: HoldConnection, topic: TopicName, found: LastMessage) -> None:
        """See :class:`~afterglow.hot.pulsar.hold_connection.HoldListener`."""
        with self._changed:
            known = self._holds.get(topic)
            requested = None if known is None else known.requested
        skips = self._skips(topic, requested, found)
        settled: list[Settle] = []
        with self._changed:
            hold = self._holds.get(topic)
            if hold is None or self._closed:
                connection.close_consumer(topic, Future())
                return
            hold.connection, hold.was_held, hold.held_at = connection, True, time.monotonic()
            self._compare(hold, requested, found, skips=skips, subscribed=True)
            hold.state = replace(hold.state, held=True, since_ms=time.time_ns() // 1_000_000, last_error=None)
            if hold.wanted is _Wanted.UNSUBSCRIBE:
                connection.unsubscribe(topic)
            elif hold.requested is not None and (found.mark_delete is None or found.mark_delete < hold.requested):
                connection.acknowledge(topic, hold.requested)
            else:
                self._confirm(hold, hold.requested, settled)
            settled += [_success(future, hold.state) for future in hold.holding]
            hold.holding.clear()
        _run_all(settled)

    def on_acknowledged(self, topic: TopicName, position: Position) -> None:
        """See :class:`~afterglow.hot.pulsar.hold_connection.HoldListener`."""
        settled: list[Settle] = []
        with self._changed:
            hold = self._holds.get(topic)
            if hold is not None:
                self._confirm(hold, position, settled)
        _run_all(settled)

    def on_acknowledge_refused(self, topic: TopicName, position: Position, error: AfterglowError) -> None:
        """See :class:`~afterglow.hot.pulsar.hold_connection.HoldListener`."""
        settled: list[Settle] = []
        with self._changed:
            hold = self._holds.get(topic)
            if hold is not None:
                hold.state = replace(hold.state, last_error=error)
                failed = [future for each, future in hold.acknowledging if each <= position]
                hold.acknowledging = [(each, future) for each, future in hold.acknowledging if each > position]
                settled += [_failure(future, error) for future in failed]
        _run_all(settled)

    def on_probe(self, topic: TopicName, found: LastMessage) -> None:
        """See :class:`~afterglow.hot.pulsar.hold_connection.HoldListener`."""
        with self._changed:
            known = self._holds.get(topic)
            requested = None if known is None else known.requested
        skips = self._skips(topic, requested, found)
        with self._changed:
            hold = self._holds.get(topic)
            if hold is not None:
                self._compare(hold, requested, found, skips=skips, subscribed=False)

    def on_unsubscribed(self, topic: TopicName) -> None:
        """See :class:`~afterglow.hot.pulsar.hold_connection.HoldListener`."""
        settled: list[Settle] = []
        with self._changed:
            hold = self._holds.get(topic)
            if hold is not None:
                settled += [_success(future, None) for future in hold.ending]
                hold.ending = []
                hold.connection = None
                if hold.wanted is _Wanted.HOLD:  # hold() was called meanwhile
                    hold.state = replace(hold.state, held=False, since_ms=None)
                    self._schedule(topic, 0.0)
                else:
                    del self._holds[topic]
        _run_all(settled)

    def on_lost(self, connection: HoldConnection, topic: TopicName, error: AfterglowError) -> None:
        """See :class:`~afterglow.hot.pulsar.hold_connection.HoldListener`."""
        settled: list[Settle] = []
        with self._changed:
            hold = self._holds.get(topic)
            if hold is not None and hold.connection in {None, connection}:
                self._lose(hold, error, settled)
        _run_all(settled)

    def on_end(self, connection: HoldConnection) -> None:
        """See :class:`~afterglow.hot.pulsar.hold_connection.HoldListener`."""
        with self._changed:
            if self._connections.get(connection.route) is connection:
                del self._connections[connection.route]

    # --- changes of a hold, under the lock ---

    def _start(self, name: TopicName, wanted: _Wanted) -> _Hold:
        if self._closed:
            raise HotLogError("the holder of subscriptions was closed")
        hold = self._holds.get(name)
        if hold is None:
            hold = self._holds[name] = _Hold(name, HoldState(str(name)), _Wanted.RELEASE)
        if hold.wanted is _Wanted.RELEASE:
            self._schedule(name, 0.0)
        hold.wanted = wanted
        return hold

    def _schedule(self, name: TopicName, delay_s: float) -> None:
        heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._sequence), name))
        if self._thread is None:
            self._thread = Thread(target=self._run, name="afterglow-hold lookup", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _confirm(self, hold: _Hold, position: Position | None, settled: list[Settle]) -> None:
        if position is None:
            return
        if hold.state.acknowledged is None or position > hold.state.acknowledged:
            hold.state = replace(hold.state, acknowledged=position)
        settled += [_success(future, position) for each, future in hold.acknowledging if each <= position]
        hold.acknowledging = [(each, future) for each, future in hold.acknowledging if each > position]

    def _compare(
        self, hold: _Hold, requested: Position | None, found: LastMessage, *, skips: bool, subscribed: bool
    ) -> None:
        if found.mark_delete is None:
            return
        skipped = skipped_range(requested, found.mark_delete, lambda _, __: skips)
        hold.state = replace(
            hold.state,
            mark_delete=found.mark_delete,
            recreated=hold.state.recreated
            or (subscribed and is_recreated(hold.state.acknowledged, found.mark_delete, skipped)),
            may_be_lost=joined(hold.state.may_be_lost, skipped),
        )

    def _skips(self, topic: TopicName, requested: Position | None, found: LastMessage) -> bool:
        """Whether entries are between the acknowledgements and the mark-delete position; not called under the lock."""
        if requested is None or found.mark_delete is None or found.mark_delete <= requested:
            return False
        return self._has_entries is None or self._has_entries(topic, requested, found.mark_delete)

    def _lose(self, hold: _Hold, error: AfterglowError, settled: list[Settle]) -> None:
        if hold.connection is not None and time.monotonic() - hold.held_at >= _STABLE_S:
            hold.failures = 0
        hold.failures += 1
        hold.connection = None
        hold.state = replace(hold.state, held=False, since_ms=None, last_error=error)
        is_permanent = not isinstance(error, HotLogUnavailable)
        if isinstance(error, TopicMissing) or (is_permanent and not hold.was_held):
            self._fail(hold, error, settled)
            self._fail_ending(hold, error, settled)
            hold.wanted = _Wanted.RELEASE  # not retried; the state remains until the next hold()
        else:
            longest = _BACKOFF_S.longest
            self._schedule(hold.topic, longest if is_permanent else _BACKOFF_S.jittered(hold.failures))

    def _fail(self, hold: _Hold, error: AfterglowError, settled: list[Settle]) -> None:
        settled += [_failure(future, error) for future in hold.holding]
        settled += [_failure(future, error) for _, future in hold.acknowledging]
        hold.holding, hold.acknowledging = [], []

    def _fail_ending(self, hold: _Hold, error: AfterglowError, settled: list[Settle]) -> None:
        settled += [_failure(future, error) for future in hold.ending]
        hold.ending = []

    # --- the lookup thread ---

    def _run(self) -> None:
        lookup = BrokerLookup(self._dialer)
        while True:
            with self._changed:
                while not self._closed and (not self._due or self._due[0][0] > time.monotonic()):
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._closed:
                    return
                names: list[TopicName] = []
                while self._due and self._due[0][0] <= time.monotonic():
                    names.append(heapq.heappop(self._due)[2])
                names = [name for name in dict.fromkeys(names) if self._is_wanted(name)]
            try:
                self._find_brokers(lookup, names)
            finally:
                lookup.close()

    def _is_wanted(self, name: TopicName) -> bool:
        hold = self._holds.get(name)
        return hold is not None and hold.wanted is not _Wanted.RELEASE and hold.connection is None

    def _find_brokers(self, lookup: BrokerLookup, names: Sequence[TopicName]) -> None:
        for at, name in enumerate(names):
            if self._closed:
                return
            deadline = Deadline(f"lookup of {name}", self._timeout_s, self._timeout_s)
            try:
                route = lookup.find_route(name, deadline)
            except AfterglowError as error:
                # Without a connection the others would fail one after the other, each after its deadline.
                for each in [name] if lookup.is_reachable else names[at:]:
                    self._lookup_failed(each, error)
                if not lookup.is_reachable:
                    return
            else:
                while not (connection := self._connection(route)).subscribe(name):
                    self.on_end(connection)

    def _lookup_failed(self, name: TopicName, error: AfterglowError) -> None:
        settled: list[Settle] = []
        with self._changed:
            hold = self._holds.get(name)
            if hold is not None and hold.connection is None:
                self._lose(hold, connection_error(name, self.subscription, error), settled)
        _run_all(settled)

    def _connection(self, route: Route) -> HoldConnection:
        with self._changed:
            connection = self._connections.get(route)
            if connection is None:
                connection = HoldConnection(self._dialer, route, self.subscription, self, timeout_s=self._timeout_s)
                if not self._closed:
                    self._connections[route] = connection
                    connection.start()
            return connection


def _success(future: Future[Any], value: object) -> Settle:
    return lambda: _settle(lambda: future.set_result(value))


def _failure(future: Future[Any], error: AfterglowError) -> Settle:
    return lambda: _settle(lambda: future.set_exception(error))


def _settle(settle: Settle) -> None:
    with suppress(InvalidStateError):  # its caller has cancelled it
        settle()


def _when_all(futures: Sequence[Future[None]], result: Future[None]) -> None:
    """Complete ``result`` once all futures are complete."""
    remaining = list(futures)

    def wait_for_next(_: object) -> None:
        if remaining:
            remaining.pop().add_done_callback(wait_for_next)
        else:
            _settle(lambda: result.set_result(None))

    wait_for_next(None)


def _run_all(settled: Sequence[Settle]) -> None:
    """Complete futures, outside of the lock: their callbacks are the caller's."""
    for settle in settled:
        settle()
