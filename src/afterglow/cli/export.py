"""``afterglow export``."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from afterglow.cli.app import DONE, app
from afterglow.cli.interrupt import interruptible
from afterglow.cli.output import Output
from afterglow.cli.parameters import (
    SourceArgument,
    SourceMetadata,
    SourceTier,
    SourceTopicArgument,
    SparkMaster,
    read_milliseconds,
)
from afterglow.cli.progress import progress
from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from afterglow.spark.export import ExportProgress


@app.command()
def export(
    source: SourceArgument,
    topic: SourceTopicArgument,
    *,
    to: Annotated[
        str, typer.Option(metavar="parquet:PATH", help="Directory that is new, empty, or an earlier export.")
    ],
    continuous: Annotated[bool, typer.Option("--continuous", help="Continue with new messages until Ctrl-C.")] = False,
    every_ms: Annotated[
        int,
        typer.Option(
            "--every", metavar="TIME", parser=read_milliseconds, help="With --continuous: time between batches."
        ),
    ] = "10s",  # type: ignore[assignment]  # the default is parsed too
    columns: Annotated[str | None, typer.Option(help="Column names, separated by commas. Default: all.")] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Decode values by their schemas.")] = False,
    tier: SourceTier = None,
    metadata: SourceMetadata = None,
    master: SparkMaster = None,
    fail_on_data_loss: Annotated[
        bool, typer.Option(help="Fail if entries were trimmed before they were exported; otherwise skip them.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as a JSON object.")] = False,
) -> int:
    """Export the messages of a topic to Parquet with Spark. A later run adds the messages since the last one.

    An export that is stopped or killed can be repeated: every message is written once. The directory is one dataset.

    Example: afterglow export ./home my-topic --to parquet:./my-topic
    """
    from afterglow.spark.export import ExportRequest, export_topic  # noqa: PLC0415 - not needed for --help

    logging.getLogger("py4j").setLevel(
        logging.CRITICAL
    )  # it logs the traceback of errors that are reported in one line
    if continuous and not every_ms:
        raise ConfigError("--every must be greater than 0; give a time such as 10s")
    names = None if columns is None else tuple(name.strip() for name in columns.split(","))
    request = ExportRequest(source, topic, to, names, decode, tier, metadata, fail_on_data_loss)
    out = Output(as_json=as_json)
    exported: ExportProgress | None = None
    try:
        with ExitStack() as stack:
            stack.enter_context(interruptible(f"the export of {topic} and Spark"))
            show = stack.enter_context(progress(f"exporting {topic}", "entries"))
            show("starting Spark")

            def on_progress(now: ExportProgress) -> None:
                nonlocal exported
                exported = now
                show(_summary(now), now.entries, 0 if continuous else now.total_entries)

            every_s = every_ms / 1000 if continuous else None
            exported = export_topic(request, master=master, every_s=every_s, on_progress=on_progress)
    except SystemExit:
        if not continuous or exported is None:
            raise
    row = {"messages": exported.rows, "batches": exported.batches}
    out.say(f"{_summary(exported)} written to {to.partition(':')[2]}", row)
    return DONE


def _summary(exported: ExportProgress) -> str:
    return f"{exported.rows:,} messages in {exported.batches} batches"
