from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.support.offloaded import OffloadedTopic, random_entries
from tests.support.recorded_admin import recorded_admin
from tests.support.served_topics import eventually

from afterglow.attach.ledger_merge import LEFT_TO_CLUSTER
from afterglow.format.objects import set_uuid
from afterglow.hot.local.log import LocalLog
from afterglow.hot.local.shared_ledger import read_instance
from afterglow.ledger.properties import set_text
from afterglow.metadata.paths import AfterglowPaths
from afterglow.metadata.sqlite import SqliteMetadataStore
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.storage import open_store

if TYPE_CHECKING:
    from pathlib import Path


def run(*args: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [sys.executable, "-m", "afterglow", "verify", *args],
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == expect, result.stdout + result.stderr
    return result


def found(*args: str, expect: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*args, "--json", expect=expect).stdout.splitlines()]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose ledger 1 is in its tier, while no server runs."""
    path = tmp_path / "home"
    path.mkdir()
    LocalLog(path).close()
    world = open_world(path)
    world.ledger(1, random_entries(20))
    world.offload(1)
    world.free(1)
    world.metadata.close()
    return path


def attached_segment(directory: Path, cluster: str) -> tuple[OffloadedTopic, str]:
    """A committed segment of an Afterglow that is attached to a cluster, between ledgers that are left to it."""
    world = OffloadedTopic(open_store((directory / "tier").as_uri(), create="true"))
    for ledger_id in (1, 2, 3):
        world.ledger(ledger_id, random_entries(20))
    key = world.segment([(1, 0, 19), (3, 0, 9)])
    paths = AfterglowPaths(cluster)
    ours = world.info
    for ledger in ours.ledgerInfo:
        if ledger.ledgerId == 2:
            ledger.offloadContext.complete = True
            set_text(ledger, LEFT_TO_CLUSTER, "true")
    with closing(SqliteMetadataStore(directory / "attached.db")) as metadata:
        metadata.put(paths.instance, world.instance.encode(), MUST_NOT_EXIST)
        metadata.put(paths.managed_ledger(world.topic), ours.SerializeToString(), MUST_NOT_EXIST)
        record = world.metadata.get(world.paths.segment(world.topic, UUID(key)))
        assert record is not None
        metadata.put(paths.segment(world.topic, UUID(key)), record.value, MUST_NOT_EXIST)
    return world, key


def test_segments_of_an_attached_afterglow_are_verified_by_its_metadata(tmp_path: Path) -> None:
    """Ledgers between them that the cluster offloads itself are not holes."""
    world, key = attached_segment(tmp_path, "pulsar-a")
    address = f"sqlite:{tmp_path / 'attached.db'}"
    with recorded_admin() as admin:
        admin.answers["clusters"] = ["pulsar-a", "pulsar-b"]
        source = (admin.url, "--metadata", address)
        assert found(*source) == []
        assert found(*source, "--tier", world.tier.url) == []
        orphan = "0f0e0d0c-0000-4000-8000-000000000000"
        world.write(orphan, b"x", b"y")
        assert {line["kind"] for line in found(*source, "--grace", "0s", expect=1)} == {"orphan_object"}
        assert len(found(*source, "--sweep", "--yes", "--grace", "0s")) == 2
        world.tier.delete([key])
        assert {line["kind"] for line in found(*source, expect=1)} == {"missing_object"}
        admin.answers["clusters"] = ["pulsar-b"]
        assert "it has records of pulsar-a" in run(*source, expect=2).stderr


def open_world(home: Path) -> OffloadedTopic:
    instance = read_instance(home)
    assert instance is not None
    tier = open_store((home / "tier").as_uri(), create="true")
    return OffloadedTopic(tier, SqliteMetadataStore(home / "metadata.db"), instance=instance)


def test_a_sound_home_exits_0_with_a_word(home: Path) -> None:
    assert "no faults" in run(str(home)).stdout
    assert found(str(home)) == []


def test_a_fault_exits_1_and_is_reported_in_both_forms(home: Path) -> None:
    world = open_world(home)
    [key] = [info.key for info in world.tier.list() if not info.key.endswith("-index")]
    world.spoil(key, 200)
    assert found(str(home)) == []
    [line] = found(str(home), "--deep", "--master", "local[1]", expect=1)
    assert set(line) == {"kind", "topic", "object", "position", "detail"}
    assert (line["kind"], line["object"], line["position"]) == ("damaged_block", key, "1:0")
    assert line["topic"] == "persistent://public/default/t"
    world.tier.delete([key])
    people = run(str(home), expect=1).stdout
    assert "missing_object" in people
    assert "1 faults" in people


def test_ctrl_c_ends_a_deep_verification_with_one_line(home: Path) -> None:
    """During a job: one index is a pipe that the test opens, and the next one a pipe that stays closed."""
    world = open_world(home)
    world.ledger(2, random_entries(3))
    world.offload(2)
    world.metadata.close()
    pipes = sorted((home / "tier").glob("*-index"), key=lambda path: int(path.name.split("-")[-2]))
    for path in pipes:
        path.unlink()
        os.mkfifo(path)
    process = subprocess.Popen(
        [sys.executable, "-m", "afterglow", "verify", str(home), "--deep", "--master", "local[1]"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process, pipes[0].open("wb"):  # opens once the task does
        os.killpg(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert (out, errors) == ("", "afterglow: interrupted; stopping the verification and Spark\n")
    # A worker ends a moment after its JVM.
    eventually(lambda: not group_lives(process.pid), lambda: f"processes of group {process.pid} still run")


def group_lives(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_lost_hot_ledger_is_a_hole(home: Path) -> None:
    world = open_world(home)
    world.ledger(2, random_entries(3))
    [line] = found(str(home), expect=1)
    assert (line["kind"], line["position"]) == ("hole", "2:0")


def test_the_sweep_is_a_dry_run_by_default(home: Path) -> None:
    world = open_world(home)
    world.write("0f0e0d0c-0000-4000-8000-000000000000", b"x", b"y")
    before = [info.key for info in world.tier.list()]
    assert {line["kind"] for line in found(str(home))} == {"pending"}
    dry = found(str(home), "--sweep", "--grace", "0s", expect=1)
    assert [line["kind"] for line in dry] == ["orphan_object"] * 2
    assert all("would delete" in line["detail"] for line in dry)
    assert [info.key for info in world.tier.list()] == before
    wet = found(str(home), "--sweep", "--grace", "0s", "--yes")
    assert all("deleted" in line["detail"] for line in wet)
    assert len(list(world.tier.list())) == len(before) - 2
    assert found(str(home), "--grace", "0s") == []


def test_objects_are_verified_in_the_tier_that_metadata_names(home: Path, tmp_path: Path) -> None:
    """And orphans too: every tier that metadata names is listed."""
    world = open_world(home)
    world.ledger(2, random_entries(3))
    elsewhere = OffloadedTopic(open_store((tmp_path / "b").as_uri(), create="true"), world.metadata)
    elsewhere.instance = world.instance
    elsewhere.entries = world.entries
    key = elsewhere.offload(2)
    elsewhere.free(2)
    assert found(str(home)) == []
    elsewhere.write("0f0e0d0c-0000-4000-8000-000000000000", b"x", b"y")
    assert {line["kind"] for line in found(str(home))} == {"pending"}
    elsewhere.tier.delete([key])
    assert "missing_object" in {line["kind"] for line in found(str(home), expect=1)}


def test_an_explicit_tier_overrides_what_metadata_says(home: Path, tmp_path: Path) -> None:
    (home / "tier").rename(tmp_path / "moved")
    assert {line["kind"] for line in found(str(home), expect=1)} == {"missing_object"}
    assert found(str(home), "--tier", (tmp_path / "moved").as_uri()) == []


def test_work_in_progress_is_not_a_finding(home: Path) -> None:
    from uuid import uuid4

    world = open_world(home)
    world.ledger(2, [])
    world.edit_row(2, lambda row: set_uuid(row.offloadContext, uuid4()))
    assert found(str(home)) == []


@pytest.mark.parametrize(
    ("args", "words", "code"),
    [
        (("http://127.0.0.1:1",), "afterglow serve", 1),
        (("http://127.0.0.1:1", "--tier", "file:///t"), "remove --tier", 2),
        (("http://127.0.0.1:1", "--metadata", "sqlite:m"), "127.0.0.1:1", 1),
        (("http://127.0.0.1:1", "--deep", "--master", "local[1]"), "remove --master", 2),
        (("http://[",), "address", 2),
        (("zk://127.0.0.1:1", "--sweep"), "remove --sweep", 2),
        (("ftp://x",), "invalid source address", 2),
        (("{home}", "--yes"), "--sweep", 2),
        (("{home}", "--master", "local[1]"), "--deep", 2),
        (("{home}", "--deep", "--master", "local[x]"), "local[N]", 2),
        (("{home}", "--option", "endpoint=x"), "--tier", 2),
        (("{home}", "--grace", "soon"), "time", 2),
        (("{home}/nowhere",), "no such directory", 1),
        (("{home}/tier",), "not a server's home", 1),
        (("{home}", "--tier", "file:///no/such/directory"), "/no/such/directory", 1),
    ],
)
def test_a_wrong_source_or_option_is_a_one_line_error(home: Path, args: tuple[str, ...], words: str, code: int) -> None:
    result = run(*(arg.format(home=home) for arg in args), expect=code)
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
