"""``topics produce``, ``consume`` and ``peek-messages``.

Produce and consume use the stock Pulsar client. Peek uses the admin API, which returns the payload of an entry with its
metadata in headers.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from afterglow.cli import parameters
from afterglow.cli.admin_commands import TOPICS
from afterglow.cli.command import AdminSession, topic_path
from afterglow.cli.interrupt import interruptible
from afterglow.cli.output import printable
from afterglow.cli.parameters import Count, Subscription, TopicArgument
from afterglow.errors import AfterglowError, ConfigError, MissingDependency
from afterglow.metadata.names import encode_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from afterglow.cli.client import CliAdminClient
    from afterglow.cli.output import Output
    from afterglow.metadata.admin_client import AdminResponse
    from afterglow.metadata.names import TopicName

_REPORT_EVERY: Final = 1000
_TIMEOUT_S: Final = 30
_MAX_WAIT_MS: Final = 200
"""Longest single wait for a message: the client does not return for a signal earlier."""

ServiceUrl = Annotated[
    str | None,
    typer.Option("--service-url", metavar="URL", help="Address for clients. Default: as the admin API returns it."),
]
Raw = Annotated[bool, typer.Option("--raw", help="Print only the values, unmodified, each followed by a newline.")]


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message from the stock client or from the admin API."""

    topic: str
    ledger_id: int
    entry_id: int
    batch_index: int
    """-1 if the message is not in a batch."""
    publish_time: int | None
    event_time: int | None
    key: str | None
    properties: dict[str, str]
    value: bytes

    @property
    def line(self) -> str:
        """The message as text; invalid UTF-8 is replaced, control characters are escaped."""
        batch = f":{self.batch_index}" if self.batch_index >= 0 else ""
        key = "" if self.key is None else f"{self.key}="
        return f"{self.ledger_id}:{self.entry_id}{batch}\t{printable(key + self.value.decode('utf-8', 'replace'))}"

    @property
    def row(self) -> dict[str, Any]:
        """The message as JSON, with the keys of ``afterglow read``."""
        return {
            "topic": self.topic,
            "ledger_id": self.ledger_id,
            "entry_id": self.entry_id,
            "batch_index": self.batch_index,
            "publish_time": self.publish_time,
            "event_time": self.event_time,
            "key": self.key,
            "properties": self.properties,
            "value_base64": base64.b64encode(self.value).decode(),
        }

    def show(self, out: Output, *, raw: bool) -> None:
        """Print the message."""
        if raw:
            out.raw(self.value)
        else:
            out.say(self.line, self.row)


@TOPICS.command("produce")
def produce(
    session: AdminSession,
    topic: TopicArgument,
    *,
    messages: Annotated[list[str], typer.Option("--message", "-m", metavar="TEXT", help="Message text. Repeatable.")],
    count: Annotated[int, typer.Option("--num-produce", "-n", min=1, help="Number of times to send the messages.")] = 1,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of the messages.")] = None,
    service_url: ServiceUrl = None,
) -> None:
    """Send messages to a topic, and wait until all are stored.

    Example: afterglow topics produce orders -m hello -n 1000
    """
    total = len(messages) * count
    values = (text.encode() for _ in range(count) for text in messages)
    with (
        interruptible(f"the producer of {topic}"),
        _connected(session.client, service_url) as client,
        session.out.working("connecting") as say,
    ):
        last = _send(client, topic, values, key, lambda done: say(f"{done} of {total} messages sent"))
    row = {"topic": str(topic), "messages": total, "last_message_id": last}
    session.out.say(f"sent {total} messages to {topic}, the last at {last}", row)


@TOPICS.command("consume")
def consume(
    session: AdminSession,
    topic: TopicArgument,
    *,
    count: Annotated[
        int, typer.Option("--num-messages", "-n", min=0, help="Number of messages; 0: all until the timeout.")
    ] = 1,
    subscription: Annotated[
        str | None,
        typer.Option(
            "--subscription-name", "-s", help="Subscription to consume and acknowledge. Default: a temporary reader."
        ),
    ] = None,
    timeout: Annotated[
        int,
        typer.Option(
            "--timeout", metavar="TIME", parser=parameters.read_milliseconds, help="Longest wait for a message."
        ),
    ] = "10s",  # type: ignore[assignment]  # parsed like any other
    raw: Raw = False,
    service_url: ServiceUrl = None,
) -> None:
    """Print messages of a topic from its beginning, or from the position of a subscription.

    A line has the position of a message, a tab, its key, and its value with control characters escaped.

    Example: afterglow topics consume orders -n 10
    """
    _check_raw(session.out, raw=raw)
    got = 0
    with interruptible(f"the consumer of {topic}"), _connected(session.client, service_url) as client:
        for message in _receive(client, topic, subscription, timeout):
            message.show(session.out, raw=raw)
            got += 1
            if got == count:
                return
    if got < count:
        raise AfterglowError(
            f"received {got} of {count} messages of {topic} within {timeout / 1000:g} s; --timeout sets a longer wait"
        )


@TOPICS.command("peek-messages")
def peek_messages(
    session: AdminSession, topic: TopicArgument, *, subscription: Subscription, count: Count = 1, raw: Raw = False
) -> None:
    """Print the next messages of a subscription without acknowledging them.

    A line has the position of a message, a tab, its key, and its value with control characters escaped.

    Example: afterglow topics peek-messages orders -s billing -n 3
    """
    _check_raw(session.out, raw=raw)
    for name in session.each_of(topic):
        path = topic_path(name, "subscription", encode_name(subscription), "position")
        for message in _peek(session.client, name, path, count):
            message.show(session.out, raw=raw)


def _check_raw(out: Output, *, raw: bool) -> None:
    if raw and out.as_json:
        raise typer.BadParameter("--raw and --json exclude each other; give one")


# The stock client


def _stock_client() -> Any:
    try:
        import pulsar  # noqa: PLC0415 - an optional dependency, and not needed for --help
    except ImportError as error:
        raise MissingDependency(
            "topics produce and consume need the stock client; run pip install pulsar-client"
        ) from error
    return pulsar


@contextmanager
def _connected(admin: CliAdminClient, service_url: str | None) -> Iterator[Any]:
    """Open a stock client with the credentials of the admin client; it connects when it is first used.

    Raises:
        ConfigError: The address is not valid.
        AdminFailed: The admin API did not return the address.
        AfterglowError: An operation of the client failed.
    """
    pulsar = _stock_client()
    url = service_url or _service_url(admin)
    # Failures are raised too; the client's log would go to stdout, among the results.
    silent = logging.getLogger(f"{__name__}.client")
    silent.setLevel(logging.CRITICAL + 1)
    token = admin.connection.token
    try:
        client = pulsar.Client(
            url,
            authentication=pulsar.AuthenticationToken(token) if token else None,
            tls_trust_certs_file_path=admin.connection.ca_file,
            tls_validate_hostname=True,
            operation_timeout_seconds=_TIMEOUT_S,
            logger=silent,
        )
    except ValueError as error:
        raise ConfigError(f"--service-url {url!r}: {error}; write pulsar://HOST:PORT") from error
    try:
        yield client
    except pulsar.PulsarException as error:
        raise AfterglowError(f"the cluster at {url} refused the request or did not answer: {error}") from error
    finally:
        client.close()


def _service_url(admin: CliAdminClient) -> str:
    for cluster in admin.names("clusters"):
        found = admin.fields(f"clusters/{encode_name(cluster)}")
        url = found.get("brokerServiceUrl") or found.get("brokerServiceUrlTls")
        if url:
            return str(url)
    raise AfterglowError("the admin API did not return an address for clients; give --service-url pulsar://HOST:PORT")


def _send(
    client: Any, topic: TopicName, values: Iterable[bytes], key: str | None, report: Callable[[int], None]
) -> str | None:
    """Send messages with one key, wait until all are stored, and return the position of the last one.

    Args:
        client: Stock client.
        topic: The topic.
        values: Values of the messages.
        key: Key of all messages.
        report: Called from time to time with the number of messages that were sent.

    Raises:
        AfterglowError: A message was not stored.
    """
    ok = _stock_client().Result.Ok
    producer = client.create_producer(str(topic), block_if_queue_full=True, batching_enabled=True)
    last: Any = None
    failed: Any = None

    def on_receipt(result: Any, message_id: Any) -> None:  # called on the client's single callback thread
        nonlocal last, failed
        if result == ok:
            last = message_id
        elif failed is None:
            failed = result

    for number, value in enumerate(values, 1):
        producer.send_async(value, on_receipt, partition_key=key)
        if number % _REPORT_EVERY == 0:
            report(number)
            if failed is not None:
                break
    producer.flush()
    producer.close()
    if failed is not None:
        raise AfterglowError(f"a message to {topic} was not stored: {failed}")
    if last is None:
        return None
    return f"{last.ledger_id()}:{last.entry_id()}" + (f":{last.batch_index()}" if last.batch_index() >= 0 else "")


def _receive(client: Any, topic: TopicName, subscription: str | None, timeout_ms: int) -> Iterator[ReceivedMessage]:
    """Receive messages until none arrives within the timeout.

    Args:
        client: Stock client.
        topic: The topic.
        subscription: Subscription to consume and acknowledge; None reads from the beginning without one.
        timeout_ms: Longest wait for a message.
    """
    pulsar = _stock_client()
    consumer: Any = None
    if subscription is None:
        receive = client.create_reader(str(topic), pulsar.MessageId.earliest).read_next
    else:
        consumer = client.subscribe(
            str(topic),
            subscription,
            initial_position=pulsar.InitialPosition.Earliest,
            batch_index_ack_enabled=True,  # otherwise a partly acknowledged batch is redelivered whole
        )
        receive = consumer.receive
    deadline = time.monotonic() + timeout_ms / 1000
    while True:
        left_ms = max(round((deadline - time.monotonic()) * 1000), 1)
        try:
            message = receive(min(left_ms, _MAX_WAIT_MS))
        except pulsar.Timeout:
            if left_ms <= _MAX_WAIT_MS:
                return
            continue
        if consumer is not None:
            consumer.acknowledge(message)
        at = message.message_id()
        yield ReceivedMessage(
            topic=message.topic_name(),
            ledger_id=at.ledger_id(),
            entry_id=at.entry_id(),
            batch_index=at.batch_index(),
            publish_time=message.publish_timestamp(),
            event_time=message.event_timestamp() or None,
            key=message.partition_key() or None,
            properties=message.properties(),
            value=message.data(),
        )
        deadline = time.monotonic() + timeout_ms / 1000


# The admin API


def _peek(client: CliAdminClient, topic: TopicName, path: str, count: int) -> Iterator[ReceivedMessage]:
    """Return up to ``count`` next messages of a subscription; ``path`` is followed by the number of an entry.

    Raises:
        AdminFailed: The API refused the call, cannot be reached, or did not return a message.
    """
    from afterglow.cli.client import AdminFailed  # noqa: PLC0415 - HTTP is not needed for --help

    left = count
    for number in range(1, count + 1):  # an entry has at least one message
        try:
            answer = client.content(f"{path}/{number}")
        except AdminFailed as error:
            if number > 1 and error.status == HTTPStatus.NOT_FOUND:
                return
            raise
        for message in _entry_messages(answer, topic):
            yield message
            left -= 1
            if not left:
                return


def _entry_messages(answer: AdminResponse, topic: TopicName) -> Iterator[ReceivedMessage]:
    """Return the messages of an entry; an encrypted batch counts as one, since the key is not available.

    Raises:
        AdminFailed: The answer is not an entry.
        CorruptEntry: The batch is corrupt.
    """
    from afterglow.cli.client import AdminFailed  # noqa: PLC0415 - HTTP and protobufs are not needed for --help
    from afterglow.format.entry import iter_batch  # noqa: PLC0415

    headers = answer.headers
    try:
        ledger_id, entry_id = map(int, str(headers["X-Pulsar-Message-ID"]).split(":")[:2])
        publish_time, event_time = (_time(headers[f"X-Pulsar-{name}"]) for name in ("publish-time", "event-time"))
        batch = int(headers["X-Pulsar-num-batch-message"] or 0)
        properties = json.loads(headers["X-Pulsar-PROPERTY"] or "{}")
    except ValueError as error:
        raise AdminFailed(f"{answer.request} did not return a Pulsar message: {error}; check --admin-url") from error
    common: dict[str, Any] = {"topic": str(topic), "ledger_id": ledger_id, "entry_id": entry_id}
    if not batch or headers["X-Pulsar-Is-Encrypted"] == "true":
        key = headers["X-Pulsar-partition-key"]
        yield ReceivedMessage(**common, batch_index=-1, publish_time=publish_time, event_time=event_time, key=key,
                       properties=properties, value=answer.content)  # fmt: skip
        return
    for index, (single, value) in enumerate(iter_batch(answer.content, batch)):
        yield ReceivedMessage(
            **common,
            batch_index=index,
            publish_time=publish_time,
            event_time=single.event_time or None,
            key=single.partition_key if single.HasField("partition_key") else None,
            properties={pair.key: pair.value for pair in single.properties},
            value=bytes(value),
        )


def _time(text: str | None) -> int | None:
    """Convert ISO 8601 to epoch milliseconds."""
    return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1000)
