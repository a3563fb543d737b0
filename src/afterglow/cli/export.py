"""``afterglow export``."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from afterglow.cli.app import DONE, app
from afterglow.cli.interrupt import interruptible
from afterglow.cli.output import Output
from afterglow.cli.parameters import read_milliseconds
from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from afterglow.spark.export import Exported


@app.command()
def export(
    source: Annotated[
        str, typer.Argument(help="The home directory of a server, http://host:8080, or zk://host:2181[/chroot].")
    ],
    topic: Annotated[str, typer.Argument(help="The topic; a partitioned topic's own name means all its partitions.")],
    *,
    to: Annotated[str, typer.Option(metavar="parquet:PATH", help="A directory that is new, empty, or an export.")],
    continuous: Annotated[bool, typer.Option("--continuous", help="Go on with what comes, until Ctrl-C.")] = False,
    every_ms: Annotated[
        int,
        typer.Option(
            "--every", metavar="TIME", parser=read_milliseconds, help="With --continuous: time between looks."
        ),
    ] = "10s",  # type: ignore[assignment]  # parsed like any other
    columns: Annotated[str | None, typer.Option(help="Names with commas between; else all columns.")] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Values as their schemas describe them.")] = False,
    tier: Annotated[str | None, typer.Option(help="Where all objects are; else as recorded.")] = None,
    metadata: Annotated[str | None, typer.Option(help="sqlite:PATH or zk://…, if not in the source.")] = None,
    master: Annotated[str | None, typer.Option(help="The Spark master; else local[*].")] = None,
    fail_on_data_loss: Annotated[
        bool, typer.Option(help="End where entries are gone that were not exported yet; else go on without.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
) -> int:
    """Write a topic's messages as Parquet, with Spark. A later run adds what has come since, and nothing twice.

    Stopped or killed at any moment and run again, it ends with every message once. Read the directory as one dataset.

    Example: afterglow export ./home my-topic --to parquet:./my-topic
    """
    from afterglow.spark.export import ExportOrder, export_topic  # noqa: PLC0415 - not needed for --help

    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it prints the stack of what is told in one line
    if continuous and not every_ms:
        raise ConfigError("--every 0 would look without a pause; give a time such as 10s")
    names = None if columns is None else tuple(name.strip() for name in columns.split(","))
    order = ExportOrder(source, topic, to, names, decode, tier, metadata, fail_on_data_loss)
    out = Output(as_json=as_json)
    exported: Exported | None = None
    try:
        with ExitStack() as stack:
            stack.enter_context(interruptible(f"the export of {topic} and Spark"))
            show = stack.enter_context(out.working(f"exporting {topic}: starting Spark"))

            def progress(now: Exported) -> None:
                nonlocal exported
                exported = now
                show(f"exporting {topic}: {_words(now)}")

            every_s = every_ms / 1000 if continuous else None
            exported = export_topic(order, master=master, every_s=every_s, progress=progress)
    except SystemExit:
        if not continuous or exported is None:
            raise
    told = {"messages": exported.rows, "batches": exported.batches}
    out.say(f"{_words(exported)} written to {to.partition(':')[2]}", told)
    return DONE


def _words(exported: Exported) -> str:
    return f"{exported.rows:,} messages in {exported.batches} batches"
