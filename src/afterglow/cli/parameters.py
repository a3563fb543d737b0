"""Arguments and options that several commands share: connection, names, sizes, times; and completion of names.

Sizes and times are spelt as in ``pulsar-admin``.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from afterglow.errors import AfterglowError, ConfigError, InvalidName
from afterglow.metadata.cluster_credentials import read_token
from afterglow.metadata.names import DEFAULT_NAMESPACE, DEFAULT_TENANT, NamespaceName, TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.cli.client import CliAdminClient
    from afterglow.config import ValueType

DEFAULT_ADMIN_URL: Final = "http://127.0.0.1:8080"

AdminUrl = Annotated[
    str | None,
    typer.Option(
        "--admin-url", metavar="URL", help=f"The admin API. Default: AFTERGLOW_ADMIN_URL, else {DEFAULT_ADMIN_URL}."
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token", metavar="TOKEN", help="Authentication token, or file:///path to it. Default: AFTERGLOW_TOKEN."
    ),
]
CaFile = Annotated[
    str | None,
    typer.Option("--ca-file", metavar="PATH", help="CA certificates to trust for https. Default: AFTERGLOW_CA_FILE."),
]


@dataclass(frozen=True, slots=True)
class AdminConnection:
    """Options of a connection to the admin API; an option that was not given is None.

    They may be given before or after a subcommand. Precedence: the last one given, the environment, the default.
    """

    admin_url: AdminUrl = None
    token: Token = None
    ca_file: CaFile = None

    def overridden(self, later: AdminConnection) -> AdminConnection:
        """Return these options, overridden by the ones that ``later`` has."""
        given = {field.name: getattr(later, field.name) or getattr(self, field.name) for field in fields(self)}
        return AdminConnection(**given)

    def resolved(self) -> AdminConnection:
        """Return the options completed by environment and defaults, with the token in place of its file.

        Raises:
            ConfigError: The token file cannot be read.
        """
        environment = AdminConnection(*(os.environ.get(f"AFTERGLOW_{field.name.upper()}") for field in fields(self)))
        found = AdminConnection(DEFAULT_ADMIN_URL).overridden(environment).overridden(self)
        return AdminConnection(found.admin_url, read_token(found.token), found.ca_file)


# Completion by the shell

_COMPLETION_TIMEOUT_S: Final = 1.0
"""A user who has pressed the tab key does not wait longer."""
_MAX_COMPLETIONS: Final = 1_000


def complete_topics(context: typer.Context, incomplete: str) -> list[str]:
    """Return topics whose names begin with the text, in the same spelling; a partitioned topic once."""
    scheme = "persistent://" if incomplete.startswith("persistent://") else ""
    tenant, slash, rest = incomplete.removeprefix(scheme).partition("/")
    namespace, second, _ = rest.partition("/")
    if scheme or slash:
        if not second:
            return [f"{scheme}{name}/" for name in complete_namespaces(context, incomplete.removeprefix(scheme))]
        prefix, path = f"{scheme}{tenant}/{namespace}/", f"namespaces/{tenant}/{namespace}/topics"
    else:
        prefix, path = "", "namespaces/public/default/topics"
    found = dict.fromkeys(TopicName.parse(name).base.local_name for name in _names(context, path))
    return [name for name in (prefix + local for local in found) if name.startswith(incomplete)][:_MAX_COMPLETIONS]


def complete_namespaces(context: typer.Context, incomplete: str) -> list[str]:
    """Return namespaces whose names begin with the text, of the given tenant or of all tenants."""
    tenant, slash, _ = incomplete.partition("/")
    tenants = [tenant] if slash else [name for name in _names(context, "tenants") if name.startswith(incomplete)]
    found = (name for tenant in tenants[:_MAX_COMPLETIONS] for name in _names(context, f"namespaces/{tenant}"))
    return [name for name in found if name.startswith(incomplete)][:_MAX_COMPLETIONS]


def _names(context: typer.Context, path: str) -> list[str]:
    try:
        return _client(context).names(path)
    except (AfterglowError, OSError):  # an error message would disturb the command line that is being typed
        return []


def _client(context: typer.Context) -> CliAdminClient:
    """Create a client from the options on the line so far, of the innermost command first."""
    from afterglow.cli.client import CliAdminClient  # noqa: PLC0415 - HTTP and TLS are not needed for --help

    connection = AdminConnection()
    level: Any = context
    while level is not None:
        given = (level.params.get(field.name) for field in fields(AdminConnection))
        connection = AdminConnection(*given).overridden(connection)
        level = level.parent
    return CliAdminClient(connection.resolved(), timeout_s=_COMPLETION_TIMEOUT_S)


# Names

DEFAULT: Final[Any] = f"{DEFAULT_TENANT}/{DEFAULT_NAMESPACE}"
"""The default namespace, which is parsed like any other."""


def _name(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return parse(text)
        except InvalidName as error:
            raise typer.BadParameter(str(error)) from error

    return read


_TOPIC_HELP: Final = "persistent://TENANT/NAMESPACE/NAME, TENANT/NAMESPACE/NAME, or NAME in public/default."
_TOPIC: Final[Any] = typer.Argument(
    parser=_name(TopicName.parse), metavar="TOPIC", help=_TOPIC_HELP, autocompletion=complete_topics
)
TopicArgument = Annotated[TopicName, _TOPIC]
OptionalTopicArgument = Annotated[TopicName | None, _TOPIC]
NamespaceArgument = Annotated[
    NamespaceName,
    typer.Argument(
        parser=_name(NamespaceName.parse),
        metavar="NAMESPACE",
        help="TENANT/NAMESPACE.",
        autocompletion=complete_namespaces,
    ),
]
SourceArgument = Annotated[
    str,
    typer.Argument(
        help="Home directory of a server, which may be running; http://HOST:8080, the admin API of an Afterglow or a "
        "Pulsar; or zk://HOST:2181[/CHROOT], the ZooKeeper of a Pulsar cluster."
    ),
]
ReadSourceArgument = Annotated[
    str,
    typer.Argument(
        help="Home directory of a server, which may be running; http://HOST:8080, the admin API of an Afterglow or a "
        "Pulsar; zk://HOST:2181[/CHROOT], the ZooKeeper of a Pulsar cluster; or s3://BUCKET[/PREFIX] or file:///PATH, "
        "offloaded objects alone, which name their topics."
    ),
]
SourceTopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help=f"{_TOPIC_HELP} A partitioned topic means all its partitions.")
]
SourceTier = Annotated[
    str | None,
    typer.Option(help="Tier of all objects, file:///path or s3://bucket[/prefix]. Default: as recorded in metadata."),
]
SourceMetadata = Annotated[
    str | None,
    typer.Option(
        help="sqlite:PATH or zk://…, if the metadata is not in the home; for a Pulsar cluster, the metadata of the "
        "Afterglow that is attached to it."
    ),
]
SparkMaster = Annotated[str | None, typer.Option(help="Spark master. Default: local[*].")]


# Values

_MIN_EPOCH_MS: Final = 10**11
"""March 1973: a smaller number is not meant as epoch milliseconds."""


def _quantity(value_type: Callable[[Any], ValueType[int]], expected: str) -> Callable[[str], int]:
    """Return a parser of sizes or durations; ``value_type`` makes their type of ``config.value_types``."""

    def read(text: str) -> int:
        from afterglow.config import value_types  # noqa: PLC0415 - the table of settings is not needed for --help

        accepted = value_type(value_types)
        try:
            value = accepted.parse(text.strip())
        except ValueError:
            value = None
        if value is None or not accepted.accepts(value):
            raise typer.BadParameter(f"{text!r} is not {expected}")
        return value

    return read


def read_position(text: str) -> str:
    """Validate a position and return it as written."""
    from afterglow.format.position import parse_position  # noqa: PLC0415 - not needed for --help

    try:
        parse_position(text)
    except InvalidName as error:
        raise typer.BadParameter(str(error)) from error
    return text.strip().lower()


def read_time(text: str) -> int:
    """Parse a time (an age, RFC 3339, or epoch milliseconds) to epoch milliseconds."""
    from afterglow.read.scan_range import parse_time  # noqa: PLC0415 - not needed for --help

    if text.strip().isdigit() and int(text) < _MIN_EPOCH_MS:
        # pulsar-admin would take it as an age in seconds; every other command here as epoch milliseconds.
        raise typer.BadParameter(f"{text!r} has no unit; write {text}s, {text}m or {text}h for an age, or RFC 3339")
    try:
        return parse_time(text, time.time_ns() // 1_000_000)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error


def read_pair(text: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE``."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise typer.BadParameter(f"{text!r} is not a name with a value; write NAME=VALUE")
    return name.strip(), value.strip()


def read_priority(text: str) -> str:
    """Parse a data read priority in any spelling to the constant in Pulsar's JSON."""
    from afterglow.config import SETTINGS  # noqa: PLC0415 - the table of settings is not needed for --help

    value_type = SETTINGS["managedLedgerOffloadedReadPriority"].value_type
    try:
        return str(value_type.parse(text.strip()).name)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not {value_type.description}") from None


_SIZE = "a size; write bytes, or a number with k, m, g or t as in 64M"
_TIME = "a time; write seconds, or a number with s, m, h, d, w or y as in 10m"

read_bytes = _quantity(lambda q: q.size(), _SIZE)
read_bytes_or_none = _quantity(lambda q: q.size(minimum=-1), f"{_SIZE}; -1 is none")
read_mebibytes_or_none = _quantity(
    lambda q: q.size(q.MIB, plain=1, minimum=-1), f"{_SIZE}, and a whole number of MiB; -1 means no limit"
)
read_seconds = _quantity(lambda q: q.duration(), _TIME)
read_seconds_or_none = _quantity(lambda q: q.duration(minimum=-1), f"{_TIME}; -1 is none")
read_milliseconds = _quantity(lambda q: q.duration(1, plain=q.SECOND_MS), _TIME)
read_minutes_or_none = _quantity(
    lambda q: q.duration(q.MINUTE_MS, plain=q.SECOND_MS, minimum=-1),
    f"{_TIME}, and a whole number of minutes; -1 means no limit",
)

TierOptions = Annotated[
    list[Any] | None,
    typer.Option(
        *("--option", "-o"),
        metavar="NAME=VALUE",
        parser=read_pair,
        help="Option of the tier, such as endpoint or region. Repeatable.",
    ),
]
PriorityArgument = Annotated[
    str,
    typer.Argument(parser=read_priority, metavar="PRIORITY", help="tiered-storage-first or bookkeeper-first."),
]
Subscription = Annotated[str, typer.Option("--subscription", "-s", metavar="NAME", help="The subscription.")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, help="Number of messages.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Disconnect active producers and consumers.")]
