"""Names, sizes and times on the command line, in Pulsar's spelling, and the completion of names by the shell."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from afterglow.cli.connection import Connection
from afterglow.errors import AfterglowError, ConfigError, InvalidName
from afterglow.metadata.names import DEFAULT_NAMESPACE, DEFAULT_TENANT, NamespaceName, TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.cli.client import AdminClient
    from afterglow.config import ValueType


_COMPLETION_TIMEOUT_S: Final = 1.0
"""A person who has pressed the tab key waits for no longer."""
_MAX_COMPLETIONS: Final = 1_000


def complete_topics(context: typer.Context, incomplete: str) -> list[str]:
    """Topics whose names begin so, in the spelling that was begun; a partitioned one without its partitions."""
    scheme = "persistent://" if incomplete.startswith("persistent://") else ""
    tenant, slash, rest = incomplete.removeprefix(scheme).partition("/")
    namespace, second, _ = rest.partition("/")
    if scheme or slash:
        if not second:
            return [f"{scheme}{name}/" for name in complete_namespaces(context, incomplete.removeprefix(scheme))]
        spelled, path = f"{scheme}{tenant}/{namespace}/", f"namespaces/{tenant}/{namespace}/topics"
    else:
        spelled, path = "", "namespaces/public/default/topics"
    found = dict.fromkeys(TopicName.parse(name).base.local_name for name in _names(context, path))
    return [name for name in (spelled + local for local in found) if name.startswith(incomplete)][:_MAX_COMPLETIONS]


def complete_namespaces(context: typer.Context, incomplete: str) -> list[str]:
    """Namespaces whose names begin so; of the tenant that is named, or of all."""
    tenant, slash, _ = incomplete.partition("/")
    tenants = [tenant] if slash else [name for name in _names(context, "tenants") if name.startswith(incomplete)]
    found = (name for tenant in tenants[:_MAX_COMPLETIONS] for name in _names(context, f"namespaces/{tenant}"))
    return [name for name in found if name.startswith(incomplete)][:_MAX_COMPLETIONS]


def _names(context: typer.Context, path: str) -> list[str]:
    try:
        return _client(context).names(path)
    except (AfterglowError, OSError):  # nothing may come between a person and their shell
        return []


def _client(context: typer.Context) -> AdminClient:
    """A client by the options that stand on the line so far."""
    from afterglow.cli.client import AdminClient  # noqa: PLC0415 - HTTP and TLS are not needed for --help

    connection = Connection()
    place: Any = context
    while place is not None:
        given = (place.params.get(field.name) for field in fields(Connection))
        connection = Connection(*given).overlaid(connection)
        place = place.parent
    return AdminClient(connection.resolved(), timeout_s=_COMPLETION_TIMEOUT_S)


def _name(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return parse(text)
        except InvalidName as error:
            raise typer.BadParameter(str(error)) from error

    return read


NamespaceArgument = Annotated[
    NamespaceName,
    typer.Argument(
        parser=_name(NamespaceName.parse),
        metavar="NAMESPACE",
        help="TENANT/NAMESPACE.",
        autocompletion=complete_namespaces,
    ),
]
DEFAULT: Final[Any] = f"{DEFAULT_TENANT}/{DEFAULT_NAMESPACE}"
"""The namespace of who names none; parsed like any other."""
_TOPIC: Final[Any] = typer.Argument(
    parser=_name(TopicName.parse),
    metavar="TOPIC",
    help="persistent://TENANT/NAMESPACE/NAME, TENANT/NAMESPACE/NAME, or NAME in public/default.",
    autocompletion=complete_topics,
)
TopicArgument = Annotated[TopicName, _TOPIC]
OptionalTopicArgument = Annotated[TopicName | None, _TOPIC]

_EARLIEST_MS: Final = 10**11
"""March 1973: what is smaller was meant as something else."""


def _quantity(kind: Callable[[Any], ValueType[int]], expected: str) -> Callable[[str], int]:
    """Reads a size or duration of a kind that ``config.value_types`` makes."""

    def read(text: str) -> int:
        from afterglow.config import value_types  # noqa: PLC0415 - the table of settings is not needed for --help

        accepted = kind(value_types)
        try:
            value = accepted.parse(text.strip())
        except ValueError:
            value = None
        if value is None or not accepted.accepts(value):
            raise typer.BadParameter(f"{text!r} is not {expected}")
        return value

    return read


def read_position(text: str) -> str:
    """A position, checked and as it was written."""
    from afterglow.format.position import parse_position  # noqa: PLC0415 - not needed for --help

    try:
        parse_position(text)
    except InvalidName as error:
        raise typer.BadParameter(str(error)) from error
    return text.strip().lower()


def read_moment(text: str) -> int:
    """A moment in epoch milliseconds: an age, RFC 3339, or epoch milliseconds as they are."""
    from afterglow.read.window import parse_time  # noqa: PLC0415 - not needed for --help

    if text.strip().isdigit() and int(text) < _EARLIEST_MS:
        # For pulsar-admin it would be an age in seconds, for all else here a moment long before Pulsar.
        raise typer.BadParameter(f"{text!r} has no unit: write {text}s, {text}m or {text}h for an age, or RFC 3339")
    try:
        return parse_time(text, time.time_ns() // 1_000_000)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error


def read_pair(text: str) -> tuple[str, str]:
    """A name with its value."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise typer.BadParameter(f"{text!r} is not a name with a value; write NAME=VALUE")
    return name.strip(), value.strip()


def read_priority(text: str) -> str:
    """A data read priority in any of its spellings, as the constant that Pulsar's JSON has."""
    from afterglow.config import SETTINGS  # noqa: PLC0415 - the table of settings is not needed for --help

    kind = SETTINGS["managedLedgerOffloadedReadPriority"].value_type
    try:
        return str(kind.parse(text.strip()).name)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not {kind.description}") from None


_SIZE = "a size: write bytes, or a number with k, m, g or t as in 64M"
_TIME = "a time: write seconds, or a number with s, m, h, d, w or y as in 10m"

read_bytes = _quantity(lambda q: q.size(), _SIZE)
read_bytes_or_none = _quantity(lambda q: q.size(minimum=-1), f"{_SIZE}; -1 is none")
read_mebibytes_or_none = _quantity(
    lambda q: q.size(q.MIB, plain=1, minimum=-1), f"{_SIZE}, and a whole number of MiB; -1 is no limit"
)
read_seconds = _quantity(lambda q: q.duration(), _TIME)
read_seconds_or_none = _quantity(lambda q: q.duration(minimum=-1), f"{_TIME}; -1 is none")
read_milliseconds = _quantity(lambda q: q.duration(1, plain=q.SECOND_MS), _TIME)
read_minutes_or_none = _quantity(
    lambda q: q.duration(q.MINUTE_MS, plain=q.SECOND_MS, minimum=-1),
    f"{_TIME}, and a whole number of minutes; -1 is no limit",
)

PriorityArgument = Annotated[
    str,
    typer.Argument(parser=read_priority, metavar="PRIORITY", help="tiered-storage-first or bookkeeper-first."),
]
Subscription = Annotated[str, typer.Option("--subscription", "-s", metavar="NAME", help="The subscription.")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, help="How many.")]
Force = Annotated[
    bool, typer.Option("--force", "-f", help="Disconnect its producers and consumers instead of refusing.")
]
