"""Where ``afterglow read`` puts Arrow batches of messages or entries: lines of JSON, a table for people, or Parquet.

Each sink takes batch after batch and holds one, or of Parquet one row group. A file appears under its name when it is
whole.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from afterglow.cli.output import json_text, printable, silence_stdout
from afterglow.errors import ConfigError
from afterglow.read.jsonl import entry_rows, message_rows, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

_ROW_GROUP_BYTES: Final = 64 << 20
"""Of Arrow columns in one row group: what readers of Parquet like to take at a time."""
_WIDEST: Final = 60
"""Characters of a table's column; what is longer is cut."""


class JsonLines:
    """One JSON object per row."""

    def __init__(self, out: TextIO, *, entries: bool) -> None:
        self._out = out
        self._rows = entry_rows if entries else message_rows

    def write(self, batch: pa.RecordBatch) -> None:
        """Put one batch."""
        self._out.writelines(json_text(row, self._out) + "\n" for row in self._rows(batch))


class Table:
    """A line per row; the widths of the columns are those that the first batch needs."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._widths: dict[str, int] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Put one batch."""
        rows = [_shown(row) for row in batch.to_pylist()]
        if not self._widths:
            self._widths = {name: min(max(len(name), *(len(row[name]) for row in rows)), _WIDEST) for name in rows[0]}
            self._line({name: name for name in self._widths})
        for row in rows:
            self._line(row)

    def _line(self, row: Mapping[str, str]) -> None:
        cells = (_cut(row[name], width).ljust(width) for name, width in self._widths.items())
        self._out.write("  ".join(cells).rstrip() + "\n")


class Parquet:
    """A Parquet file with the columns as they are, in row groups that are worth reading by themselves."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        from pyarrow.parquet import ParquetWriter  # noqa: PLC0415 - only who wants it waits for it

        self._writer: Any = ParquetWriter(file, schema, compression="zstd")
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Put one batch."""
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._write_group()

    def close(self) -> None:
        """Write what waits, and what a file of this kind ends with."""
        try:
            if self._waiting:
                self._write_group()
        finally:
            self._writer.close()

    def _write_group(self) -> None:
        import pyarrow as pa  # noqa: PLC0415 - as above

        group = pa.Table.from_batches(self._waiting, self._schema)
        self._waiting, self._waiting_bytes = [], 0
        self._writer.write_table(group, row_group_size=max(group.num_rows, 1))


@contextmanager
def text_output(path: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that is there once all is written.

    A reader that has seen enough and closed the pipe ends the ``with`` quietly.

    Raises:
        ConfigError: The file's directory does not exist.
        OSError: The file cannot be written.
    """
    if path is not None:
        with _whole(path) as part, part.open("w", encoding="utf-8") as out:
            yield out
        return
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()


@contextmanager
def parquet_output(path: Path | None, schema: pa.Schema) -> Iterator[Parquet]:
    """A Parquet file that is there once all is written.

    Raises:
        ConfigError: No file is named, or its directory does not exist.
        OSError: The file cannot be written.
    """
    if path is None:
        raise ConfigError("--format parquet needs --output PATH: a Parquet file is not written to a terminal or a pipe")
    with _whole(path) as part:
        sink = Parquet(part, schema)
        try:
            yield sink
        finally:
            sink.close()


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A name to write to; the file gets its own name at the end, and is gone if that is not reached.

    Raises:
        ConfigError: There is no such directory.
    """
    if not path.parent.is_dir():
        raise ConfigError(f"--output {str(path)!r}: {str(path.parent)!r} is no directory; make it first")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _shown(row: Mapping[str, Any]) -> dict[str, str]:
    """A row for people: where it stands first, in one column."""
    place = [row["ledger_id"], row["entry_id"]]
    if row.get("batch_index", -1) >= 0:
        place.append(row["batch_index"])
    time = next((row[name] for name in ("broker_time", "publish_time") if row.get(name) is not None), None)
    shown: dict[str, str] = {}
    if "topic" in row:
        shown["topic"] = printable(row["topic"].rpartition("/")[2])
    shown["position"] = ":".join(map(str, place))
    if "publish_time" in row:
        shown["time"] = f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03}Z" if time else ""
    for name in ("producer", "key", "properties", "value", "data", "tier", "_corrupt"):
        if name in row:
            shown[name] = _text(name, row[name])
    return shown


def _text(name: str, value: Any) -> str:
    """A value on one line; bytes that are no text as hexadecimal digits."""
    if value is None:
        return ""
    if name in {"key", "value"} and not isinstance(value, bytes | str):
        value = json.dumps(plain(value), ensure_ascii=False)
    if isinstance(value, list):
        value = ", ".join(f"{name}={text}" for name, text in value)
    if isinstance(value, bytes):
        start = value[: 4 * _WIDEST]
        try:
            value = codecs.getincrementaldecoder("utf-8")().decode(
                start, final=len(start) == len(value)
            )  # cut anywhere
        except UnicodeDecodeError:
            return f"0x{start[:_WIDEST].hex()}"
    return printable(str(value))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
