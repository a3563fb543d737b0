"""Parser of protobuf's wire format, by field number, without a schema.

It does not use the generated classes on purpose: the verifier must not share an error in the writers' schema. Groups,
which no message here has, are refused.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from afterglow.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Parse a varint of up to 64 bits at an offset; returns it with the offset behind it.

    Raises:
        FormatError: It is truncated or too long.
    """
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise FormatError(f"a varint is truncated at offset {at}")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
    raise FormatError(f"a varint of more than ten bytes ends at offset {at}")


def signed(value: int) -> int:
    """Reinterpret a uint64 as int64."""
    return value - (1 << 64) if value >> 63 else value


def zigzag(value: int) -> int:
    """Decode a sint64."""
    return (value >> 1) ^ -(value & 1)


class Message:
    """The fields of one message. Of a singular field that occurs several times the last counts, as in protobuf.

    Raises:
        FormatError: The bytes are not a message, or a field has another wire type than the caller asks for.
    """

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[int | bytes]] = {}
        for number, value in _fields(data):
            self._fields.setdefault(number, []).append(value)

    def has(self, number: int) -> bool:
        """Whether the field is present."""
        return number in self._fields

    def integer(self, number: int, default: int = 0) -> int:
        """An int32, int64 or enum field."""
        found = self.integer_or_none(number)
        return default if found is None else found

    def integer_or_none(self, number: int) -> int | None:
        """An int32, int64 or enum field; None if it is absent."""
        values = self._numbers(number)
        return signed(values[-1]) if values else None

    def unsigned(self, number: int) -> int:
        """A uint32 or uint64 field."""
        values = self._numbers(number)
        return values[-1] if values else 0

    def flag(self, number: int) -> bool:
        """A bool field."""
        return self.integer(number) != 0

    def text(self, number: int) -> str:
        """A string field; empty if it is absent."""
        values = self.values(number)
        try:
            return values[-1].decode() if values else ""
        except UnicodeDecodeError as error:
            raise FormatError(f"field {number} is not valid UTF-8: {error}") from error

    def values(self, number: int) -> list[bytes]:
        """A repeated bytes or string field."""
        values = self._fields.get(number, [])
        found = [value for value in values if isinstance(value, bytes)]
        if len(found) != len(values):
            raise FormatError(f"field {number} holds a number, not bytes")
        return found

    def message(self, number: int) -> Message:
        """A message field; an empty message if it is absent."""
        return Message(b"".join(self.values(number)))  # protobuf merges repeated occurrences of a singular message

    def messages(self, number: int) -> list[Message]:
        """A repeated message field."""
        return [Message(value) for value in self.values(number)]

    def column(self, number: int) -> tuple[int, ...]:
        """A repeated uint field, packed or not."""
        found: list[int] = []
        for value in self._fields.get(number, []):
            if isinstance(value, int):
                found.append(value)
                continue
            at = 0
            while at < len(value):
                item, at = read_varint(value, at)
                found.append(item)
        return tuple(found)

    def fixed32_column(self, number: int) -> tuple[int, ...]:
        """A repeated fixed32 field, packed or not."""
        data = b"".join(self.values(number))
        if len(data) % 4:
            raise FormatError(f"field {number} is not a list of 32-bit numbers")
        return struct.unpack(f"<{len(data) // 4}I", data)

    def _numbers(self, number: int) -> list[int]:
        values = self._fields.get(number, [])
        found = [value for value in values if isinstance(value, int)]
        if len(found) != len(values):
            raise FormatError(f"field {number} holds bytes, not a number")
        return found


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise FormatError(f"a field with the number 0 ends at offset {at}")
        if kind == _VARINT:
            value, at = read_varint(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = read_varint(data, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise FormatError(f"field {number} has the unsupported wire type {kind}")
        if size > len(data) - at:
            raise FormatError(f"field {number} of {size} bytes passes the end")
        yield number, data[at : at + size]
        at += size
