"""Any store, driven at random, does what a dictionary does."""

from __future__ import annotations

import tempfile
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from tests.support.faults import STORE_OPERATIONS, Fault, FaultRule, FaultyStore

from afterglow.errors import ObjectExists, ObjectMissing, PartMismatch, RangeInvalid, UploadMissing
from afterglow.storage import LocalStore, MemoryStore, PrefixedStore, RetryingStore, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.storage import (
        ObjectStore,
        Upload,
    )
    from afterglow.storage.s3 import S3Store

# No key is a directory of another, since a directory store cannot hold both.
_KEYS = st.sampled_from(["a", "a-b", "b/c", "b/d", "b/é", "b-", "c/d/e", "c/d-e"])
_PREFIXES = st.sampled_from(["", "a", "b", "b/", "c/d", "c/d/", "z"])
_DATA = st.binary(max_size=40)
_METADATA = st.dictionaries(st.sampled_from(["one", "two"]), st.text("xyz", max_size=3), max_size=2)


class _Machine(RuleBasedStateMachine):
    """A store beside its model: a dictionary of objects, and one of uploads with their parts."""

    store: ObjectStore
    uploads = Bundle("uploads")

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.pending: dict[Upload, tuple[dict[str, str], dict[int, tuple[Any, bytes]]]] = {}

    @initialize(open_store=st.runner().map(lambda machine: machine.open_store))
    def open(self, open_store: Callable[[], ObjectStore]) -> None:
        self.store = open_store()

    @rule(key=_KEYS, data=_DATA, metadata=_METADATA)
    def put(self, key: str, data: bytes, metadata: dict[str, str]) -> None:
        self.store.put(key, data, metadata=metadata)
        self.objects[key] = (data, metadata)

    @rule(key=_KEYS, data=_DATA, metadata=_METADATA)
    def put_if_absent(self, key: str, data: bytes, metadata: dict[str, str]) -> None:
        if key in self.objects and self.objects[key] != (data, metadata):
            with pytest.raises(ObjectExists):
                self.store.put(key, data, metadata=metadata, if_absent=True)
        elif key not in self.objects:
            self.store.put(key, data, metadata=metadata, if_absent=True)
            self.objects[key] = (data, metadata)

    @rule(key=_KEYS, start=st.integers(0, 45), end=st.none() | st.integers(0, 45))
    def get(self, key: str, start: int, end: int | None) -> None:
        if key not in self.objects:
            with pytest.raises(ObjectMissing):
                self.store.get(key, start, end)
            return
        data, metadata = self.objects[key]
        stop = len(data) if end is None else end
        if start <= stop <= len(data):
            assert bytes(self.store.get(key, start, end)) == data[start:stop]
        else:
            with pytest.raises(RangeInvalid):
                self.store.get(key, start, end)
        info = self.store.head(key)
        assert (info.size_bytes, info.metadata) == (len(data), metadata)

    @rule(keys=st.lists(_KEYS, max_size=3))
    def delete(self, keys: list[str]) -> None:
        self.store.delete(keys)
        for key in keys:
            self.objects.pop(key, None)

    @rule(prefix=_PREFIXES, start_after=st.just("") | _KEYS)
    def list_some(self, prefix: str, start_after: str) -> None:
        expected = sorted(key for key in self.objects if key.startswith(prefix) and key > start_after)
        assert [info.key for info in self.store.list(prefix, start_after)] == expected

    @rule(target=uploads, key=_KEYS, metadata=_METADATA)
    def create_upload(self, key: str, metadata: dict[str, str]) -> Upload:
        upload = self.store.create_upload(key, metadata=metadata)
        self.pending[upload] = (metadata, {})
        return upload

    @rule(upload=uploads, number=st.integers(1, 4), data=_DATA)
    def upload_part(self, upload: Upload, number: int, data: bytes) -> None:
        self.pending[upload][1][number] = (self.store.upload_part(upload, number, data), data)

    @rule(upload=uploads)
    def list_parts(self, upload: Upload) -> None:
        expected = [(number, part.tag) for number, (part, _) in sorted(self.pending[upload][1].items())]
        assert [(part.number, part.tag) for part in self.store.list_parts(upload)] == expected

    @rule(target=uploads, upload=consumes(uploads))
    def complete(self, upload: Upload) -> Any:
        metadata, held = self.pending[upload]
        numbers = sorted(held)
        parts = [held[number][0] for number in numbers]
        minimum = self.store.limits.min_part_bytes
        if not parts or any(part.size_bytes < minimum for part in parts[:-1]):
            with pytest.raises(PartMismatch):
                self.store.complete_upload(upload, parts)
            return upload
        self.store.complete_upload(upload, parts)
        self.objects[upload.key] = (b"".join(held[number][1] for number in numbers), metadata)
        del self.pending[upload]
        return multiple()

    @rule(upload=consumes(uploads))
    def abort(self, upload: Upload) -> None:
        self.store.abort_upload(upload)
        del self.pending[upload]
        with pytest.raises(UploadMissing):
            self.store.list_parts(upload)

    @invariant()
    def shows_what_the_model_has(self) -> None:
        if hasattr(self, "store"):
            assert {info.key: info.size_bytes for info in self.store.list()} == {
                key: len(data) for key, (data, _) in self.objects.items()
            }
            assert set(self.store.list_uploads()) == set(self.pending)


def _run(open_store: Callable[[], ObjectStore], *, examples: int) -> None:
    class Machine(_Machine):
        def open_store(self) -> ObjectStore:
            return open_store()

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_memory_is_a_dictionary() -> None:
    _run(MemoryStore, examples=60)


def test_a_prefix_of_memory_is_a_dictionary() -> None:
    _run(lambda: PrefixedStore(MemoryStore(), "some/prefix"), examples=20)


def test_a_directory_is_a_dictionary() -> None:
    with tempfile.TemporaryDirectory() as root:
        _run(lambda: LocalStore(f"{root}/{uuid.uuid4()}", create=True), examples=10)


def test_a_bucket_is_a_dictionary(moto_bucket: S3Store) -> None:
    _run(lambda: PrefixedStore(moto_bucket, str(uuid.uuid4())), examples=4)


@pytest.mark.pulsar
def test_a_bucket_of_a_real_server_is_a_dictionary(versitygw_bucket: S3Store) -> None:
    _run(lambda: PrefixedStore(versitygw_bucket, str(uuid.uuid4())), examples=15)


def test_retries_over_faults_are_a_dictionary() -> None:
    known = STORE_OPERATIONS - {"create_upload"}
    rules = [FaultRule(fault, known, probability=0.15, times=None) for fault in (Fault.ERROR_BEFORE, Fault.ERROR_AFTER)]
    policy = RetryPolicy(600.0, 1e-6, 1e-6)
    _run(lambda: RetryingStore(FaultyStore(MemoryStore(), rules), policy), examples=40)
