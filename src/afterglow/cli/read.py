"""``afterglow read``."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from afterglow.cli.app import DONE, FAILED, app
from afterglow.cli.connection import CaFile, Token
from afterglow.cli.output import Output, PrintableFormatter, printable
from afterglow.errors import IncompleteMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from afterglow.errors import CorruptEntry
    from afterglow.source.connect import SourceTopic

_FEW: Final = 1_000
"""Up to so many rows are not worth reading ahead for."""
_TABLE_COLUMNS: Final = (
    "topic", "ledger_id", "entry_id", "batch_index", "publish_time", "broker_time", "producer", "key", "properties",
    "value", "tier",
)  # fmt: skip
"""Of messages, what people see."""
CORRUPT: Final = "_corrupt"
"""Why a value could not be decoded."""


class ReadFormat(StrEnum):
    """How rows are written."""

    TABLE = "table"
    JSONL = "jsonl"
    PARQUET = "parquet"


@app.command()
def read(
    source: Annotated[
        str,
        typer.Argument(
            help="Home directory of a server, which may be running; http://HOST:8080, the admin API of a Pulsar or an "
            "Afterglow; or zk://HOST:2181[/CHROOT], a Pulsar's ZooKeeper."
        ),
    ],
    topic: Annotated[
        str,
        typer.Argument(help="persistent://TENANT/NAMESPACE/NAME, TENANT/NAMESPACE/NAME, or NAME in public/default."),
    ],
    *,
    start: Annotated[
        str | None, typer.Option(metavar="POS", help="From here on: LEDGER:ENTRY[:BATCH] or earliest.")
    ] = None,
    end: Annotated[str | None, typer.Option(metavar="POS", help="Before this: LEDGER:ENTRY[:BATCH] or latest.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="From then on: RFC 3339, epoch milliseconds, or an age like 15m.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Before then.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="So many rows at most.")] = None,
    read_priority: Annotated[
        str | None,
        typer.Option(metavar="PRIORITY", help="tiered-first or bookkeeper-first; by default what the policy says."),
    ] = None,
    output_format: Annotated[
        ReadFormat, typer.Option("--format", help="A table for people, JSON lines, or Parquet.")
    ] = ReadFormat.TABLE,
    output: Annotated[Path | None, typer.Option(metavar="PATH", help="A file instead of standard output.")] = None,
    entries: Annotated[bool, typer.Option("--entries", help="Raw entries instead of messages.")] = False,
    decode: Annotated[bool, typer.Option("--decode", help="Values as their schemas describe them.")] = False,
    tier: Annotated[
        str | None, typer.Option(help="Where all objects are, whatever metadata says: file:///path or s3://bucket.")
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            help="Where the server's metadata is, if not in its home: sqlite:PATH; of an Afterglow that is attached to "
            "a cluster: its own."
        ),
    ] = None,
    hot: Annotated[str, typer.Option(metavar="read|skip", help="skip leaves out what no tier has.")] = "read",
    fail_on_data_loss: Annotated[
        bool,
        typer.Option(
            "--fail-on-data-loss",
            help="Fail where entries between --start and --end were trimmed or never written; else warn.",
        ),
    ] = False,
    service_url: Annotated[
        str | None, typer.Option(metavar="URL", help="The brokers of the hot rest, if the source is not to be asked.")
    ] = None,
    token: Token = None,
    ca_file: CaFile = None,
) -> int:
    """Read a topic's messages from hot log and tier alike, without a server and without Spark.

    Example: afterglow read ./home my-topic --since 15m --format jsonl

    Example: afterglow read http://pulsar:8080 my-topic --hot skip
    """
    from afterglow.source.connect import connect  # noqa: PLC0415 - numba and Arrow are not needed for --help

    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("afterglow: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # it tells of every try that is told once when all failed
    damaged = False

    def report(error: CorruptEntry) -> None:
        nonlocal damaged
        damaged = damaged or not isinstance(error, IncompleteMessage)  # which only its producer could have finished
        sys.stderr.write(printable(f"afterglow: left out: {error}") + "\n")

    cluster: dict[str, Any] = {"hot": hot, "service_url": service_url, "token": token, "ca_file": ca_file}
    with connect(source, tier, metadata, **cluster) as connected:
        found = connected.topic(topic)
        columns = _columns(found, output_format, entries=entries, decode=decode)
        batches = found.scan(
            start,
            end,
            since,
            until,
            columns,
            read_priority,
            "entries" if entries else "messages",
            decode=decode,
            scan=limit is None or limit > _FEW,
            report=report,
            fail_on_data_loss=fail_on_data_loss,
        )
        _write(batches, limit, output_format, output, entries=entries)
        left_out = sum(connected.counters.counts().left_out.values())
    return FAILED if damaged or left_out else DONE


def _columns(topic: SourceTopic, output_format: ReadFormat, *, entries: bool, decode: bool) -> tuple[str, ...] | None:
    """Which columns to read; None: all."""
    if output_format is not ReadFormat.TABLE:
        return None
    shown = ("topic", "ledger_id", "entry_id", "data", "tier") if entries else _TABLE_COLUMNS
    if decode:
        shown = (*shown, CORRUPT)
    return shown if topic.partitions != (topic.name,) else shown[1:]


def _write(
    batches: pa.RecordBatchReader, limit: int | None, output_format: ReadFormat, output: Path | None, *, entries: bool
) -> None:
    from afterglow.cli.sinks import JsonLines, Parquet, Table, parquet_output, text_output  # noqa: PLC0415

    with ExitStack() as stack:
        sink: JsonLines | Parquet | Table
        if output_format is ReadFormat.PARQUET:
            sink = stack.enter_context(parquet_output(output, batches.schema))
        else:
            out = stack.enter_context(text_output(output))
            sink = Table(out) if output_format is ReadFormat.TABLE else JsonLines(out, entries=entries)
        things = "entries" if entries else "messages"
        watched = output is not None or not sys.stdout.isatty()  # else the rows themselves are seen to come
        show = stack.enter_context(Output(as_json=False).working("reading")) if watched else None
        rows = size = 0
        for batch in _limited(batches, limit):
            sink.write(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if show is not None:
                show(f"{rows:,} {things}, {size >> 20:,} MiB")


def _limited(batches: pa.RecordBatchReader, limit: int | None) -> Iterator[pa.RecordBatch]:
    """The batches up to a number of rows; nothing is read behind them."""
    left = limit
    if left == 0:
        return
    for batch in batches:
        yield batch if left is None else batch.slice(0, left)
        if left is not None:
            left -= batch.num_rows
            if left <= 0:
                return
