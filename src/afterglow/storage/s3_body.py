"""Hands a buffer to boto3 without copying it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from afterglow.storage.store import as_view

if TYPE_CHECKING:
    from afterglow.storage.store import Data

__all__ = ["body_of"]


def body_of(data: Data) -> Any:
    """Give what boto3 takes as a body: ``bytes`` or ``bytearray`` themselves, else a file over the view."""
    view = as_view(data)
    whole = view.obj
    if isinstance(whole, bytes | bytearray) and len(whole) == view.nbytes:
        return whole
    return _ViewFile(view)


class _ViewFile(io.RawIOBase):
    """A file over a buffer whose reads are views of it. boto3 seeks in it for its length, and after signing it."""

    def __init__(self, view: memoryview) -> None:
        super().__init__()
        self._view = view
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> Any:
        end = None if size is None or size < 0 else self._position + size
        piece = self._view[self._position : end]
        self._position += piece.nbytes
        return piece

    def readinto(self, buffer: Any, /) -> int:
        piece = self.read(len(buffer))
        buffer[: piece.nbytes] = piece
        return int(piece.nbytes)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._view.nbytes}[whence]
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        return self._position
