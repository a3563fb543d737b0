"""How a function becomes a command that talks to the admin API.

A command is a function whose first parameter is a :class:`Session`. It gets the options that make one, and wherever it
takes a frozen dataclass whose fields are annotated as options, the command takes these options one by one.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_type_hints

import typer
from typer.core import TyperGroup

from afterglow.cli.app import app
from afterglow.cli.connection import Connection
from afterglow.cli.output import Output

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.cli.client import AdminClient

F = TypeVar("F", bound="Callable[..., Any]")

_READ_PRIORITY: Final = "set-data-read-priority"
_Json = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]


@dataclass(frozen=True, slots=True)
class Session:
    """What a command works with."""

    client: AdminClient
    out: Output

    def show(self, path: str, absent: str) -> None:
        """Print the object at a path, or for people that there is none."""
        self.out.record(self.client.get(path), absent)

    def change(self, method: str, path: str, value: object, sentence: str) -> None:
        """Set a value at a path, or with ``DELETE`` set it no longer."""
        self.client.call(method, path, value)
        self.out.say(sentence)


class _GroupWithFlags(TyperGroup):
    """A group that also takes a command as PIP-73 writes it: ``--set-data-read-priority PRIORITY NAME``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the flag stands for, or the one that the first argument names."""
        priority = ctx.params.get(_READ_PRIORITY.replace("-", "_"))
        if priority is None:
            return super().resolve_command(ctx, args)
        name, *options = args
        return _READ_PRIORITY, self.get_command(ctx, _READ_PRIORITY), [name, priority, *options]


class Group:
    """Commands under one word.

    Args:
        name: The word.
        summary: For the help.
        read_priority: Whether ``--set-data-read-priority PRIORITY NAME`` is taken for the command of that name.
    """

    def __init__(self, name: str, summary: str, *, read_priority: bool = False) -> None:
        kind = _GroupWithFlags if read_priority else TyperGroup
        self._typer = typer.Typer(
            name=name, help=summary, cls=kind, no_args_is_help=True, invoke_without_command=read_priority
        )
        self._typer.callback()(_expanded(_connect_or_set if read_priority else _connect))
        app.add_typer(self._typer)

    def command(self, name: str) -> Callable[[F], F]:
        """Register a function as a command."""

        def register(function: F) -> F:
            self._typer.command(name)(_expanded(_in_session(function)))
            return function

        return register


def _connect(context: typer.Context, connection: Connection) -> None:
    """Keep the options that stand before the subcommand."""
    context.obj = (context.obj or Connection()).overlaid(connection)


def _connect_or_set(
    context: typer.Context,
    connection: Connection,
    *,
    set_data_read_priority: Annotated[
        str | None,
        typer.Option(
            f"--{_READ_PRIORITY}",
            metavar="PRIORITY",
            help=f"As PIP-73 writes it, with the name behind: the same as the command {_READ_PRIORITY}.",
        ),
    ] = None,
) -> None:
    """Keep the options that stand before the subcommand; see :class:`_GroupWithFlags`."""
    if context.invoked_subcommand is None:
        missing = "a command" if set_data_read_priority is None else f"the name behind --{_READ_PRIORITY}"
        raise typer.BadParameter(f"{missing} is missing; `{context.command_path} --help` lists what there is")
    _connect(context, connection)


def _in_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a session made for it from options."""

    @functools.wraps(function)
    def run(context: typer.Context, connection: Connection, *, as_json: bool, **given: Any) -> Any:
        from afterglow.cli.client import AdminClient  # noqa: PLC0415 - HTTP and TLS are not needed for --help

        _connect(context, connection)
        return function(Session(AdminClient(context.obj.resolved()), Output(as_json=as_json)), **given)

    _, *own = _parameters(function)
    return _with_parameters(
        run,
        [
            *own,
            inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
            inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, annotation=_Json, default=False),
            inspect.Parameter("connection", inspect.Parameter.KEYWORD_ONLY, annotation=Connection),
        ],
    )


def _expanded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the fields of each record that it takes in the record's place."""
    taken = _parameters(function)
    records: dict[str, Any] = {item.name: item.annotation for item in taken if is_dataclass(item.annotation)}

    @functools.wraps(function)
    def run(**given: Any) -> Any:
        made = {
            name: record(**{field.name: given.pop(field.name) for field in fields(record)})
            for name, record in records.items()
        }
        return function(**given, **made)

    parameters: list[inspect.Parameter] = []
    for item in taken:
        if item.name not in records:
            parameters.append(item.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        record = records[item.name]
        hints = get_type_hints(record, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, annotation=hints[field.name], default=field.default
            )
            for field in fields(record)
        ]
    return _with_parameters(run, parameters)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())


def _with_parameters(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> Callable[..., Any]:
    function.__annotations__ = {item.name: item.annotation for item in parameters}
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # how inspect reads it
    return function
