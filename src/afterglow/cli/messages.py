"""A stock Pulsar client for the command line: sends and receives a few messages and reports errors as ours."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from afterglow.cli.received import Received
from afterglow.errors import AfterglowError, ConfigError, MissingDependency
from afterglow.metadata.encoding import encode_name

try:
    import pulsar
except ImportError as error:
    raise MissingDependency("topics produce and consume need the stock client: pip install pulsar-client") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from afterglow.cli.client import AdminClient
    from afterglow.metadata.names import TopicName

_REPORT_EVERY: Final = 1000
_TIMEOUT_S: Final = 30
_SLICE_MS: Final = 200
"""Of a wait for a message: the client does not return for a signal before."""


class StockClient:
    """A connection to a cluster; a context manager."""

    def __init__(self, admin: AdminClient, service_url: str | None) -> None:
        """Connect when first used.

        Args:
            admin: Knows the cluster's address, and has the credentials.
            service_url: The address, where it is given.

        Raises:
            ConfigError: The address is none.
            AdminFailed: The admin API was asked for it and did not answer.
        """
        connection = admin.connection
        url = service_url or _service_url(admin)
        try:
            self._client: Any = pulsar.Client(
                url,
                authentication=pulsar.AuthenticationToken(connection.token) if connection.token else None,
                tls_trust_certs_file_path=connection.ca_file,
                tls_validate_hostname=True,
                operation_timeout_seconds=_TIMEOUT_S,
                logger=_silent(),
            )
        except ValueError as error:
            raise ConfigError(f"--service-url {url!r}: {error}; write pulsar://HOST:PORT") from error
        self._url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        if isinstance(error, pulsar.PulsarException):
            raise AfterglowError(f"the cluster at {self._url} refused or did not answer: {error}") from error

    def send(
        self, topic: TopicName, values: Iterable[bytes], key: str | None, report: Callable[[int], None]
    ) -> str | None:
        """Send messages and wait until all are stored.

        Args:
            topic: Where to.
            values: Of the messages.
            key: Of all messages.
            report: Called now and then with how many were handed over.

        Returns:
            The position of the last message; None where there was none.

        Raises:
            AfterglowError: A message was not stored.
        """
        producer = self._client.create_producer(str(topic), block_if_queue_full=True, batching_enabled=True)
        outcome = _Outcome()
        for number, value in enumerate(values, 1):
            producer.send_async(value, outcome.take, partition_key=key)
            if number % _REPORT_EVERY == 0:
                report(number)
                if outcome.failed is not None:
                    break
        producer.flush()
        producer.close()
        if outcome.failed is not None:
            raise AfterglowError(f"{topic} did not take a message: {outcome.failed}")
        return None if outcome.last is None else _position(outcome.last)

    def receive(self, topic: TopicName, subscription: str | None, timeout_ms: int) -> Iterator[Received]:
        """Messages, until none comes in time.

        Args:
            topic: Where from.
            subscription: Whose position counts and moves; None reads from the beginning and leaves nothing behind.
            timeout_ms: Longest wait for a message.
        """
        if subscription is None:
            reader = self._client.create_reader(str(topic), pulsar.MessageId.earliest)
            yield from _until_timeout(reader.read_next, timeout_ms)
            return
        consumer = self._client.subscribe(
            str(topic),
            subscription,
            initial_position=pulsar.InitialPosition.Earliest,
            batch_index_ack_enabled=True,  # else a batch that is taken in part comes again whole
        )

        def receive(wait_ms: int) -> Any:
            message = consumer.receive(wait_ms)
            consumer.acknowledge(message)
            return message

        yield from _until_timeout(receive, timeout_ms)


class _Outcome:
    """Of messages that are on their way; called from the client's own thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.last: Any = None
        self.failed: Any = None

    def take(self, result: Any, message_id: Any) -> None:
        with self._lock:
            if result == pulsar.Result.Ok:
                self.last = message_id
            elif self.failed is None:
                self.failed = result


def _until_timeout(receive: Callable[[int], Any], timeout_ms: int) -> Iterator[Received]:
    """Messages, each within the time; it is waited for in slices."""
    deadline = time.monotonic() + timeout_ms / 1000
    while True:
        left_ms = max(round((deadline - time.monotonic()) * 1000), 1)
        try:
            message = receive(min(left_ms, _SLICE_MS))
        except pulsar.Timeout:
            if left_ms <= _SLICE_MS:
                return
            continue
        yield _received(message)
        deadline = time.monotonic() + timeout_ms / 1000


def _received(message: Any) -> Received:
    place = message.message_id()
    return Received(
        topic=message.topic_name(),
        ledger_id=place.ledger_id(),
        entry_id=place.entry_id(),
        batch_index=place.batch_index(),
        publish_time=message.publish_timestamp(),
        event_time=message.event_timestamp() or None,
        key=message.partition_key() or None,
        properties=message.properties(),
        value=message.data(),
    )


def _position(place: Any) -> str:
    batch = f":{place.batch_index()}" if place.batch_index() >= 0 else ""
    return f"{place.ledger_id()}:{place.entry_id()}{batch}"


def _silent() -> logging.Logger:
    """What fails is raised as well; the client's own lines would go to stdout, among the results."""
    log = logging.getLogger(f"{__name__}.client")
    log.setLevel(logging.CRITICAL + 1)
    return log


def _service_url(admin: AdminClient) -> str:
    for cluster in admin.names("clusters"):
        found = admin.fields(f"clusters/{encode_name(cluster)}")
        url = found.get("brokerServiceUrl") or found.get("brokerServiceUrlTls")
        if url:
            return str(url)
    raise AfterglowError("the admin API does not say where clients connect: give --service-url pulsar://HOST:PORT")
