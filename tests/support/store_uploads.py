"""The part of the contract of object stores that concerns multipart uploads."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest
from crc32c import crc32c

from afterglow.errors import ObjectMissing, PartMismatch, UploadMissing
from afterglow.storage.store import Part, Upload

if TYPE_CHECKING:
    from afterglow.storage.store import ObjectStore

__all__ = ["UploadContract"]

_FIVE_MIB: Final = 5 << 20


class UploadContract:
    """What every object store must do with multipart uploads."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """Return the store under test, empty."""
        raise NotImplementedError("override the fixture `store`")

    @pytest.fixture
    def piece(self, store: ObjectStore) -> bytes:
        """Return bytes that may be any part but the last."""
        return bytes(range(256)) * -(-max(store.limits.min_part_bytes, 1_024) // 256)

    def test_parts_become_the_object_in_the_order_of_their_numbers(self, store: ObjectStore, piece: bytes) -> None:
        """In whatever order they came, gaps allowed, with the metadata of the upload's beginning."""
        upload = store.create_upload("a/b", metadata={"ManagedLedgerName": "X"})
        last = store.upload_part(upload, 7, b"end")
        second = store.upload_part(upload, 4, piece[::-1])
        first = store.upload_part(upload, 2, memoryview(piece))
        store.complete_upload(upload, [first, second, last])
        assert store.get("a/b") == piece + piece[::-1] + b"end"
        assert store.head("a/b").metadata == {"managedledgername": "X"}
        assert store.head("a/b").size_bytes == 2 * len(piece) + 3
        assert not store.list_uploads()

    def test_parts_larger_than_five_mebibytes_are_joined(self, store: ObjectStore) -> None:
        """And a range across their border read."""
        size = _FIVE_MIB + 1
        upload = store.create_upload("a")
        with ThreadPoolExecutor(2) as pool:
            parts = list(pool.map(lambda n: store.upload_part(upload, n, bytes([n]) * size), (1, 2)))
        store.complete_upload(upload, parts)
        assert store.head("a").size_bytes == 2 * size
        assert bytes(store.get("a", size - 2, size + 2)) == b"\1\1\2\2"
        assert bytes(store.get("a", 2 * size - 1)) == b"\2"

    def test_a_part_has_its_size_and_checksum(self, store: ObjectStore) -> None:
        """The checksum is the one of the caller's bytes; a listing may leave it out, but not lie."""
        upload = store.create_upload("a")
        part = store.upload_part(upload, 3, b"some bytes")
        assert (part.number, part.size_bytes, part.crc32c) == (3, 10, crc32c(b"some bytes"))
        (listed,) = store.list_parts(upload)
        assert (listed.number, listed.size_bytes, listed.tag) == (part.number, part.size_bytes, part.tag)
        assert listed.crc32c in {None, part.crc32c}

    def test_a_part_sent_again_replaces_the_first(self, store: ObjectStore) -> None:
        """Same bytes, same tag; other bytes, another."""
        upload = store.create_upload("a")
        first = store.upload_part(upload, 1, b"first")
        assert store.upload_part(upload, 1, b"first").tag == first.tag
        second = store.upload_part(upload, 1, b"second")
        assert second.tag != first.tag
        assert [part.tag for part in store.list_parts(upload)] == [second.tag]
        with pytest.raises(PartMismatch):
            store.complete_upload(upload, [first])
        store.complete_upload(upload, [second])
        assert bytes(store.get("a")) == b"second"

    def test_another_process_goes_on_with_an_upload(self, store: ObjectStore, piece: bytes) -> None:
        """From its two strings alone."""
        upload = store.create_upload("a", metadata={"who": "first"})
        store.upload_part(upload, 1, piece)
        other: ObjectStore = pickle.loads(pickle.dumps(store))
        resumed = Upload(upload.key, upload.upload_id)
        assert resumed in other.list_uploads()
        other.upload_part(resumed, 2, b"end")
        other.complete_upload(resumed, other.list_parts(resumed))
        assert store.get("a") == piece + b"end"
        assert store.head("a").metadata == {"who": "first"}

    def test_an_unfinished_upload_is_no_object(self, store: ObjectStore) -> None:
        """Nobody sees it but those who ask for uploads; an older object stays as it was."""
        store.put("old", b"old")
        for key in ("new", "old"):
            store.upload_part(store.create_upload(key), 1, b"new")
        assert [info.key for info in store.list()] == ["old"]
        assert bytes(store.get("old")) == b"old"
        with pytest.raises(ObjectMissing):
            store.head("new")

    def test_completing_replaces_an_older_object(self, store: ObjectStore) -> None:
        """Bytes and metadata."""
        store.put("a", b"old", metadata={"old": "1"})
        upload = store.create_upload("a", metadata={"new": "1"})
        store.complete_upload(upload, [store.upload_part(upload, 1, b"new")])
        assert (bytes(store.get("a")), store.head("a").metadata) == (b"new", {"new": "1"})

    def test_completing_twice_leaves_the_object(self, store: ObjectStore) -> None:
        """The second time does nothing or says that the upload is gone."""
        upload = store.create_upload("a")
        parts = [store.upload_part(upload, 1, b"data")]
        store.complete_upload(upload, parts)
        try:
            store.complete_upload(upload, parts)
        except UploadMissing as error:
            assert "a" in str(error)  # noqa: PT017 - either outcome is right
        assert bytes(store.get("a")) == b"data"

    def test_an_aborted_upload_cannot_be_completed(self, store: ObjectStore) -> None:
        """Nor can its parts be listed; aborting again is allowed."""
        upload = store.create_upload("a")
        part = store.upload_part(upload, 1, b"data")
        store.abort_upload(upload)
        with pytest.raises(UploadMissing):
            store.complete_upload(upload, [part])
        with pytest.raises(UploadMissing):
            store.list_parts(upload)
        store.abort_upload(upload)
        assert not store.list_uploads()
        assert not list(store.list())

    def test_unfinished_uploads_are_listed_by_prefix_in_key_order(self, store: ObjectStore) -> None:
        """Several of one key too."""
        uploads = [store.create_upload(key) for key in ("b/2", "a", "b/1", "b/1", "c")]
        assert set(store.list_uploads()) == set(uploads)
        assert [upload.key for upload in store.list_uploads("b/")] == ["b/1", "b/1", "b/2"]
        store.abort_upload(uploads[0])
        assert [upload.key for upload in store.list_uploads()] == ["a", "b/1", "b/1", "c"]

    def test_wrong_or_absent_parts_are_refused_and_the_upload_stays(self, store: ObjectStore, piece: bytes) -> None:
        """So that the caller can list what is there and decide."""
        upload = store.create_upload("a")
        first = store.upload_part(upload, 1, piece)
        last = store.upload_part(upload, 2, b"end")
        stranger = replace(last, tag="0" * 32)
        absent = Part(3, 3, last.tag, last.crc32c)
        for parts in ([], [first, stranger], [first, last, absent], [last, first], [first, first]):
            with pytest.raises(PartMismatch):
                store.complete_upload(upload, parts)
        with pytest.raises(ObjectMissing):
            store.head("a")
        store.complete_upload(upload, [first, last])
        assert store.get("a") == piece + b"end"

    def test_part_numbers_outside_the_limits_are_refused(self, store: ObjectStore) -> None:
        """Before anything is sent."""
        upload = store.create_upload("a")
        for number in (-1, 0, store.limits.max_parts + 1):
            with pytest.raises(PartMismatch):
                store.upload_part(upload, number, b"")
        store.upload_part(upload, store.limits.max_parts, b"data")
        assert [part.number for part in store.list_parts(upload)] == [store.limits.max_parts]

    def test_an_upload_that_is_gone_takes_no_part(self, store: ObjectStore) -> None:
        """A zombie must learn of it before it has sent everything."""
        upload = store.create_upload("a")
        store.abort_upload(upload)
        for gone in (upload, Upload("a", "0" * 32)):
            with pytest.raises(UploadMissing):
                store.upload_part(gone, 1, b"data")

    def test_an_upload_that_never_was_is_missing(self, store: ObjectStore) -> None:
        """And aborting it touches no other."""
        upload = store.create_upload("a")
        part = store.upload_part(upload, 1, b"data")
        unknown = Upload("a", "0" * 32)
        with pytest.raises(UploadMissing):
            store.list_parts(unknown)
        with pytest.raises(UploadMissing):
            store.complete_upload(unknown, [part])
        store.abort_upload(unknown)
        assert list(store.list_uploads()) == [upload]
