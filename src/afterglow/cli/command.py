"""Commands that call the admin API: command groups, the session of a command, and paths below ``/admin/v2``.

A command is a function whose first parameter is an :class:`AdminSession`; the options of the session are added to it.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from afterglow.cli.app import app
from afterglow.cli.help_format import HelpGroup
from afterglow.cli.output import Output
from afterglow.cli.parameters import AdminConnection, AdminUrl, CaFile, Token
from afterglow.metadata.names import NamespaceName, TopicName, encode_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.cli.client import CliAdminClient

F = TypeVar("F", bound="Callable[..., Any]")

_READ_PRIORITY: Final = "set-data-read-priority"
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
_CONNECTION: Final[dict[str, Any]] = {"admin_url": AdminUrl, "token": Token, "ca_file": CaFile}


def namespace_path(name: NamespaceName, *rest: str) -> str:
    """Return the path of a namespace, or of a resource below it."""
    return "/".join(("namespaces", str(name), *rest))


def topic_path(name: TopicName, *rest: str) -> str:
    """Return the path of a topic, or of a resource below it."""
    return "/".join((name.domain.value, str(name.namespace), encode_name(name.local_name), *rest))


@dataclass(frozen=True, slots=True)
class AdminSession:
    """The admin client and the output of one command."""

    client: CliAdminClient
    out: Output

    def change(self, method: str, path: str, value: object, message: str) -> None:
        """Make a call that changes something, and print a message.

        Raises:
            AdminFailed: The call failed.
        """
        self.client.call(method, path, value)
        self.out.say(message)

    def partitions_of(self, topic: TopicName) -> int:
        """Return the number of partitions; 0 if the topic is not partitioned, or is a partition.

        Raises:
            AdminFailed: The call failed.
        """
        if topic.partition_index is not None:
            return 0
        return int(self.client.fields(topic_path(topic, "partitions"), "partitions")["partitions"])

    def each_of(self, topic: TopicName) -> list[TopicName]:
        """Return the partitions of a topic, or the topic itself if it has none.

        Raises:
            AdminFailed: The call failed.
        """
        count = self.partitions_of(topic)
        return [topic.partition(index) for index in range(count)] if count else [topic]


class _SortedCommands(HelpGroup):
    """A group whose help lists the commands in alphabetical order."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the sorted names."""
        return sorted(super().list_commands(ctx))


class _CommandsWithFlag(_SortedCommands):
    """A group that also accepts the flag of PIP-73 as a command: ``--set-data-read-priority PRIORITY NAME``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of the flag, or the one that the first argument names."""
        priority = ctx.params.get(_READ_PRIORITY.replace("-", "_"))
        if priority is None:
            return super().resolve_command(ctx, args)
        name, *options = args
        return _READ_PRIORITY, self.get_command(ctx, _READ_PRIORITY), [name, priority, *options]


class CommandGroup:
    """A group of commands, such as ``afterglow topics``.

    Args:
        name: Name of the group.
        summary: Help of the group.
        read_priority: Whether ``--set-data-read-priority PRIORITY NAME`` runs the command of that name.
    """

    def __init__(self, name: str, summary: str, *, read_priority: bool = False) -> None:
        group = _CommandsWithFlag if read_priority else _SortedCommands
        self._typer = typer.Typer(
            name=name, help=summary, cls=group, no_args_is_help=True, invoke_without_command=read_priority
        )
        self._typer.callback()(_connect_or_set if read_priority else _connect)
        app.add_typer(self._typer)

    def command(self, name: str, options: Mapping[str, Any] | None = None) -> Callable[[F], F]:
        """Register a function as a command.

        Args:
            name: Name of the command.
            options: Annotations of the parameters that the function takes by ``**``, with None as their default.
        """

        def register(function: F) -> F:
            self._typer.command(name)(_in_session(function, options or {}))
            return function

        return register


def _connect(
    context: typer.Context, admin_url: AdminUrl = None, token: Token = None, ca_file: CaFile = None
) -> AdminConnection:
    """Store the connection options in the context, merged with those before the subcommand."""
    earlier = context.obj or AdminConnection()
    found: AdminConnection = earlier.overridden(AdminConnection(admin_url, token, ca_file))
    context.obj = found
    return found


def _connect_or_set(
    context: typer.Context,
    *,
    admin_url: AdminUrl = None,
    token: Token = None,
    ca_file: CaFile = None,
    set_data_read_priority: Annotated[
        str | None,
        typer.Option(
            f"--{_READ_PRIORITY}",
            metavar="PRIORITY",
            help=f"Form of PIP-73, followed by the name: the same as the command {_READ_PRIORITY}.",
        ),
    ] = None,
) -> None:
    """Store the connection options in the context; see :class:`_CommandsWithFlag`."""
    if context.invoked_subcommand is None:
        missing = "a command" if set_data_read_priority is None else f"the name after --{_READ_PRIORITY}"
        raise typer.BadParameter(f"{missing} is missing; `{context.command_path} --help` lists the commands")
    _connect(context, admin_url, token, ca_file)


def _in_session(function: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """Wrap a function so that its session is created from options."""

    @functools.wraps(function)
    def run(context: typer.Context, *, as_json: bool, **given: Any) -> Any:
        from afterglow.cli.client import CliAdminClient  # noqa: PLC0415 - HTTP and TLS are not needed for --help

        connection = _connect(context, **{name: given.pop(name) for name in _CONNECTION})
        return function(AdminSession(CliAdminClient(connection.resolved()), Output(as_json=as_json)), **given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    taken = [item.replace(kind=keyword) for item in own if item.kind is not inspect.Parameter.VAR_KEYWORD]
    taken += [inspect.Parameter(name, keyword, annotation=found, default=None) for name, found in options.items()]
    taken.append(inspect.Parameter("context", keyword, annotation=typer.Context))
    taken.append(inspect.Parameter("as_json", keyword, annotation=_Json, default=False))
    taken += [inspect.Parameter(name, keyword, annotation=found, default=None) for name, found in _CONNECTION.items()]
    return with_parameters(run, taken)


def with_parameters(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> Callable[..., Any]:
    """Give a function the signature that typer reads."""
    function.__annotations__ = {item.name: item.annotation for item in parameters}
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # how inspect reads it
    return function
