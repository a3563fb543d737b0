"""``afterglow inspect``: the content of an object in a tier, without metadata."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afterglow.cli.app import DONE, FAILED, app
from afterglow.cli.output import Output, printable
from afterglow.cli.parameters import TierOptions
from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.read.inspect import Inspection


class OutputFormat(StrEnum):
    """Output format of rows."""

    TABLE = "table"
    JSONL = "jsonl"


@app.command()
def inspect(
    tier: Annotated[str, typer.Argument(help="The tier: file:///path or s3://bucket[/prefix].")],
    key: Annotated[str, typer.Argument(help="Key of a data object, or of its index.")],
    *,
    blocks: Annotated[bool, typer.Option("--blocks", help="Print one row per block.")] = False,
    entries: Annotated[bool, typer.Option("--entries", help="Print one row per entry.")] = False,
    messages: Annotated[bool, typer.Option("--messages", help="Print one row per message.")] = False,
    output: Annotated[OutputFormat, typer.Option("--format", help="Output format.")] = (OutputFormat.TABLE),
    option: TierOptions = None,
) -> int:
    """Show the content of a data object and its index, V1 or V2, without metadata; exit 1 if it is damaged.

    Example: afterglow inspect file:///var/tier 457d7db4-cd64-462a-8bf4-884af839cf0a-ledger-4 --messages --format jsonl
    """
    from afterglow.read.inspect import inspect_object  # noqa: PLC0415 - numba is not needed for --help
    from afterglow.storage import open_store  # noqa: PLC0415

    if blocks + entries + messages > 1:
        raise ConfigError("--blocks, --entries and --messages exclude each other; give one")
    inspection = inspect_object(open_store(tier, **dict(option or ())), key)
    if messages:
        rows = _message_rows(inspection)
    elif entries:
        rows = _entry_rows(inspection)
    elif blocks:
        rows = _block_rows(inspection)
    else:
        rows = iter([_summary(inspection)])
    out = Output(as_json=output is OutputFormat.JSONL)
    if not out.as_json:
        rows = ({name: _short(value) for name, value in row.items()} for row in rows)
    if blocks or entries or messages:
        out.rows(rows, absent="no rows")
    else:
        out.record(next(rows), absent="")
    for damage in inspection.damage:
        sys.stderr.write(printable(f"afterglow: damage in {inspection.key}: {damage}") + "\n")
    return FAILED if inspection.damage else DONE


def _summary(inspection: Inspection) -> dict[str, Any]:
    found = list(inspection.blocks())
    ledgers = sorted({block.ledger_id for block in found if block.ledger_id is not None})
    return {
        "key": inspection.key,
        "format": inspection.index.format.name if inspection.index else None,
        "bytes": inspection.info.size_bytes,
        "ledgers": ledgers,
        "blocks": len(found),
        "entries": sum(len(block.block.frames) for block in found),
        "damage": [str(damage) for damage in inspection.damage],
        "metadata": dict(inspection.info.metadata),
    }


def _block_rows(inspection: Inspection) -> Iterator[dict[str, Any]]:
    for block in inspection.blocks():
        statistics = block.statistics
        yield {
            "ledger_id": block.ledger_id,
            "first_entry_id": block.block.header.first_entry_id,
            "last_entry_id": block.block.frames.end_entry_id - 1,
            "entries": len(block.block.frames),
            "offset": block.offset,
            "length": block.block.header.block_bytes,
            "crc32c": statistics.crc32c,
            "min_broker_time": statistics.min_broker_time,
            "max_broker_time": statistics.max_broker_time,
            "min_publish_time": statistics.min_publish_time,
            "max_publish_time": statistics.max_publish_time,
        }


def _entry_rows(inspection: Inspection) -> Iterator[dict[str, Any]]:
    from afterglow.read.jsonl import entry_row  # noqa: PLC0415

    for ledger_id, entry_id, data in inspection.entries():
        yield entry_row(ledger_id, entry_id, data, "tiered")


def _message_rows(inspection: Inspection) -> Iterator[dict[str, Any]]:
    from afterglow.read.jsonl import message_rows  # noqa: PLC0415

    for batch in inspection.messages():
        yield from message_rows(batch, topic=None, tier="tiered")


def _short(value: Any) -> Any:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
    return text[:57] + "..." if isinstance(text, str) and len(text) > 60 else text
