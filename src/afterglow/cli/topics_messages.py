"""``afterglow topics produce`` and ``consume``: messages to and from a topic, with the stock Pulsar client."""

from __future__ import annotations

from typing import Annotated

import typer

from afterglow.cli import parameters
from afterglow.cli.command import Session
from afterglow.cli.interrupt import interruptible
from afterglow.cli.parameters import TopicArgument
from afterglow.cli.received import Raw, check_raw, show
from afterglow.cli.topics import TOPICS
from afterglow.errors import AfterglowError

ServiceUrl = Annotated[
    str | None,
    typer.Option("--service-url", metavar="URL", help="Where clients connect; without, the admin API is asked."),
]


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
    from afterglow.cli.messages import StockClient  # noqa: PLC0415 - the client is not needed for --help

    total = len(messages) * count
    with (
        interruptible(f"the producer of {topic}"),
        StockClient(session.client, service_url) as client,
        session.out.working("connecting") as say,
    ):
        last = client.send(
            topic,
            (text.encode() for _ in range(count) for text in messages),
            key,
            lambda done: say(f"{done} of {total} messages sent"),
        )
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
    from afterglow.cli.messages import StockClient  # noqa: PLC0415 - the client is not needed for --help

    check_raw(session.out, raw=raw)
    got = 0
    with interruptible(f"the consumer of {topic}"), StockClient(session.client, service_url) as client:
        for message in client.receive(topic, subscription, timeout):
            show(session.out, message, raw=raw)
            got += 1
            if got == count:
                return
    if got < count:
        raise AfterglowError(
            f"{topic} gave {got} of {count} messages within {timeout / 1000:g} s; --timeout waits longer"
        )
