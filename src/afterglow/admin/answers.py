"""Values as JSON, a little at a time.

The log of a topic of ten thousand ledgers has 6 MB, which takes a tenth of a second to encode. The encoder holds the
interpreter, on whichever thread it runs, so it is called for one row after another, and others have their turn.
"""

from __future__ import annotations

import asyncio
import json
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_CONTAINERS: Final = frozenset((dict, list, tuple))
_MOST_ITEMS: Final = 100
"""Of a list or object that is encoded as one piece, with those inside: some ten microseconds."""
_PIECES_AT_ONCE: Final = 100
"""That are encoded before others have their turn: a millisecond."""


async def encode_in_turns(value: object) -> bytes:
    """A value as JSON. While it is a large one others have their turns, and must not change it.

    Raises:
        ValueError: It has a number that is none to JSON.
    """
    data = bytearray()
    pieces = _pieces(value)
    while some := list(islice(pieces, _PIECES_AT_ONCE)):
        if data:
            await asyncio.sleep(0)
        data += "".join(some).encode()
    return bytes(data)


def encode(value: object) -> bytes:
    """A value as JSON, at once.

    Raises:
        ValueError: It has a number that is none to JSON.
    """
    return _ENCODER.encode(value).encode()


def _pieces(value: object) -> Iterator[str]:
    if _size(value) <= _MOST_ITEMS:
        yield _ENCODER.encode(value)
    elif isinstance(value, dict):
        mark = "{"
        for key, item in value.items():
            name = _ENCODER.encode(key)
            yield f"{mark}{name}:" if isinstance(key, str) else f'{mark}"{name}":'
            yield from _pieces(item)
            mark = ","
        yield "}"
    elif isinstance(value, list | tuple):
        mark = "["
        for item in value:
            yield mark
            yield from _pieces(item)
            mark = ","
        yield "]"


def _size(value: object) -> int:
    """How many values there are in one; no more are counted than tell that it is large."""
    if type(value) not in _CONTAINERS:
        return 1
    items: Collection[object] = value.values() if isinstance(value, dict) else value  # type: ignore[assignment]  # a list or tuple
    size = len(items)
    for item in items if size <= _MOST_ITEMS else ():
        if type(item) in _CONTAINERS:
            size += _size(item)
            if size > _MOST_ITEMS:
                break
    return size
