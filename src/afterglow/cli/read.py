"""``afterglow read``."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer

from afterglow.cli.app import DONE, FAILED, app
from afterglow.cli.output import PrintableFormatter, printable
from afterglow.cli.parameters import (
    CaFile,
    ReadSourceArgument,
    SourceMetadata,
    SourceTier,
    SourceTopicArgument,
    Token,
    read_seconds,
)
from afterglow.cli.progress import progress, size_text
from afterglow.errors import IncompleteMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.cli.progress import ShowProgress
    from afterglow.cli.sinks import Sink
    from afterglow.cli.template import Template
    from afterglow.errors import CorruptEntry
    from afterglow.source.connect import SourceTopic
    from afterglow.source.tables import BatchReader

_TABLE_COLUMNS: Final = (
    "topic", "ledger_id", "entry_id", "batch_index", "publish_time", "broker_time", "producer", "key", "properties",
    "value", "tier",
)  # fmt: skip
"""Columns that the table of messages needs."""
CORRUPT: Final = "_corrupt"
"""Column with the reason why a value could not be decoded."""


class ReadFormat(StrEnum):
    """Output format of rows."""

    TABLE = "table"
    JSONL = "jsonl"
    PARQUET = "parquet"


@app.command()
def read(
    source: ReadSourceArgument,
    topic: SourceTopicArgument,
    *,
    start: Annotated[
        str | None, typer.Option(metavar="POS", help="First position: LEDGER:ENTRY[:BATCH] or earliest.")
    ] = None,
    end: Annotated[
        str | None, typer.Option(metavar="POS", help="End position (exclusive): LEDGER:ENTRY[:BATCH] or latest.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="First time: RFC 3339, epoch milliseconds, or an age such as 15m."),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="End time (exclusive).")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Maximum number of rows.")] = None,
    read_priority: Annotated[
        str | None,
        typer.Option(metavar="PRIORITY", help="tiered-first or bookkeeper-first. Default: the policy of the topic."),
    ] = None,
    output_format: Annotated[ReadFormat, typer.Option("--format", help="Output format.")] = ReadFormat.TABLE,
    output: Annotated[Path | None, typer.Option(metavar="PATH", help="Output file. Default: standard output.")] = None,
    entries: Annotated[bool, typer.Option("--entries", help="Read raw entries instead of messages.")] = False,
    columns: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Columns to read, separated by commas. Default: all.")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Print each message by a template, such as '%k %v\\n', in place of --format. The fields are those of "
            "rpk topic consume: %k key, %v value (%v{base64}, %v{hex}), %K and %V their lengths, %t topic, %p "
            "partition, %o position, %d publish time, %h properties.",
        ),
    ] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Decode values by their schemas.")] = False,
    tier: SourceTier = None,
    metadata: SourceMetadata = None,
    hot: Annotated[str, typer.Option(metavar="read|skip", help="skip omits entries that are in no tier.")] = "read",
    fail_on_data_loss: Annotated[
        bool,
        typer.Option(
            "--fail-on-data-loss",
            help="Fail if entries between --start and --end were trimmed or never written. Default: a warning.",
        ),
    ] = False,
    entry_path: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Where entries of a Pulsar cluster that are in no tier are read: bookkeeper, broker, or auto: from "
            "bookies, and from brokers where these cannot be read.",
        ),
    ] = "auto",
    service_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Brokers that serve entries in no tier. Default: as the source returns them."),
    ] = None,
    timeout: Annotated[
        Any,
        typer.Option(
            metavar="TIME", parser=read_seconds, help="Time after which a store that does not answer is an error."
        ),
    ] = "30s",
    token: Token = None,
    ca_file: CaFile = None,
) -> int:
    r"""Read the messages of a topic from hot log and tier, without Spark.

    Example: afterglow read ./home my-topic --since 15m --format jsonl

    Example: afterglow read ./home my-topic --template '%o %k %v\n'

    Example: afterglow read http://pulsar:8080 my-topic --hot skip

    Example: afterglow read s3://bucket my-topic --limit 10
    """
    from afterglow.cli.template import Template  # noqa: PLC0415 - as below
    from afterglow.source.connect import connect  # noqa: PLC0415 - numba and Arrow are not needed for --help

    if template is not None and (columns or entries or output_format is not ReadFormat.TABLE):
        raise typer.BadParameter("--template replaces --format, --columns and --entries; leave them out")
    by_template = None if template is None else Template.parse(template)
    chosen = None if columns is None else tuple(name.strip() for name in columns.split(",") if name.strip())
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("afterglow: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("afterglow.source.tier_objects").setLevel(logging.INFO)  # progress of a first listing
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # logs every attempt; the final error is reported
    damaged = False

    def report(error: CorruptEntry) -> None:
        nonlocal damaged
        damaged = damaged or not isinstance(
            error, IncompleteMessage
        )  # an incomplete message does not count as damage: its producer gave up
        sys.stderr.write(printable(f"afterglow: skipped: {error}") + "\n")

    cluster: dict[str, Any] = {
        "hot": hot,
        "entries": entry_path,
        "service_url": service_url,
        "token": token,
        "ca_file": ca_file,
        "timeout_s": timeout,
    }
    with (
        progress(f"reading {topic}", "rows") as show,
        connect(source, tier, metadata, **cluster) as connected,
    ):
        found = connected.topic(topic)
        if by_template is not None:
            chosen = by_template.columns
        elif chosen is None:
            chosen = _columns(found, output_format, entries=entries, decode=decode)
        batches = found.scan(
            start,
            end,
            since,
            until,
            chosen,
            read_priority,
            "entries" if entries else "messages",
            decode=decode,
            limit=limit,
            report=report,
            fail_on_data_loss=fail_on_data_loss,
        )
        sink = partial(_text_sink, output_format, by_template, entries=entries, by_column=columns is not None)
        _write(batches, output_format, output, sink, "entries" if entries else "messages", show=show)
        skipped = sum(connected.counters.counts().skipped.values())
    return FAILED if damaged or skipped else DONE


def _columns(topic: SourceTopic, output_format: ReadFormat, *, entries: bool, decode: bool) -> tuple[str, ...] | None:
    """Return the columns to read; None: all."""
    if output_format is not ReadFormat.TABLE:
        return None
    shown = ("topic", "ledger_id", "entry_id", "data", "tier") if entries else _TABLE_COLUMNS
    if decode:
        shown = (*shown, CORRUPT)
    return shown if topic.partitions != (topic.name,) else shown[1:]


def _text_sink(
    output_format: ReadFormat, template: Template | None, out: TextIO, *, entries: bool, by_column: bool
) -> Sink:
    from afterglow.cli.sinks import JsonLines, Table  # noqa: PLC0415
    from afterglow.cli.template import TemplateSink  # noqa: PLC0415

    if template is not None:
        return TemplateSink(out, template)
    return Table(out, by_column=by_column) if output_format is ReadFormat.TABLE else JsonLines(out, entries=entries)


def _write(
    batches: BatchReader,
    output_format: ReadFormat,
    output: Path | None,
    text_sink: Callable[[TextIO], Sink],
    plural: str,
    *,
    show: ShowProgress,
) -> None:
    from afterglow.cli.sinks import parquet_output, text_output  # noqa: PLC0415

    with ExitStack() as stack:
        sink: Sink
        if output_format is ReadFormat.PARQUET:
            sink = stack.enter_context(parquet_output(output, batches.schema))
        else:
            sink = text_sink(stack.enter_context(text_output(output)))
        is_shown = output is None and sys.stdout.isatty()
        rows = size = 0
        for batch in batches:
            if is_shown:
                show.end()  # from here on the rows show the progress
            sink.write(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            show(f"{rows:,} {plural}, {size_text(size)}")
