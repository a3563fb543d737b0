"""Export of a topic as Parquet: every message exactly once, whenever an export was killed."""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyarrow.dataset import dataset
from tests.support.homes import ServerHome, batch
from tests.support.ledgers import message

import afterglow
from afterglow.cli.app import main
from afterglow.errors import AfterglowError, ConfigError
from afterglow.format.schema import MESSAGES
from afterglow.source.directory import SourceLedger
from afterglow.spark.export import ExportDirectory, ExportProgress, ExportRecord, TopicExport, entries_before

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

from afterglow.spark.datasource.releases import ADMISSION_CONTROL, is_available

TOPIC = "persistent://public/default/t"
COLUMNS = ("ledger_id", "entry_id", "batch_index", "value")
SMALL = {"maxBytesPerTrigger": "40000", "maxPartitionBytes": "9000"}
"""Options for several batches of several files."""


def entries(first: int, count: int) -> list[bytes]:
    return [
        batch([b"%d.%d" % (i, k) for k in range(3)]) if i % 2 else message(b"%d" % i * 300)
        for i in range(first, first + count)
    ]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic of two ledgers in the tier and one in the hot log."""
    path = tmp_path_factory.mktemp("home")
    with ServerHome(path) as server:
        for ledger_id in server.write(TOPIC, entries(0, 50), entries(50, 50), entries(100, 20))[:2]:
            server.offload(TOPIC, ledger_id, block_bytes=8 << 10)
    return path


def scanned(home: Path) -> pa.Table:
    with afterglow.connect(home) as source:
        return source.topic(TOPIC).scan().read_all()


def rows(table: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.select(COLUMNS).to_pylist()
    return found


def files_of(out: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in out.glob("*.parquet")}


def own(out: Path) -> Path:
    """The state directory of an export."""
    return out.with_name(f".{out.name}.export")


def export(spark: SparkSession, home: Path, out: Path | ExportDirectory, **options: str) -> TopicExport:
    directory = out if isinstance(out, ExportDirectory) else ExportDirectory(spark, str(out))
    return TopicExport(spark, directory, ExportRecord(str(home), TOPIC, None, decode=False), options)


@pytest.mark.spark("export")
def test_an_export_holds_the_topic_and_later_runs_add_new_messages(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    with ServerHome(home) as server:
        for ledger_id in server.write(TOPIC, entries(0, 50), entries(50, 50)):
            server.offload(TOPIC, ledger_id, block_bytes=8 << 10)

    def run(*args: str) -> dict[str, int]:
        with pytest.raises(SystemExit) as ended:
            main(["export", str(home), "t", "--to", f"parquet:{out}", "--master", "local[2]", "--json", *args])
        assert ended.value.code == 0
        printed: dict[str, int] = json.loads(capsys.readouterr().out)
        return printed

    assert run() == {"messages": 200, "batches": 1}
    first = files_of(out)
    assert pq.read_table(out).equals(scanned(home), check_metadata=False)
    assert run() == {"messages": 0, "batches": 0}
    assert files_of(out) == first
    with ServerHome(home) as server:
        server.write(TOPIC, entries(100, 10))
    assert run() == {"messages": 20, "batches": 1}
    assert first.items() < files_of(out).items()
    assert rows(pq.read_table(out)) == rows(scanned(home))
    assert spark.read.parquet(str(out)).count() == 220


class Stopped(Exception):
    """Ends a continuous export."""


class Killed(AfterglowError):
    """Stands for the end of the process."""


class Dying(ExportDirectory):
    """A directory whose user is killed after a number of changes."""

    def __init__(self, session: SparkSession, root: Path, alive: int) -> None:
        super().__init__(session, str(root))
        self.alive = alive

    def move(self, file: str, target: str) -> None:
        self._live()
        super().move(file, target)

    def delete(self, name: str) -> None:
        self._live()
        super().delete(name)

    def _live(self) -> None:
        if not self.alive:
            raise Killed("killed")
        self.alive -= 1


@pytest.mark.spark("export")
def test_an_export_that_was_killed_anywhere_ends_with_every_message_once(
    spark: SparkSession, home: Path, tmp_path: Path
) -> None:
    expected = rows(scanned(home))
    out = tmp_path / "out"
    # The first run dies before anything of its first batch is there, the next ones amid renaming and before the end of
    # a batch, each time with files of other sizes.
    for alive, partition in ((0, "9000"), (2, "9000"), (4, "20000")):
        dying = Dying(spark, out, alive)
        with pytest.raises(AfterglowError, match="killed"):
            export(spark, home, dying, maxBytesPerTrigger="40000", maxPartitionBytes=partition).run()
        assert not dying.alive
        found = rows(pq.read_table(out)) if files_of(out) else []
        positions = [tuple(row.values())[:3] for row in found]
        assert len(set(positions)) == len(positions)
    done = export(spark, home, out, **SMALL).run()
    assert done.batches > 1 or not is_available(ADMISSION_CONTROL)
    assert rows(pq.read_table(out)) == expected
    assert {path.name for path in own(out).iterdir()} == {"checkpoint", "export.json", "lock"}


@pytest.mark.spark("export")
def test_a_run_after_one_that_was_killed_also_exports_what_came_in_between(spark: SparkSession, tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    with ServerHome(home) as server:
        server.write(TOPIC, entries(0, 10))
    with pytest.raises(AfterglowError, match="killed"):
        export(spark, home, Dying(spark, out, 1)).run()
    assert (own(out) / "checkpoint" / "offsets" / "0").exists()
    with ServerHome(home) as server:
        server.write(TOPIC, entries(10, 10))
    assert export(spark, home, out).run() == ExportProgress(batches=2, rows=40)
    assert rows(pq.read_table(out)) == rows(scanned(home))


@pytest.mark.spark("export")
def test_a_continuous_export_runs_until_it_is_stopped(spark: SparkSession, tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    with ServerHome(home) as server:
        server.write(TOPIC, entries(0, 10))
        reported = [0]

        def on_progress(now: ExportProgress) -> None:
            if now.rows == 20 != reported[-1]:
                server.write(TOPIC, entries(10, 10))
            reported.append(now.rows)
            if now.rows == 40:
                raise Stopped

        continuous = export(spark, home, out)
        with pytest.raises(Stopped):
            continuous.run(every_s=0.1, on_progress=on_progress)
    assert continuous.progress.rows == 40
    assert rows(pq.read_table(out)) == rows(scanned(home))
    assert not spark.streams.active


def test_only_the_columns_asked_for_are_written(spark: SparkSession, home: Path, tmp_path: Path) -> None:
    record = ExportRecord(str(home), TOPIC, COLUMNS, decode=False)
    TopicExport(spark, ExportDirectory(spark, str(tmp_path / "out")), record, {}).run()
    assert pq.read_table(tmp_path / "out").equals(scanned(home).select(COLUMNS), check_metadata=False)


def test_a_directory_holds_one_export(spark: SparkSession, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    files = ExportDirectory(spark, str(out))
    export(spark, home, files).run()
    before = files_of(out)
    other = TopicExport(spark, files, ExportRecord(str(home), TOPIC, ("value",), decode=False), {})
    with pytest.raises(ConfigError, match="columns None, not"):
        other.run()
    with files.exclusive(), pytest.raises(AfterglowError, match="another export"):
        export(spark, home, files).run()
    (own(out) / "checkpoint").rename(tmp_path / "away")
    with pytest.raises(AfterglowError, match="checkpoint is missing"):
        export(spark, home, files).run()
    assert files_of(out) == before
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "a.txt").touch()
    with pytest.raises(ConfigError, match=r"holds a\.txt"):
        export(spark, home, tmp_path / "theirs").run()


def test_an_error_of_a_stream_is_one_line(spark: SparkSession, home: Path, tmp_path: Path) -> None:
    record = ExportRecord(str(home), "persistent://public/default/nowhere", None, decode=False)
    with pytest.raises(AfterglowError, match="nowhere") as failed:
        TopicExport(spark, ExportDirectory(spark, str(tmp_path / "out")), record, {}).run()
    assert "\n" not in str(failed.value)


def counts(spark: SparkSession, out: Path) -> dict[str, int]:
    """Rows that each engine finds, with its default options."""
    duckdb, pd, pl = (pytest.importorskip(name) for name in ("duckdb", "pandas", "polars"))
    return {
        "polars, read": pl.read_parquet(out).height,
        "polars, scanned": pl.scan_parquet(str(out)).select(pl.len()).collect().item(),
        "duckdb": duckdb.sql(f"select count(*) from read_parquet('{out}/**/*.parquet')").fetchall()[0][0],
        "pandas": len(pd.read_parquet(out)),
        "pyarrow": dataset(str(out)).count_rows(),
        "spark": spark.read.parquet(str(out)).count(),
    }


def test_every_engine_reads_an_export_also_while_it_is_written(spark: SparkSession, tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    with ServerHome(home) as server:
        server.write(TOPIC, entries(0, 50))
        export(spark, home, out, **SMALL).run()
        assert set(counts(spark, out).values()) == {100}
        server.write(TOPIC, entries(50, 10))
        seen: list[dict[str, int]] = []

        def on_progress(now: ExportProgress) -> None:
            if now.rows:
                seen.append(counts(spark, out))
                raise Stopped

        with pytest.raises(Stopped):
            export(spark, home, out).run(every_s=0.1, on_progress=on_progress)
    assert set(seen[-1].values()) == {120}
    assert all(path.suffix == ".parquet" for path in out.rglob("*"))


def inside_as_before(out: Path) -> None:
    """Put the state of an export where earlier releases kept it."""
    own(out).rename(out / "_export")


def test_an_export_of_an_earlier_release_continues(spark: SparkSession, tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    with ServerHome(home) as server:
        server.write(TOPIC, entries(0, 10))
        export(spark, home, out).run()
        before = files_of(out)
        inside_as_before(out)
        server.write(TOPIC, entries(10, 10))
        assert export(spark, home, out).run().rows == 20
    assert before.items() < files_of(out).items()
    assert rows(pq.read_table(out)) == rows(scanned(home))
    assert not (out / "_export").exists()


@pytest.mark.parametrize("decode", [False, True])
def test_an_export_from_before_a_message_column_was_added_continues_without_it(
    spark: SparkSession, tmp_path: Path, *, decode: bool
) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    columns = tuple(name for name in MESSAGES.names if name not in {"replicated_from", "schema_id"})
    before = (*columns, "_corrupt") if decode else columns

    def run(columns: tuple[str, ...] | None = None) -> int:
        record = ExportRecord(str(home), TOPIC, columns, decode)
        return TopicExport(spark, ExportDirectory(spark, str(out)), record, {}).run().rows

    with ServerHome(home) as server:
        server.write(TOPIC, entries(0, 10))
        run(before)
        record = own(out) / "export.json"
        known = json.loads(record.read_bytes())
        # What an earlier release recorded for all of its columns.
        assert known.pop("message_columns") == MESSAGES.names
        record.write_text(json.dumps(known | {"columns": None}, indent=2))
        server.write(TOPIC, entries(10, 10))
        assert run() == 20
        server.write(TOPIC, entries(20, 10))
        assert run() == 20
    files = sorted(out.glob("*.parquet"))
    assert len(files) == 3
    assert {tuple(pq.read_schema(file).names) for file in files} == {before}
    assert len(rows(pq.read_table(out))) == 60


@pytest.mark.parametrize("deletes", [1, 2, 3])
def test_a_move_out_of_the_directory_that_was_killed_is_done_again(
    spark: SparkSession, home: Path, tmp_path: Path, deletes: int
) -> None:
    out = tmp_path / "out"
    export(spark, home, out).run()
    inside_as_before(out)
    dying = Dying(spark, out, deletes - 1)
    with pytest.raises(Killed):
        dying.migrate()
    assert export(spark, home, out).run().rows == 0
    assert not (out / "_export").exists()
    assert rows(pq.read_table(out)) == rows(scanned(home))


def test_state_that_an_earlier_release_left_is_deleted_and_nothing_else(
    spark: SparkSession, home: Path, tmp_path: Path
) -> None:
    out, theirs = tmp_path / "out", tmp_path / "theirs"
    for path in (out / "_export" / "lock", theirs / "_export" / "notes.txt"):
        path.parent.mkdir(parents=True)
        path.touch()
    export(spark, home, out).run()
    assert all(path.suffix == ".parquet" for path in out.rglob("*"))
    with pytest.raises(ConfigError, match="holds _export"):
        export(spark, home, theirs).run()
    assert (theirs / "_export" / "notes.txt").exists()


def test_an_export_that_an_earlier_release_is_writing_is_left_alone(
    spark: SparkSession, home: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    export(spark, home, out).run()
    inside_as_before(out)
    with (out / "_export" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(AfterglowError, match="another export"):
            export(spark, home, out).run()
    assert (out / "_export" / "export.json").exists()


def test_a_removed_directory_is_exported_again_and_a_moved_one_continues_with_its_state(
    spark: SparkSession, home: Path, tmp_path: Path
) -> None:
    out, moved = tmp_path / "out", tmp_path / "moved"
    export(spark, home, out).run()
    out.rename(moved)
    with pytest.raises(ConfigError, match=r"\.moved\.export/export\.json is missing; .* move the latter along"):
        export(spark, home, moved).run()
    assert export(spark, home, out).run().rows == len(scanned(home))
    shutil.rmtree(out)
    own(out).rename(own(moved))
    assert export(spark, home, moved).run().rows == 0
    assert rows(pq.read_table(moved)) == rows(scanned(home))


@pytest.mark.parametrize("target", ["/", "file:///", "s3a://bucket", "s3a://bucket/", "hdfs://"])
def test_a_directory_with_nothing_above_it_is_refused(spark: SparkSession, target: str) -> None:
    with pytest.raises(ConfigError, match="no directory above it"):
        ExportDirectory(spark, target)


def test_an_unknown_file_system_is_a_one_line_error(spark: SparkSession) -> None:
    with pytest.raises(AfterglowError, match=r"nowhere://host/d: .*nowhere") as failed:
        ExportDirectory(spark, "nowhere://host/d")
    assert "\n" not in str(failed.value)


def test_a_mount_point_is_refused(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(self: Path, target: Path) -> Path:
        raise OSError(errno.EXDEV, "Invalid cross-device link", str(self), None, str(target))

    monkeypatch.setattr(Path, "rename", rename)  # a mount needs rights that tests do not have
    directory = ExportDirectory(spark, str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="is a mount point"), directory.exclusive():
        pass


@pytest.mark.parametrize("name", ["a b", "%41 #?ü"])
def test_a_directory_may_have_any_name(spark: SparkSession, home: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    export(spark, home, out).run()
    assert export(spark, home, ExportDirectory(spark, out.as_uri())).run().rows == 0
    assert rows(pq.read_table(out)) == rows(scanned(home))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, f".{name}.export"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("{home}", "t", "--to", "csv:x"), "parquet:PATH"),
        (("{home}", "t", "--to", "parquet:"), "parquet:PATH"),
        (("{home}", "t", "--to", "parquet:{out}", "--columns", "valeu"), "valeu"),
        (("{home}", "nowhere", "--to", "parquet:{out}"), "nowhere"),
        (("{home}", "t", "--to", "parquet:{out}", "--continuous", "--every", "0s"), "--every"),
    ],
)
def test_a_wrong_argument_is_an_error_before_spark_starts(
    home: Path, tmp_path: Path, args: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["export", *(arg.format(home=home, out=tmp_path / "out") for arg in args)])
    assert ended.value.code in {1, 2}
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error
    assert not (tmp_path / "out").exists()


def test_progress_counts_entries_before_the_offsets_of_the_stream() -> None:
    def ledger(topic: str, ledger_id: int, entries: int) -> SourceLedger:
        return SourceLedger(topic, ledger_id, entries, None, None, None, hot=True, tiered=False)

    ledgers = [ledger("a", 1, 10), ledger("a", 2, 20), ledger("a", 5, 7), ledger("b", 3, 100)]
    assert entries_before(ledgers, {}) == 0
    assert entries_before(ledgers, {"a": "earliest"}) == 0
    assert entries_before(ledgers, {"a": "2:4:0"}) == 14
    assert entries_before(ledgers, {"a": "5:99:3", "b": "3:-1:0"}) == 37
    assert entries_before(ledgers, {"a": "4:0:0", "b": "9:0:0"}) == 130
