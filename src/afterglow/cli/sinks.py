"""Sinks of ``afterglow read`` for Arrow batches of messages or entries: JSON lines, a table, or Parquet.

A sink holds one batch in memory, or one row group of Parquet. A file appears under its name when it is complete.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

from afterglow.cli.output import json_text, printable, silence_stdout
from afterglow.errors import ConfigError
from afterglow.read.jsonl import entry_rows, message_rows, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

_ROW_GROUP_BYTES: Final = 64 << 20
"""Size of a row group in Arrow columns: the unit in which readers of Parquet read."""
_MAX_WIDTH: Final = 60
"""Characters of a table cell; longer text is truncated."""


class Sink(Protocol):
    """Takes the batches of a command, in order."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        ...


class JsonLines:
    """One JSON object per row."""

    def __init__(self, out: TextIO, *, entries: bool) -> None:
        self._out = out
        self._rows = entry_rows if entries else message_rows

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        self._out.writelines(json_text(row, self._out) + "\n" for row in self._rows(batch))


class Table:
    """A table with one line per row; the first batch determines the column widths.

    Args:
        out: The output.
        by_column: Show every column under its own name; otherwise those of messages or entries, shortened.
    """

    def __init__(self, out: TextIO, *, by_column: bool = False) -> None:
        self._out = out
        self._cells = _by_column if by_column else _shown
        self._widths: dict[str, int] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        rows = [self._cells(row) for row in batch.to_pylist()]
        if not self._widths:
            self._widths = {
                name: min(max(len(name), *(len(row[name]) for row in rows)), _MAX_WIDTH) for name in rows[0]
            }
            self._line({name: name for name in self._widths})
        for row in rows:
            self._line(row)

    def _line(self, row: Mapping[str, str]) -> None:
        cells = (_truncated(row[name], width).ljust(width) for name, width in self._widths.items())
        self._out.write("  ".join(cells).rstrip() + "\n")


class Parquet:
    """A Parquet file with the same columns, in row groups of about 64 MiB."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        from pyarrow.parquet import ParquetWriter  # noqa: PLC0415 - slow to import, and needed only here

        self._writer: Any = ParquetWriter(file, schema, compression="zstd")
        self._schema = schema
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        self._buffered.append(batch)
        self._buffered_bytes += batch.nbytes
        if self._buffered_bytes >= _ROW_GROUP_BYTES:
            self._write_group()

    def close(self) -> None:
        """Write the buffered rows and the footer of the file."""
        try:
            if self._buffered:
                self._write_group()
        finally:
            self._writer.close()

    def _write_group(self) -> None:
        import pyarrow as pa  # noqa: PLC0415 - as above

        group = pa.Table.from_batches(self._buffered, self._schema)
        self._buffered, self._buffered_bytes = [], 0
        self._writer.write_table(group, row_group_size=max(group.num_rows, 1))


@contextmanager
def text_output(path: Path | None) -> Iterator[TextIO]:
    """Open standard output, or a file that appears when it is complete.

    If the reader closes the pipe, the ``with`` statement ends without an error.

    Raises:
        ConfigError: The file's directory does not exist.
        OSError: The file cannot be written.
    """
    if path is not None:
        with _complete_file(path) as part, part.open("w", encoding="utf-8") as out:
            yield out
        return
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()


@contextmanager
def parquet_output(path: Path | None, schema: pa.Schema) -> Iterator[Parquet]:
    """Open a Parquet file that appears when it is complete.

    Raises:
        ConfigError: No file is given, or its directory does not exist.
        OSError: The file cannot be written.
    """
    if path is None:
        raise ConfigError("--format parquet needs --output PATH; it cannot be written to standard output")
    with _complete_file(path) as part:
        sink = Parquet(part, schema)
        try:
            yield sink
        finally:
            sink.close()


@contextmanager
def _complete_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file that is renamed at the end, and deleted after an error."""
    if not path.parent.is_dir():
        raise ConfigError(f"--output {str(path)!r}: the directory {str(path.parent)!r} does not exist; create it first")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _shown(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of a table row, with the position in one cell."""
    position = [row["ledger_id"], row["entry_id"]]
    if row.get("batch_index", -1) >= 0:
        position.append(row["batch_index"])
    time = next((row[name] for name in ("broker_time", "publish_time") if row.get(name) is not None), None)
    shown: dict[str, str] = {}
    if "topic" in row:
        shown["topic"] = printable(row["topic"].rpartition("/")[2])
    shown["position"] = ":".join(map(str, position))
    if "publish_time" in row:
        shown["time"] = _time(time) if time else ""
    for name in ("producer", "key", "properties", "value", "data", "tier", "_corrupt"):
        if name in row:
            shown[name] = _text(name, row[name])
    return shown


def _by_column(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of a table row, one for each column."""
    return {name: _time(value) if isinstance(value, datetime) else _text(name, value) for name, value in row.items()}


def _time(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03}Z"


def _text(name: str, value: Any) -> str:
    """Format a value on one line; bytes that are not UTF-8 in hexadecimal."""
    if value is None:
        return ""
    if name in {"key", "value"} and not isinstance(value, bytes | str):
        value = json.dumps(plain(value), ensure_ascii=False)
    if isinstance(value, list):
        value = ", ".join(f"{name}={text}" for name, text in value)
    if isinstance(value, bytes):
        start = value[: 4 * _MAX_WIDTH]
        is_whole = len(start) == len(value)  # otherwise the slice may end within a character
        try:
            value = codecs.getincrementaldecoder("utf-8")().decode(start, final=is_whole)
        except UnicodeDecodeError:
            return f"0x{start[:_MAX_WIDTH].hex()}"
    return printable(str(value))


def _truncated(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
