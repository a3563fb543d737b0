"""Messages that the admin API shows without a consumer: the payload of an entry, with its metadata in headers."""

from __future__ import annotations

import json
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from afterglow.cli.client import AdminFailed
from afterglow.cli.received import Received
from afterglow.format.entry import iter_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.cli.client import AdminClient
    from afterglow.metadata.admin_link import Answer
    from afterglow.metadata.names import TopicName


def peek(client: AdminClient, topic: TopicName, path: str, count: int) -> Iterator[Received]:
    """The next messages of a subscription; fewer where there are fewer.

    Args:
        client: Of the admin API.
        topic: Whose messages.
        path: Below which the entries stand by their number from 1.
        count: How many messages at most.

    Raises:
        AdminFailed: The API refused, cannot be reached, or gave something that is no message.
    """
    left = count
    for number in range(1, count + 1):  # an entry has a message at least
        try:
            answer = client.content(f"{path}/{number}")
        except AdminFailed as error:
            if number > 1 and error.status == HTTPStatus.NOT_FOUND:
                return
            raise
        for message in messages(answer, topic):
            yield message
            left -= 1
            if not left:
                return


def messages(answer: Answer, topic: TopicName) -> Iterator[Received]:
    """The messages of one entry; an encrypted batch is one message, for nobody here has its key.

    Raises:
        AdminFailed: It is no entry.
        CorruptEntry: Its batch is torn.
    """
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
