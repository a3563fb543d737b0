"""Wrappers around object stores: the base class, a counter of requests, and a key prefix.

Every request passes through :meth:`StoreWrapper._call`, including each page of a listing, so a wrapper that counts,
delays or fails requests overrides that method only.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from afterglow.storage.store import PAGE_SIZE, ObjectPage, ObjectStore, as_view, check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from afterglow.storage.store import Data, ObjectInfo, Part, StoreLimits, Upload

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
"""A request of the protocol, by the name of its method."""


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """One request to the inner store."""

    operation: Operation
    key: str
    """The object's key; for listings the prefix, for ``delete`` the first key."""
    sent_bytes: int = 0
    """Bytes of data in the request."""


class StoreWrapper(ObjectStore):
    """A store that forwards every request to an inner store."""

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

    def _call(self, request: StoreRequest, perform: Callable[[], T]) -> T:  # noqa: ARG002 - for subclasses
        return perform()

    def put(self, key: str, data: Data, *, metadata: Mapping[str, str] | None = None, if_absent: bool = False) -> None:
        """Pass ``put`` on."""
        request = StoreRequest("put", key, as_view(data).nbytes)
        self._call(request, lambda: self.inner.put(key, data, metadata=metadata, if_absent=if_absent))

    def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        """Pass ``get`` on."""
        return self._call(StoreRequest("get", key), lambda: self.inner.get(key, start, end))

    def head(self, key: str) -> ObjectInfo:
        """Pass ``head`` on."""
        return self._call(StoreRequest("head", key), lambda: self.inner.head(key))

    def list_page(self, prefix: str = "", start_after: str = "", limit: int = PAGE_SIZE) -> ObjectPage:
        """Pass ``list_page`` on."""
        return self._call(StoreRequest("list_page", prefix), lambda: self.inner.list_page(prefix, start_after, limit))

    def delete(self, keys: Iterable[str]) -> None:
        """Pass ``delete`` on."""
        listed = tuple(keys)
        if listed:
            self._call(StoreRequest("delete", listed[0]), lambda: self.inner.delete(listed))

    def create_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> Upload:
        """Pass ``create_upload`` on."""
        return self._call(StoreRequest("create_upload", key), lambda: self.inner.create_upload(key, metadata=metadata))

    def upload_part(self, upload: Upload, number: int, data: Data) -> Part:
        """Pass ``upload_part`` on."""
        request = StoreRequest("upload_part", upload.key, as_view(data).nbytes)
        return self._call(request, lambda: self.inner.upload_part(upload, number, data))

    def list_parts(self, upload: Upload) -> tuple[Part, ...]:
        """Pass ``list_parts`` on."""
        return self._call(StoreRequest("list_parts", upload.key), lambda: self.inner.list_parts(upload))

    def complete_upload(self, upload: Upload, parts: Sequence[Part]) -> None:
        """Pass ``complete_upload`` on."""
        self._call(StoreRequest("complete_upload", upload.key), lambda: self.inner.complete_upload(upload, parts))

    def abort_upload(self, upload: Upload) -> None:
        """Pass ``abort_upload`` on."""
        self._call(StoreRequest("abort_upload", upload.key), lambda: self.inner.abort_upload(upload))

    def list_uploads(self, prefix: str = "") -> tuple[Upload, ...]:
        """Pass ``list_uploads`` on."""
        return self._call(StoreRequest("list_uploads", prefix), lambda: self.inner.list_uploads(prefix))


@dataclass(frozen=True, slots=True)
class OperationCount:
    """Counts of one operation since the store was wrapped. Each page of a listing is one request."""

    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    """Bytes that ``get`` returned."""
    seconds: float = 0.0
    """Time spent waiting for the store, over all threads."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Requests that raised, by the name of the error's class."""


class RequestCounters:
    """Request counts of one or several stores. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sums: Counter[tuple[str, str]] = Counter()
        self._seconds: dict[str, float] = {}
        self._errors: Counter[tuple[str, str]] = Counter()

    def add(self, request: StoreRequest, *, received_bytes: int, seconds: float, error: str) -> None:
        """Count a finished request; ``error`` is empty if it succeeded."""
        with self._lock:
            self._sums[request.operation, "requests"] += 1
            self._sums[request.operation, "sent"] += request.sent_bytes
            self._sums[request.operation, "received"] += received_bytes
            self._seconds[request.operation] = self._seconds.get(request.operation, 0.0) + seconds
            if error:
                self._errors[request.operation, error] += 1

    def counts(self) -> dict[str, OperationCount]:
        """Return the counts of every operation requested so far."""
        with self._lock:
            return {
                operation: OperationCount(
                    requests=self._sums[operation, "requests"],
                    sent_bytes=self._sums[operation, "sent"],
                    received_bytes=self._sums[operation, "received"],
                    seconds=seconds,
                    errors={kind: count for (name, kind), count in self._errors.items() if name == operation},
                )
                for operation, seconds in self._seconds.items()
            }


class CountingStore(StoreWrapper):
    """A store that counts its requests. A pickled copy counts from zero.

    Args:
        inner: The store.
        clock: Monotonic clock, in seconds.
        counters: Counters to add to; by default new ones.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        clock: Callable[[], float] = time.perf_counter,
        counters: RequestCounters | None = None,
    ) -> None:
        super().__init__(inner)
        self._clock = clock
        self._counters = RequestCounters() if counters is None else counters

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.inner,)

    def counts(self) -> dict[str, OperationCount]:
        """Return the counts of every operation requested so far."""
        return self._counters.counts()

    def _call(self, request: StoreRequest, perform: Callable[[], T]) -> T:
        began = self._clock()
        received_bytes = 0
        error = ""
        try:
            result = perform()
            if isinstance(result, memoryview):
                received_bytes = result.nbytes
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            self._counters.add(request, received_bytes=received_bytes, seconds=self._clock() - began, error=error)
        return result


class PrefixedStore(ObjectStore):
    """The objects of a store below the key prefix ``prefix/``.

    Args:
        inner: The store.
        prefix: Components joined by slashes; leading and trailing slashes are ignored.
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
        """Return size, etag, modification time and user metadata of an object below the prefix."""
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
        """List the stored parts."""
        return self.inner.list_parts(self._inner_upload(upload))

    def complete_upload(self, upload: Upload, parts: Sequence[Part]) -> None:
        """Join the parts into the object."""
        self.inner.complete_upload(self._inner_upload(upload), parts)

    def abort_upload(self, upload: Upload) -> None:
        """Discard an upload."""
        self.inner.abort_upload(self._inner_upload(upload))

    def list_uploads(self, prefix: str = "") -> tuple[Upload, ...]:
        """List the unfinished uploads below the prefix."""
        uploads = self.inner.list_uploads(self._prefix + prefix)
        return tuple(replace(upload, key=self._outside(upload.key)) for upload in uploads)

    def _inside(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _outside(self, key: str) -> str:
        return key.removeprefix(self._prefix)

    def _inner_upload(self, upload: Upload) -> Upload:
        return replace(upload, key=self._inside(upload.key))
