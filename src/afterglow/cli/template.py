r"""Templates of ``afterglow read --template``, with the letters of ``rpk topic consume -f``.

A template is text with escapes (``\n``, ``\t``, ``\r``, ``\\``, ``\xNN``) and fields: ``%`` and a letter, and for
bytes perhaps an encoding, as in ``%v{base64}``. ``%%`` is a percent sign.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TextIO

from afterglow.cli.output import printable
from afterglow.errors import ConfigError
from afterglow.read.jsonl import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    Row = Mapping[str, Any]

_TOKEN: Final = re.compile(
    r"%(?P<letter>.)(?:\{(?P<encoding>[^}]*)\})?|\\(?P<escape>x[0-9a-fA-F]{2}|.)|[^%\\]+|.", re.DOTALL
)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\"}
_ENCODINGS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "": lambda data: data,
    "base64": base64.b64encode,
    "hex": lambda data: data.hex().encode(),
}


@dataclass(frozen=True, slots=True)
class _Field:
    """What a letter stands for."""

    meaning: str
    columns: tuple[str, ...]
    """The columns that it needs."""
    render: Callable[[Row], bytes]


def _bytes(value: Any) -> bytes:
    """A value as it is stored; typed values as JSON, null as nothing."""
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)).encode()


def _position(row: Row) -> bytes:
    parts = [row["ledger_id"], row["entry_id"], *([row["batch_index"]] if row["batch_index"] >= 0 else [])]
    return ":".join(map(str, parts)).encode()


def _partition(row: Row) -> bytes:
    _, separator, number = row["topic"].rpartition("-partition-")
    return number.encode() if separator and number.isdigit() else b"-1"


def _milliseconds(time: datetime | None) -> bytes:
    return b"" if time is None else str(round(time.timestamp() * 1000)).encode()


_FIELDS: Final = {
    "k": _Field("key", ("key",), lambda row: _bytes(row["key"])),
    "v": _Field("value", ("value",), lambda row: _bytes(row["value"])),
    "K": _Field("bytes of the key", ("key",), lambda row: b"%d" % len(_bytes(row["key"]))),
    "V": _Field("bytes of the value", ("value",), lambda row: b"%d" % len(_bytes(row["value"]))),
    "t": _Field("topic", ("topic",), lambda row: row["topic"].encode()),
    "p": _Field("partition, or -1", ("topic",), _partition),
    "o": _Field("position", ("ledger_id", "entry_id", "batch_index"), _position),
    "d": _Field("publish time, epoch milliseconds", ("publish_time",), lambda row: _milliseconds(row["publish_time"])),
    "h": _Field("properties, as JSON", ("properties",), lambda row: json.dumps(dict(row["properties"])).encode()),
}
LETTERS: Final = ", ".join(f"%{letter} {field.meaning}" for letter, field in _FIELDS.items())
"""All fields, for help texts."""


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template."""

    parts: tuple[bytes | tuple[_Field, Callable[[bytes], bytes]], ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Parse a template.

        Raises:
            ConfigError: It has an unknown field, encoding or escape.
        """
        return cls(tuple(_part(match, text) for match in _TOKEN.finditer(text)))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it needs."""
        named = (name for part in self.parts if isinstance(part, tuple) for name in part[0].columns)
        return tuple(dict.fromkeys(named)) or ("entry_id",)

    def render(self, row: Row) -> bytes:
        """The text of one message."""
        return b"".join(part if isinstance(part, bytes) else part[1](part[0].render(row)) for part in self.parts)


def _part(match: re.Match[str], text: str) -> bytes | tuple[_Field, Callable[[bytes], bytes]]:
    letter, encoding, escape = match["letter"], match["encoding"], match["escape"]
    if letter is not None:
        if letter == "%" and encoding is None:
            return b"%"
        field, encode = _FIELDS.get(letter), _ENCODINGS.get(encoding or "")
        if field is None:
            raise ConfigError(
                f"--template {text!r} has the unknown field %{letter}; use {LETTERS}, or %% for a percent sign"
            )
        if encode is None:
            raise ConfigError(f"--template {text!r} has the unknown encoding {{{encoding}}}; use {{base64}} or {{hex}}")
        return field, encode
    if escape is not None:
        if escape[0] == "x" and len(escape) > 1:
            return bytes.fromhex(escape[1:])
        if escape not in _ESCAPES:
            raise ConfigError(
                f"--template {text!r} has the unknown escape \\{escape}; use \\n, \\t, \\r, \\\\ or \\xNN"
            )
        return _ESCAPES[escape]
    if match[0] in {"%", "\\"}:
        raise ConfigError(f"--template {text!r} ends with {match[0]}; write {match[0] * 2} for the character itself")
    return match[0].encode()


class TemplateSink:
    """Writes each message by a template: as it is stored, or on a terminal with control characters escaped."""

    def __init__(self, out: TextIO, template: Template) -> None:
        self._out = out
        self._template = template
        self._binary = None if out.isatty() else out.buffer

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        for text in self._texts(batch):
            if self._binary is not None:
                self._binary.write(text)
            else:
                self._out.write(printable(text.decode("utf-8", "backslashreplace"), keep="\n\t"))

    def _texts(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        return map(self._template.render, batch.to_pylist())
