"""The base of stores that stand before another store.

Every request passes through :meth:`StoreWrapper._call`, so a wrapper that counts, delays or fails requests overrides
that one method. Listing goes page by page through it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, get_args

from afterglow.storage.store import PAGE_SIZE, ObjectStore, as_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from afterglow.storage.store import Data, ObjectInfo, ObjectPage, Part, StoreLimits, Upload

__all__ = ["OPERATIONS", "Call", "Operation", "StoreWrapper"]

T = TypeVar("T")

Operation: TypeAlias = Literal[
    "put",
    "get",
    "head",
    "list_page",
    "delete",
    "create_upload",
    "upload_part",
    "list_parts",
    "complete_upload",
    "abort_upload",
    "list_uploads",
]
"""A request of the protocol, by its method's name."""

OPERATIONS: frozenset[str] = frozenset(get_args(Operation))


@dataclass(frozen=True, slots=True)
class Call:
    """One request on its way to the inner store."""

    operation: Operation
    key: str
    """The object's key; for listings the prefix, for ``delete`` the first key."""
    sent_bytes: int = 0
    """Bytes of data that go with the request."""


class StoreWrapper(ObjectStore):
    """A store that passes every request on to an inner one."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    @property
    def url(self) -> str:
        """The inner store's address."""
        return self.inner.url

    @property
    def limits(self) -> StoreLimits:
        """The inner store's limits."""
        return self.inner.limits

    def _call(self, call: Call, perform: Callable[[], T]) -> T:  # noqa: ARG002 - for those who override it
        return perform()

    def put(self, key: str, data: Data, *, metadata: Mapping[str, str] | None = None, if_absent: bool = False) -> None:
        """Pass ``put`` on."""
        call = Call("put", key, as_view(data).nbytes)
        self._call(call, lambda: self.inner.put(key, data, metadata=metadata, if_absent=if_absent))

    def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        """Pass ``get`` on."""
        return self._call(Call("get", key), lambda: self.inner.get(key, start, end))

    def head(self, key: str) -> ObjectInfo:
        """Pass ``head`` on."""
        return self._call(Call("head", key), lambda: self.inner.head(key))

    def list_page(self, prefix: str = "", start_after: str = "", limit: int = PAGE_SIZE) -> ObjectPage:
        """Pass ``list_page`` on."""
        return self._call(Call("list_page", prefix), lambda: self.inner.list_page(prefix, start_after, limit))

    def delete(self, keys: Iterable[str]) -> None:
        """Pass ``delete`` on."""
        listed = tuple(keys)
        if listed:
            self._call(Call("delete", listed[0]), lambda: self.inner.delete(listed))

    def create_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> Upload:
        """Pass ``create_upload`` on."""
        return self._call(Call("create_upload", key), lambda: self.inner.create_upload(key, metadata=metadata))

    def upload_part(self, upload: Upload, number: int, data: Data) -> Part:
        """Pass ``upload_part`` on."""
        call = Call("upload_part", upload.key, as_view(data).nbytes)
        return self._call(call, lambda: self.inner.upload_part(upload, number, data))

    def list_parts(self, upload: Upload) -> tuple[Part, ...]:
        """Pass ``list_parts`` on."""
        return self._call(Call("list_parts", upload.key), lambda: self.inner.list_parts(upload))

    def complete_upload(self, upload: Upload, parts: Sequence[Part]) -> None:
        """Pass ``complete_upload`` on."""
        self._call(Call("complete_upload", upload.key), lambda: self.inner.complete_upload(upload, parts))

    def abort_upload(self, upload: Upload) -> None:
        """Pass ``abort_upload`` on."""
        self._call(Call("abort_upload", upload.key), lambda: self.inner.abort_upload(upload))

    def list_uploads(self, prefix: str = "") -> tuple[Upload, ...]:
        """Pass ``list_uploads`` on."""
        return self._call(Call("list_uploads", prefix), lambda: self.inner.list_uploads(prefix))
