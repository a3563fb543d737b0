"""The command-line application: global options, error messages and exit codes.

Exit codes: 0 success, 1 failure or damage found, 2 wrong usage. An error is one line on stderr; ``--debug`` adds the
traceback.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from afterglow import __version__
from afterglow.cli.help_format import MAX_WIDTH, HelpGroup, suggestion
from afterglow.cli.output import printable
from afterglow.cli.parameters import AdminConnection, AdminUrl, CaFile, Token
from afterglow.errors import AfterglowError, ConfigError, InvalidName

_COMMANDS: Final = (
    "admin_commands",
    "attach",
    "detach",
    "demo",
    "doctor",
    "inspect",
    "setup",
    "tokens",
    "export",
    "read",
    "serve",
    "topics",
    "messages",
    "offload",
    "segments",
    "verify",
)
"""Modules that register commands when they are imported, in the order of the help."""

DONE = 0
FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130

# Since 0.24 typer vendors click, and exports its error classes only as bases of this one.
_UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="afterglow",
    help="Streaming tiered storage for Apache Pulsar topics.",
    add_completion=True,
    rich_markup_mode=None,  # plain help does not truncate long flags, and takes half the time
    pretty_exceptions_enable=False,
    cls=HelpGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MAX_WIDTH},
)


def _print_version(value: bool) -> None:  # noqa: FBT001 - typer's callbacks take the value alone
    if value:
        typer.echo(f"afterglow {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    *,
    version: Annotated[  # noqa: ARG001 - the callback prints it
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    admin_url: AdminUrl = None,
    token: Token = None,
    ca_file: CaFile = None,
) -> None:
    """Streaming tiered storage for Apache Pulsar topics."""
    if debug:
        os.environ["AFTERGLOW_DEBUG"] = "1"
    context.obj = AdminConnection(admin_url, token, ca_file)


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit."""
    register()
    sys.exit(_run(args))


def register() -> None:
    """Register every command."""
    for name in _COMMANDS:
        import_module(f"afterglow.cli.{name}")


def _run(args: list[str] | None) -> int:
    result: Any = FAILED
    given = sys.argv[1:] if args is None else args
    try:
        result = app(args=given or ["--help"], standalone_mode=False, prog_name="afterglow")
    except _UsageError as error:
        message = _usage_message(error)
        if "\n\n" in message:  # the message of a group without a subcommand is its help
            typer.echo(message)
            return WRONG_USAGE
        return _fail(message, WRONG_USAGE)
    except typer.Abort:
        return _fail("interrupted", INTERRUPTED)
    except (ConfigError, InvalidName) as error:
        return _fail(str(error), WRONG_USAGE)
    except AfterglowError as error:
        return _fail(str(error), FAILED)
    except OSError as error:
        has_file = error.filename is not None and error.strerror is not None
        return _fail(f"{error.filename}: {error.strerror}" if has_file else str(error), FAILED)
    except Exception as error:  # noqa: BLE001 - a traceback only with --debug
        return _fail(f"unexpected {type(error).__name__}: {error}; --debug shows the traceback", FAILED)
    if not given:
        return WRONG_USAGE
    if result == INTERRUPTED:  # returned by typer after Ctrl-C
        sys.stderr.write("afterglow: interrupted\n")
    return result if isinstance(result, int) else DONE


def _usage_message(error: Any) -> str:
    """The message of a usage error; for an unknown option with the ones that were likely meant."""
    if getattr(error, "possibilities", None) and getattr(error, "option_name", None):
        return f"no such option {error.option_name}{suggestion(error.option_name, error.possibilities)}"
    return str(error.format_message())


def _fail(message: str, code: int) -> int:
    if os.environ.get("AFTERGLOW_DEBUG"):
        raise  # noqa: PLE0704 - called from an except clause
    sys.stderr.write(f"afterglow: {printable(' '.join(message.split()))}\n")
    return code
