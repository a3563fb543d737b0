"""The simulated tier: objects in memory, and listings that may lag behind them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from afterglow.storage.memory import MemoryStore
from afterglow.storage.store import PAGE_SIZE, ObjectInfo, ObjectPage, Upload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tests.support.clock import ManualClock

    from afterglow.storage.store import Part


class SimTier(MemoryStore):
    """A store of one world's own whose name, which stands in messages, is that of any other's.

    Args:
        url: Its address.
        clock: Dates objects and uploads, and measures the lag.
        new_id: Names uploads.
        lag_s: Draws by how much a listing lags behind.
        most_lag_s: The most that it gives.
    """

    def __init__(
        self, url: str, clock: ManualClock, *, new_id: Callable[[], str], lag_s: Callable[[], float], most_lag_s: float
    ) -> None:
        super().__init__(now_ms=clock.now_ms, new_id=new_id)
        self._url = url
        self._clock = clock
        self._lag_s = lag_s
        self._most_lag_s = most_lag_s
        self._changes: deque[tuple[float, str, ObjectInfo | Upload | None]] = deque()
        """What listings may not show yet: when, a key or the id of an upload, and what was there before."""

    @property
    def url(self) -> str:
        """Its address."""
        return self._url

    def has(self, key: str) -> bool:
        """Whether an object is there, whatever listings show."""
        return key in self._bucket.objects

    def uploads(self) -> list[Upload]:
        """The unfinished uploads, whatever listings show."""
        return [pending.upload for pending in self._bucket.uploads.values()]

    # --- changes ------------------------------------------------------------------------------------------------------

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects."""
        listed = tuple(keys)
        for key in listed:
            self._note_object(key)
        super().delete(listed)

    def create_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> Upload:
        """Begin a multipart upload."""
        upload = super().create_upload(key, metadata=metadata)
        self._note(upload.upload_id, None)
        return upload

    def complete_upload(self, upload: Upload, parts: Sequence[Part]) -> None:
        """Join the parts into the object."""
        before = self._bucket.uploads.get(upload.upload_id)
        super().complete_upload(upload, parts)
        self._note(upload.upload_id, None if before is None else before.upload)

    def abort_upload(self, upload: Upload) -> None:
        """Discard an upload."""
        before = self._bucket.uploads.get(upload.upload_id)
        super().abort_upload(upload)
        self._note(upload.upload_id, None if before is None else before.upload)

    def _store_locked(self, key: str, data: bytes, metadata: dict[str, str]) -> None:
        self._note_object(key)
        super()._store_locked(key, data, metadata)

    def _note_object(self, key: str) -> None:
        held = self._bucket.objects.get(key)
        self._note(key, None if held is None else held[0])

    def _note(self, what: str, before: ObjectInfo | Upload | None) -> None:
        now_s = self._clock.monotonic()
        while self._changes and self._changes[0][0] < now_s - self._most_lag_s:
            self._changes.popleft()
        if self._most_lag_s:
            self._changes.append((now_s, what, before))

    # --- listings -----------------------------------------------------------------------------------------------------

    def list_page(self, prefix: str = "", start_after: str = "", limit: int = PAGE_SIZE) -> ObjectPage:
        """List objects in key order, as they were some time ago."""
        shown = {key: held[0] for key, held in self._bucket.objects.items() if key.startswith(prefix)}
        for what, before in self._since():
            if isinstance(before, ObjectInfo):
                shown[what] = before
            elif before is None:
                shown.pop(what, None)
        found = sorted(key for key in shown if key.startswith(prefix) and key > start_after)
        return ObjectPage(tuple(shown[key] for key in found[:limit]), complete=len(found) <= limit)

    def list_uploads(self, prefix: str = "") -> tuple[Upload, ...]:
        """Tell the unfinished uploads, as they were some time ago."""
        shown = {upload.upload_id: upload for upload in self.uploads()}
        for what, before in self._since():
            if isinstance(before, Upload):
                shown[what] = before
            elif before is None:
                shown.pop(what, None)
        found = (upload for upload in shown.values() if upload.key.startswith(prefix))
        return tuple(sorted(found, key=lambda upload: (upload.key, upload.upload_id)))

    def _since(self) -> list[tuple[str, ObjectInfo | Upload | None]]:
        """What a listing does not show yet, the newest change first."""
        if not self._changes:
            return []
        since_s = self._clock.monotonic() - self._lag_s()
        return [(what, before) for when_s, what, before in reversed(self._changes) if when_s > since_s]
