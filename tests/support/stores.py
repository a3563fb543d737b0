"""The contract of object stores as a test class: subclass it, say how to open your store, and run pytest.

    class TestMyStore(ObjectStoreContract):
        @pytest.fixture
        def store(self, tmp_path):
            return MyStore(tmp_path)

The store must be empty at the start of every test. What it demands is written in :mod:`afterglow.storage.store`.
"""

from __future__ import annotations

import array
import contextlib
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.store_uploads import UploadContract

from afterglow.errors import InvalidName, ObjectExists, ObjectMissing, RangeInvalid, StoreThrottled

if TYPE_CHECKING:
    from afterglow.storage.store import ObjectStore

__all__ = ["ObjectStoreContract"]

_BODY: Final = bytes(range(256)) * 4
_SIZE: Final = len(_BODY)

_ODD_KEYS: Final = (
    "a b",
    "a+b",
    "a%20b",
    "a&b=c",
    "a#b?c",
    "a'b(c)[d]{e}",
    "a:b,c;d@e!f$g~h*i",
    "ü/é/日本語/🌟",
    "e\u0301/\u00e9",
    "tenant/ns/persistent/topic-partition-0/08ee2793-ledger-5-index",
)
_BAD_KEYS: Final = (
    "",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    "a\x00b",
    "a\nb",
    "a\ud800",
    "a" * 1_025,
)


class ObjectStoreContract(UploadContract):
    """What every object store must do."""

    # --- reading ----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("start", "end"),
        [(0, None), (0, _SIZE), (0, 10), (3, 7), (5, None), (_SIZE - 1, None), (_SIZE - 1, _SIZE)],
    )
    def test_a_range_is_half_open(self, store: ObjectStore, start: int, end: int | None) -> None:
        """Every kind of range gives exactly its bytes."""
        store.put("a", _BODY)
        assert store.get("a", start, end) == _BODY[start:end]

    @pytest.mark.parametrize(("start", "end"), [(0, 0), (7, 7), (_SIZE, None), (_SIZE, _SIZE)])
    def test_an_empty_range_within_the_object_is_empty(self, store: ObjectStore, start: int, end: int | None) -> None:
        """HTTP cannot ask for nothing; a store can."""
        store.put("a", _BODY)
        assert store.get("a", start, end).nbytes == 0

    @pytest.mark.parametrize(
        ("start", "end"),
        [
            *[(-1, 2), (-3, None), (5, 3), (0, _SIZE + 1), (_SIZE - 1, _SIZE + 1), (_SIZE + 1, None)],
            *[(_SIZE, _SIZE + 1), (2**33, 2**33 + 1), (2**33, 2**33)],
        ],
    )
    def test_a_range_outside_the_object_is_refused(self, store: ObjectStore, start: int, end: int | None) -> None:
        """A reader never gets fewer bytes than it asked for."""
        store.put("a", _BODY)
        with pytest.raises(RangeInvalid):
            store.get("a", start, end)

    def test_what_is_read_is_one_plain_read_only_buffer(self, store: ObjectStore) -> None:
        """Decoders work on it in place."""
        store.put("a", _BODY)
        data = store.get("a", 1, 100)
        assert (data.readonly, data.contiguous, data.format, data.ndim) == (True, True, "B", 1)

    @pytest.mark.parametrize(("start", "end"), [(0, None), (0, 1), (5, 5), (3, None)])
    def test_a_missing_object_cannot_be_read(self, store: ObjectStore, start: int, end: int | None) -> None:
        """Whatever range is asked, the object's absence is the answer."""
        with pytest.raises(ObjectMissing):
            store.get("a", start, end)

    def test_a_missing_object_has_no_head(self, store: ObjectStore) -> None:
        """Also where a longer key exists."""
        store.put("a/b", _BODY)
        for key in ("a", "b", "a/b/c"):
            with pytest.raises(ObjectMissing):
                store.head(key)

    def test_an_empty_object_is_an_object(self, store: ObjectStore) -> None:
        """It has a head, no bytes, and stands in listings."""
        store.put("a", b"")
        assert store.head("a").size_bytes == 0
        assert store.get("a").nbytes == 0
        assert [info.size_bytes for info in store.list()] == [0]
        with pytest.raises(RangeInvalid):
            store.get("a", 0, 1)

    # --- writing ----------------------------------------------------------------------------------------------------

    def test_a_put_replaces_bytes_and_metadata_together(self, store: ObjectStore) -> None:
        """Nothing of the older object stays; its etag neither."""
        store.put("a", b"first", metadata={"one": "1"})
        before = store.head("a")
        store.put("a", b"second", metadata={"two": "2"})
        after = store.head("a")
        assert (bytes(store.get("a")), after.metadata, after.size_bytes) == (b"second", {"two": "2"}, 6)
        assert after.etag != before.etag
        store.put("a", b"third")
        assert store.head("a").metadata == {}

    def test_any_contiguous_buffer_can_be_put(self, store: ObjectStore) -> None:
        """Slices of larger buffers and items wider than a byte included."""
        words = array.array("I", [1, 2, 3])
        whole = bytearray(_BODY)
        for data in (_BODY, whole, memoryview(whole), memoryview(whole)[5:50], memoryview(words), memoryview(b"")):
            store.put("a", data)
            assert bytes(store.get("a")) == data.tobytes() if isinstance(data, memoryview) else bytes(data)

    def test_a_buffer_may_be_reused_after_a_put(self, store: ObjectStore) -> None:
        """The store keeps no view of the caller's memory."""
        buffer = bytearray(b"before")
        store.put("a", buffer)
        buffer[:] = b"after!"
        assert bytes(store.get("a")) == b"before"

    def test_put_if_absent_writes_only_where_nothing_is(self, store: ObjectStore) -> None:
        """The first writer stays, with its metadata."""
        store.put("a", b"first", metadata={"writer": "1"}, if_absent=True)
        with pytest.raises(ObjectExists):
            store.put("a", b"second", metadata={"writer": "2"}, if_absent=True)
        assert bytes(store.get("a")) == b"first"
        assert store.head("a").metadata == {"writer": "1"}

    def test_of_racing_put_if_absent_exactly_one_wins(self, store: ObjectStore) -> None:
        """Bytes and metadata are the winner's."""
        racers = 8
        start = Barrier(racers)

        def race(racer: int) -> int | None:
            start.wait()
            try:
                store.put("a", f"racer {racer}".encode(), metadata={"racer": str(racer)}, if_absent=True)
            except (ObjectExists, StoreThrottled):  # S3 may ask one of two at once to try again
                return None
            return racer

        with ThreadPoolExecutor(racers) as pool:
            winners = [racer for racer in pool.map(race, range(racers)) if racer is not None]
        assert len(winners) == 1
        assert bytes(store.get("a")) == f"racer {winners[0]}".encode()
        assert store.head("a").metadata == {"racer": str(winners[0])}

    def test_racing_puts_leave_one_whole_object(self, store: ObjectStore) -> None:
        """Bytes and metadata are of the same writer."""
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda n: store.put("a", bytes([n]) * 1_000, metadata={"writer": str(n)}), range(16)))
        writer = int(store.head("a").metadata["writer"])
        assert bytes(store.get("a")) == bytes([writer]) * 1_000

    # --- metadata ---------------------------------------------------------------------------------------------------

    def test_metadata_keys_come_back_in_lower_case(self, store: ObjectStore) -> None:
        """As S3 hands them back; values keep their case."""
        given = {
            "ManagedLedgerName": "public/default/persistent/My-Topic",
            "s3managedledgeroffloaderformatversion": "1",
        }
        store.put("a", _BODY, metadata=given)
        assert store.head("a").metadata == {key.lower(): value for key, value in given.items()}

    def test_an_object_without_metadata_has_none(self, store: ObjectStore) -> None:
        """An empty mapping, not an error."""
        store.put("a", _BODY)
        assert store.head("a").metadata == {}

    def test_a_large_metadata_value_survives(self, store: ObjectStore) -> None:
        """Two thousand bytes, with every printable character."""
        value = "".join(map(chr, range(33, 127))) * 21
        store.put("a", _BODY, metadata={"key": value})
        assert store.head("a").metadata == {"key": value}

    @pytest.mark.parametrize(
        "metadata",
        [
            *[{"a": "1", "A": "2"}, {"": "1"}, {"a b": "1"}, {"ü": "1"}],
            *[{"a": "ü"}, {"a": "x\ny"}, {"a": " x"}, {"a": "x" * 2_048}],
        ],
    )
    def test_metadata_that_no_header_can_carry_is_refused(self, store: ObjectStore, metadata: dict[str, str]) -> None:
        """Before anything is written."""
        with pytest.raises(InvalidName):
            store.put("a", _BODY, metadata=metadata)
        with pytest.raises(InvalidName):
            store.create_upload("a", metadata=metadata)
        assert not list(store.list())
        assert not store.list_uploads()

    def test_head_returns_size_and_time(self, store: ObjectStore) -> None:
        """Within the store's clock, give or take a minute."""
        store.put("a", _BODY)
        info = store.head("a")
        assert (info.key, info.size_bytes) == ("a", _SIZE)
        assert abs(info.modified_ms - time.time() * 1_000) < 60_000
        listed = next(store.list())
        assert (listed.key, listed.size_bytes, listed.etag) == (info.key, info.size_bytes, info.etag)
        assert abs(listed.modified_ms - info.modified_ms) < 2_000

    # --- keys -------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("key", _ODD_KEYS)
    def test_odd_keys_are_kept_as_they_are(self, store: ObjectStore, key: str) -> None:
        """No store may decode, encode or normalise them."""
        store.put(key, key.encode(), metadata={"a": "1"})
        assert bytes(store.get(key, 0, 1)) == key.encode()[:1]
        assert store.head(key).metadata == {"a": "1"}
        assert [info.key for info in store.list()] == [key]
        assert [info.key for info in store.list(key)] == [key]
        store.delete([key])
        assert not list(store.list())

    @pytest.mark.parametrize("key", _BAD_KEYS)
    def test_keys_that_not_every_store_can_keep_are_refused(self, store: ObjectStore, key: str) -> None:
        """By every operation, so that no key can leave a directory."""
        for refused in (
            lambda: store.put(key, b""),
            lambda: store.get(key),
            lambda: store.head(key),
            lambda: store.delete([key]),
            lambda: store.create_upload(key),
        ):
            with pytest.raises(InvalidName):
                refused()
        assert not list(store.list())

    # --- listing ----------------------------------------------------------------------------------------------------

    def test_listing_is_in_the_order_of_the_keys_bytes(self, store: ObjectStore) -> None:
        """A slash is a byte like any other."""
        keys = ["a-b", "a.b", "a/b", "a/b-c", "a/b.d/e", "a0", "B", "b", "é", "z", "😀", "\uff5e"]
        for key in keys:
            store.put(key, b"")
        assert [info.key for info in store.list()] == sorted(keys, key=str.encode)

    def test_a_prefix_is_any_string_and_start_after_need_not_exist(self, store: ObjectStore) -> None:
        """Compared with the plain definition."""
        keys = ["a-b", "a/b/c", "a/b/d", "a/bc", "ab", "b/a"]
        for key in keys:
            store.put(key, b"")
        for prefix in ("", "a", "a/", "a/b", "a/b/", "a/b/c", "ab", "b", "c", "a//", "a/b/c/d"):
            for start_after in ("", "a", "a/", "a/b", "a/b/c", "a/bc", "a/~", "zz"):
                expected = sorted(key for key in keys if key.startswith(prefix) and key > start_after)
                assert [info.key for info in store.list(prefix, start_after)] == expected, (prefix, start_after)

    def test_pages_chain_without_gap_or_repetition(self, store: ObjectStore) -> None:
        """By the last key of the page before."""
        keys = [f"k/{number:02}" for number in range(7)]
        for key in keys:
            store.put(key, b"")
        seen: list[str] = []
        complete = False
        while not complete:
            page = store.list_page("k/", seen[-1] if seen else "", limit=3)
            assert len(page.objects) <= 3
            seen += [info.key for info in page.objects]
            complete = page.complete
        assert seen == keys

    def test_an_empty_store_lists_nothing(self, store: ObjectStore) -> None:
        """And says that this is all."""
        assert not list(store.list())
        assert store.list_page().complete
        assert not store.list_uploads()

    # --- deleting ---------------------------------------------------------------------------------------------------

    def test_more_than_a_thousand_keys_are_deleted_at_once_missing_ones_included(self, store: ObjectStore) -> None:
        """A missing key is allowed; other keys stay."""
        keys = [f"k/{number:04}" for number in range(1_100)]
        present = [keys[0], keys[999], keys[1_000], keys[-1]]
        for key in [*present, "kept"]:
            store.put(key, b"x", metadata={"a": "1"})
        store.delete(iter(keys))
        assert [info.key for info in store.list()] == ["kept"]
        store.delete(keys)
        store.delete([])

    def test_a_deleted_key_can_be_taken_again(self, store: ObjectStore) -> None:
        """With nothing left of the old object's metadata."""
        store.put("a", b"old", metadata={"old": "1"})
        store.delete(["a"])
        with pytest.raises(ObjectMissing):
            store.head("a")
        store.put("a", b"new", if_absent=True)
        assert (bytes(store.get("a")), store.head("a").metadata) == (b"new", {})

    # --- the store itself -------------------------------------------------------------------------------------------

    def test_a_pickled_store_sees_the_same_objects(self, store: ObjectStore) -> None:
        """As Spark sends it to its workers."""
        with contextlib.suppress(ObjectMissing):
            store.head("opens the connections")
        store.put("a", _BODY, metadata={"a": "1"})
        copy = pickle.loads(pickle.dumps(store))
        assert copy.get("a") == _BODY
        assert copy.url == store.url
        assert copy.limits == store.limits
        copy.put("b", b"other")
        assert bytes(store.get("b")) == b"other"

    def test_threads_share_a_store(self, store: ObjectStore) -> None:
        """Each finds what it wrote."""

        def work(number: int) -> bool:
            key = f"k{number}"
            store.put(key, key.encode())
            return bytes(store.get(key)) == key.encode() and store.head(key).size_bytes == len(key)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(32)))
        assert len(list(store.list())) == 32
