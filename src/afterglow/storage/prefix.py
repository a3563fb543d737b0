"""A part of a store as a store of its own: every key gets a prefix on its way in and loses it on its way out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from afterglow.storage.names import check_key
from afterglow.storage.store import PAGE_SIZE, ObjectPage, ObjectStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from afterglow.storage.store import Data, ObjectInfo, Part, StoreLimits, Upload

__all__ = ["PrefixedStore"]


class PrefixedStore(ObjectStore):
    """The objects of a store whose keys lie below ``prefix/``.

    Args:
        inner: The store.
        prefix: Components joined by slashes; slashes at its ends do not matter.
    """

    def __init__(self, inner: ObjectStore, prefix: str) -> None:
        self.inner = inner
        self._prefix = check_key(prefix.strip("/")) + "/"

    def __repr__(self) -> str:
        return f"PrefixedStore({self.inner!r}, {self._prefix!r})"

    @property
    def url(self) -> str:
        """The inner store's address with the prefix."""
        return f"{self.inner.url}/{self._prefix.removesuffix('/')}"

    @property
    def limits(self) -> StoreLimits:
        """The inner store's limits."""
        return self.inner.limits

    def put(self, key: str, data: Data, *, metadata: Mapping[str, str] | None = None, if_absent: bool = False) -> None:
        """Write an object below the prefix."""
        self.inner.put(self._inside(key), data, metadata=metadata, if_absent=if_absent)

    def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        """Read an object below the prefix."""
        return self.inner.get(self._inside(key), start, end)

    def head(self, key: str) -> ObjectInfo:
        """Tell about an object below the prefix."""
        return replace(self.inner.head(self._inside(key)), key=key)

    def list_page(self, prefix: str = "", start_after: str = "", limit: int = PAGE_SIZE) -> ObjectPage:
        """List objects below the prefix."""
        after = self._prefix + start_after if start_after else ""
        page = self.inner.list_page(self._prefix + prefix, after, limit)
        return ObjectPage(tuple(replace(info, key=self._outside(info.key)) for info in page.objects), page.complete)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects below the prefix."""
        self.inner.delete([self._inside(key) for key in keys])

    def create_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> Upload:
        """Begin an upload of an object below the prefix."""
        return replace(self.inner.create_upload(self._inside(key), metadata=metadata), key=key)

    def upload_part(self, upload: Upload, number: int, data: Data) -> Part:
        """Store one part."""
        return self.inner.upload_part(self._inner_upload(upload), number, data)

    def list_parts(self, upload: Upload) -> tuple[Part, ...]:
        """Tell the parts that have arrived."""
        return self.inner.list_parts(self._inner_upload(upload))

    def complete_upload(self, upload: Upload, parts: Sequence[Part]) -> None:
        """Join the parts into the object."""
        self.inner.complete_upload(self._inner_upload(upload), parts)

    def abort_upload(self, upload: Upload) -> None:
        """Discard an upload."""
        self.inner.abort_upload(self._inner_upload(upload))

    def list_uploads(self, prefix: str = "") -> tuple[Upload, ...]:
        """Tell the unfinished uploads below the prefix."""
        uploads = self.inner.list_uploads(self._prefix + prefix)
        return tuple(replace(upload, key=self._outside(upload.key)) for upload in uploads)

    def _inside(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _outside(self, key: str) -> str:
        return key.removeprefix(self._prefix)

    def _inner_upload(self, upload: Upload) -> Upload:
        return replace(upload, key=self._inside(upload.key))
