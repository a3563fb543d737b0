"""``topics produce``, ``consume`` and ``peek-messages``: messages to and from a topic.

Produce and consume use the stock Pulsar client; peek asks the admin API, which gives the payload of an entry with its
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
from afterglow.cli.command import Session, topic_path
from afterglow.cli.interrupt import interruptible
from afterglow.cli.output import printable
from afterglow.cli.parameters import Count, Subscription, TopicArgument
from afterglow.errors import AfterglowError, ConfigError, MissingDependency
from afterglow.metadata.names import encode_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from afterglow.cli.client import AdminClient
    from afterglow.cli.output import Output
    from afterglow.metadata.admin_client import Answer
    from afterglow.metadata.names import TopicName

_REPORT_EVERY: Final = 1000
_TIMEOUT_S: Final = 30
_SLICE_MS: Final = 200
"""Of a wait for a message: the client does not return for a signal before."""

ServiceUrl = Annotated[
    str | None,
    typer.Option("--service-url", metavar="URL", help="Where clients connect; without, the admin API is asked."),
]
Raw = Annotated[
    bool, typer.Option("--raw", help="The values alone, byte for byte, each with a newline behind it: for a pipe.")
]


@dataclass(frozen=True, slots=True)
class Received:
    """One message, wherever it came from."""

    topic: str
    ledger_id: int
    entry_id: int
    batch_index: int
    """-1: not in a batch."""
    publish_time: int | None
    event_time: int | None
    key: str | None
    properties: dict[str, str]
    value: bytes

    @property
    def line(self) -> str:
        """The message for people; bytes that are no text are replaced, control characters escaped."""
        batch = f":{self.batch_index}" if self.batch_index >= 0 else ""
        key = "" if self.key is None else f"{self.key}="
        return f"{self.ledger_id}:{self.entry_id}{batch}\t{printable(key + self.value.decode('utf-8', 'replace'))}"

    @property
    def row(self) -> dict[str, Any]:
        """The message for machines, by the keys that ``afterglow read`` has."""
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
        """Print the message in the form that was asked for."""
        if raw:
            out.raw(self.value)
        else:
            out.say(self.line, self.row)


@TOPICS.command("produce")
def produce(
    session: Session,
    topic: TopicArgument,
    *,
    messages: Annotated[
        list[str], typer.Option("--message", "-m", metavar="TEXT", help="A message; give several for a series.")
    ],
    count: Annotated[int, typer.Option("--num-produce", "-n", min=1, help="How often the series is sent.")] = 1,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The messages' key.")] = None,
    service_url: ServiceUrl = None,
) -> None:
    """Send messages to a topic, and return when all are stored.

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
    session: Session,
    topic: TopicArgument,
    *,
    count: Annotated[
        int, typer.Option("--num-messages", "-n", min=0, help="How many messages; 0: all that come in time.")
    ] = 1,
    subscription: Annotated[
        str | None,
        typer.Option(
            "--subscription-name", "-s", help="Go on where it was, and acknowledge; without, nothing is left behind."
        ),
    ] = None,
    timeout: Annotated[
        int,
        typer.Option(
            "--timeout", metavar="TIME", parser=parameters.read_milliseconds, help="How long to wait for a message."
        ),
    ] = "10s",  # type: ignore[assignment]  # parsed like any other
    raw: Raw = False,
    service_url: ServiceUrl = None,
) -> None:
    """Print messages of a topic from its beginning, or from where a subscription was.

    A line has a message's position, a tab, its key, and its value with control characters escaped.

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
            f"{topic} gave {got} of {count} messages within {timeout / 1000:g} s; --timeout waits longer"
        )


@TOPICS.command("peek-messages")
def peek_messages(
    session: Session, topic: TopicArgument, *, subscription: Subscription, count: Count = 1, raw: Raw = False
) -> None:
    """Print the next messages of a subscription without acknowledging them.

    A line has a message's position, a tab, its key, and its value with control characters escaped.

    Example: afterglow topics peek-messages orders -s billing -n 3
    """
    _check_raw(session.out, raw=raw)
    for name in session.each_of(topic):
        path = topic_path(name, "subscription", encode_name(subscription), "position")
        for message in _peek(session.client, name, path, count):
            message.show(session.out, raw=raw)


def _check_raw(out: Output, *, raw: bool) -> None:
    """Insist on one form of output.

    Raises:
        BadParameter: Two are asked for.
    """
    if raw and out.as_json:
        raise typer.BadParameter("--raw and --json exclude each other; give one")


# The stock client


def _stock_client() -> Any:
    try:
        import pulsar  # noqa: PLC0415 - not among our dependencies, and not needed for --help
    except ImportError as error:
        raise MissingDependency(
            "topics produce and consume need the stock client: pip install pulsar-client"
        ) from error
    return pulsar


@contextmanager
def _connected(admin: AdminClient, service_url: str | None) -> Iterator[Any]:
    """Use a stock client, which connects when it is first used.

    Args:
        admin: Knows the cluster's address, and has the credentials.
        service_url: The address, where it is given.

    Raises:
        ConfigError: The address is not valid.
        AdminFailed: The admin API was asked for it and did not answer.
        AfterglowError: What was done with the client failed.
    """
    pulsar = _stock_client()
    url = service_url or _service_url(admin)
    # What fails is raised as well; the client's own lines would go to stdout, among the results.
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
        raise AfterglowError(f"the cluster at {url} refused or did not answer: {error}") from error
    finally:
        client.close()


def _service_url(admin: AdminClient) -> str:
    for cluster in admin.names("clusters"):
        found = admin.fields(f"clusters/{encode_name(cluster)}")
        url = found.get("brokerServiceUrl") or found.get("brokerServiceUrlTls")
        if url:
            return str(url)
    raise AfterglowError("the admin API does not say where clients connect: give --service-url pulsar://HOST:PORT")


def _send(
    client: Any, topic: TopicName, values: Iterable[bytes], key: str | None, report: Callable[[int], None]
) -> str | None:
    """Send messages and wait until all are stored.

    Args:
        client: Of :func:`_connected`.
        topic: Where to.
        values: Of the messages.
        key: Of all messages.
        report: Called now and then with how many were handed over.

    Returns:
        The position of the last message; None where there was none.

    Raises:
        AfterglowError: A message was not stored.
    """
    ok = _stock_client().Result.Ok
    producer = client.create_producer(str(topic), block_if_queue_full=True, batching_enabled=True)
    last: Any = None
    failed: Any = None

    def on_receipt(result: Any, message_id: Any) -> None:  # on the client's one thread of callbacks
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
        raise AfterglowError(f"{topic} did not take a message: {failed}")
    if last is None:
        return None
    return f"{last.ledger_id()}:{last.entry_id()}" + (f":{last.batch_index()}" if last.batch_index() >= 0 else "")


def _receive(client: Any, topic: TopicName, subscription: str | None, timeout_ms: int) -> Iterator[Received]:
    """Receive messages until none comes in time, each waited for in slices.

    Args:
        client: Of :func:`_connected`.
        topic: Where from.
        subscription: Whose position counts and moves; None reads from the beginning and leaves nothing behind.
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
            batch_index_ack_enabled=True,  # else a batch that is taken in part comes again whole
        )
        receive = consumer.receive
    deadline = time.monotonic() + timeout_ms / 1000
    while True:
        left_ms = max(round((deadline - time.monotonic()) * 1000), 1)
        try:
            message = receive(min(left_ms, _SLICE_MS))
        except pulsar.Timeout:
            if left_ms <= _SLICE_MS:
                return
            continue
        if consumer is not None:
            consumer.acknowledge(message)
        at = message.message_id()
        yield Received(
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


def _peek(client: AdminClient, topic: TopicName, path: str, count: int) -> Iterator[Received]:
    """The next messages of a subscription; fewer where there are fewer.

    Args:
        client: Of the admin API.
        topic: Whose messages.
        path: Below which the entries stand by their number from 1.
        count: How many messages at most.

    Raises:
        AdminFailed: The API refused, cannot be reached, or gave something that is no message.
    """
    from afterglow.cli.client import AdminFailed  # noqa: PLC0415 - HTTP is not needed for --help

    left = count
    for number in range(1, count + 1):  # an entry has a message at least
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


def _entry_messages(answer: Answer, topic: TopicName) -> Iterator[Received]:
    """The messages of one entry; an encrypted batch is one message, for nobody here has its key.

    Raises:
        AdminFailed: It is no entry.
        CorruptEntry: Its batch is torn.
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
        raise AdminFailed(f"{answer.call} is no message of Pulsar's: {error}; see --admin-url") from error
    common: dict[str, Any] = {"topic": str(topic), "ledger_id": ledger_id, "entry_id": entry_id}
    if not batch or headers["X-Pulsar-Is-Encrypted"] == "true":
        key = headers["X-Pulsar-partition-key"]
        yield Received(**common, batch_index=-1, publish_time=publish_time, event_time=event_time, key=key,
                       properties=properties, value=answer.content)  # fmt: skip
        return
    for index, (single, value) in enumerate(iter_batch(answer.content, batch)):
        yield Received(
            **common,
            batch_index=index,
            publish_time=publish_time,
            event_time=single.event_time or None,
            key=single.partition_key if single.HasField("partition_key") else None,
            properties={pair.key: pair.value for pair in single.properties},
            value=bytes(value),
        )


def _time(text: str | None) -> int | None:
    """A moment that Pulsar writes in ISO 8601, in epoch milliseconds."""
    return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1000)
