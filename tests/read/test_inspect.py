"""Every object that Pulsar itself wrote, seen through ``afterglow inspect`` on a directory that holds only objects."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import golden
from tests.support.sample import sample_objects

from afterglow.cli import main
from afterglow.format.objects import parse_key
from afterglow.read.inspect import inspect_object
from afterglow.storage import open_store

if TYPE_CHECKING:
    from pathlib import Path

DAMAGED = {"oversize": "54:3", "streaming_v2_manyblocks": "100:88"}
CASES = {name: case for name, case in golden.cases().items() if name != "fs_mapfile"}  # another format
WITH_MESSAGES = [name for name in CASES if not name.startswith("streaming") and name not in DAMAGED]


def data_keys(case: golden.GoldenCase) -> list[str]:
    keys = [key for key in map(parse_key, case.objects) if not key.index]
    return [str(key) for key in sorted(keys, key=lambda key: key.ledger_id or 0)]


def inspect(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, directory: Path, key: str, view: str
) -> tuple[list[dict[str, Any]], str, int]:
    """Rows, complaints and exit code of the command, run in this process."""
    monkeypatch.setattr(sys, "argv", ["afterglow", "inspect", directory.as_uri(), key, view, "--format", "jsonl"])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return [json.loads(line) for line in captured.out.splitlines()], captured.err, ended.value.code


def as_manifest(row: dict[str, Any]) -> dict[str, Any]:
    """A row in the manifest's words."""
    value = base64.b64decode(row["value_base64"] or "")
    found = {
        "ledgerId": row["ledger_id"],
        "entryId": row["entry_id"],
        "batchIndex": row["batch_index"],
        "producerName": row["producer"],
        "sequenceId": row["sequence_id"],
        "publishTime": row["publish_time"],
        "eventTime": row["event_time"] or 0,
        "hasKey": row["key_base64"] is not None,
        "orderingKeyB64": row["ordering_key_base64"],
        "properties": row["properties"],
        "schemaVersionB64": row["schema_version_base64"],
        "brokerPublishTime": row["broker_time"],
        "index": row["index"],
        "encrypted": row["encrypted"],
        "nullValue": row["null_value"],
        "size": len(value),
        "sha256": hashlib.sha256(value).hexdigest(),
    }
    if row["key_base64"] is not None:
        found |= {"key": row["key"], "keyBytesB64": row["key_base64"]}
    if len(value) <= golden.INLINE_BYTES:
        found["payloadB64"] = row["value_base64"]
    return found


@pytest.mark.parametrize("name", WITH_MESSAGES)
def test_messages_are_those_that_javas_reader_saw(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    case.unpack(tmp_path)
    seen: list[dict[str, Any]] = []
    for key in data_keys(case):
        rows, complaints, code = inspect(capsys, monkeypatch, tmp_path, key, "--messages")
        assert (complaints, code) == ("", 0)
        seen.extend(as_manifest(row) for row in rows)
    expected = case.messages()
    assert expected is not None
    if name == "txn":
        # A single object does not show which transactions were aborted: their messages appear, markers do not.
        positions = {(row["ledgerId"], row["entryId"], row["batchIndex"]) for row in expected}
        seen = [row for row in seen if (row["ledgerId"], row["entryId"], row["batchIndex"]) in positions]
    assert len(seen) == len(expected)
    for found, manifest in zip(seen, expected, strict=True):
        shared = found.keys() & manifest.keys()
        assert len(shared) >= 17
        assert {field: found[field] for field in shared} == {field: manifest[field] for field in shared}


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].entries() is not None and name not in DAMAGED])
def test_entries_of_streaming_objects_are_byte_equal(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    case.unpack(tmp_path)
    (key,) = data_keys(case)
    rows, complaints, code = inspect(capsys, monkeypatch, tmp_path, key, "--entries")
    assert (complaints, code) == ("", 0)
    digests = [
        {
            "ledgerId": row["ledger_id"],
            "entryId": row["entry_id"],
            "size": len(base64.b64decode(row["data_base64"])),
            "sha256": hashlib.sha256(base64.b64decode(row["data_base64"])).hexdigest(),
        }
        for row in rows
    ]
    assert digests == case.entries()


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_objects_are_recognised_with_the_position(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name not in CASES:
        pytest.skip(f"{name} is not among the small cases; {golden.ENVIRONMENT} names the directory of the full set")
    case = CASES[name]
    case.unpack(tmp_path)
    (key,) = data_keys(case)
    _, complaints, code = inspect(capsys, monkeypatch, tmp_path, key, "--blocks")
    assert code == 1
    assert f"entry {DAMAGED[name]}:" in complaints


@pytest.fixture
def sample(tmp_path: Path) -> tuple[Path, str, str]:
    """A directory with a V1 and a V2 object of the same entries."""
    return tmp_path, *sample_objects(open_store(tmp_path.as_uri()), 60, 2)


def test_without_its_index_an_object_is_read_by_its_headers(sample: tuple[Path, str, str]) -> None:
    directory, v1, v2 = sample
    store = open_store(directory.as_uri())
    for key in (v1, v2):
        with_index = [batch.to_pylist() for batch in inspect_object(store, key).messages()]
        store.delete([f"{key}-index"])
        inspection = inspect_object(store, key)
        assert [batch.to_pylist() for batch in inspection.messages()] == with_index
        assert [damage.detail for damage in inspection.damage] == [f"its index {key}-index is missing"]


def test_the_key_of_the_index_names_the_object_too(sample: tuple[Path, str, str]) -> None:
    directory, _, v2 = sample
    assert inspect_object(open_store(directory.as_uri()), f"{v2}-index").key == v2


def test_a_renamed_v1_object_is_read_without_its_ledger(
    sample: tuple[Path, str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, v1, _ = sample
    for suffix in ("", "-index"):
        (directory / f"{v1}{suffix}").rename(directory / f"backup{suffix}")
    rows, complaints, code = inspect(capsys, monkeypatch, directory, "backup", "--messages")
    assert (complaints, code) == ("", 0)
    assert {row["ledger_id"] for row in rows} == {None}
    assert len(rows) == 60


def test_an_object_of_an_unknown_version_is_reported(sample: tuple[Path, str, str]) -> None:
    directory, _, v2 = sample
    meta = directory / f"{v2}.meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "s3managedledgeroffloaderformatversion": "7"}))
    inspection = inspect_object(open_store(directory.as_uri()), v2)
    assert any("format version '7'" in damage.detail for damage in inspection.damage)
