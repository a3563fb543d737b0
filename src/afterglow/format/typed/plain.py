"""Pulsar's plain schemas: a value is nothing but the bytes of one number, text or time.

``DATE``, ``TIME`` and ``TIMESTAMP`` are Java's old classes, which all hold a moment in milliseconds; ``TIME`` too, of
the first day of 1970 in the producer's own zone, which nobody else knows.
"""

from __future__ import annotations

from typing import Final

from afterglow.format.typed.nodes import Kind, Leaf, Wire

_MOMENT: Final = Leaf(Kind.MOMENT, Wire.PLAIN_TIME, size=8, times=1_000)

BYTES: Final = Leaf(Kind.BYTES, Wire.PLAIN_BYTES)
"""Bytes as they are: also of types that are not decoded."""

PLAIN: Final = {
    "BYTES": BYTES,
    "NONE": BYTES,
    "STRING": Leaf(Kind.STRING, Wire.PLAIN_STRING),
    "BOOLEAN": Leaf(Kind.BOOLEAN, Wire.PLAIN_BOOLEAN, size=1),
    "INT8": Leaf(Kind.INT8, Wire.PLAIN_NUMBER, size=1),
    "INT16": Leaf(Kind.INT16, Wire.PLAIN_NUMBER, size=2),
    "INT32": Leaf(Kind.INT, Wire.PLAIN_NUMBER, size=4),
    "INT64": Leaf(Kind.LONG, Wire.PLAIN_NUMBER, size=8),
    "FLOAT": Leaf(Kind.FLOAT, Wire.PLAIN_FLOAT, size=4),
    "DOUBLE": Leaf(Kind.DOUBLE, Wire.PLAIN_DOUBLE, size=8),
    "DATE": _MOMENT,
    "TIME": _MOMENT,
    "TIMESTAMP": _MOMENT,
    "INSTANT": Leaf(Kind.MOMENT, Wire.PLAIN_INSTANT, size=12),
    "LOCAL_DATE": Leaf(Kind.DATE, Wire.PLAIN_DATE, size=8),
    "LOCAL_TIME": Leaf(Kind.TIME, Wire.PLAIN_TIME, size=8),
    "LOCAL_DATE_TIME": Leaf(Kind.LOCAL, Wire.PLAIN_LOCAL, size=16),
}
"""By the type's name."""
