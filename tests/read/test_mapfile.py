"""MapFiles written by Hadoop's own classes, with every setting of Pulsar's driver, and with damage."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.support import golden

from afterglow.config import BrokerConfig
from afterglow.errors import BucketMissing, CorruptBlock, DamagedStripe, NotSupported, ObjectMissing
from afterglow.format.frames import iter_entries
from afterglow.read.counters import ReadCounters
from afterglow.read.mapfile import MapFileCopy, mapfile_key, open_mapfile
from afterglow.read.objects import TierObject
from afterglow.spark.java import find_java
from afterglow.tier.locations import MAPFILES, TierLocation, Tiers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

UUID_ = UUID("0e03dee9-c718-4bb5-bc44-4e761a4138cc")
KEY = mapfile_key("public/default/persistent/t", 7, UUID_)
ENTRIES = 700


@pytest.fixture(scope="module")
def java() -> Iterator[Any]:
    """A Java with Hadoop's classes, those that Spark brings."""
    gateway = pytest.importorskip("pyspark.java_gateway", reason="the extra pulsar-afterglow[spark] is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(find_java().home))
        opened = gateway.launch_gateway()
    yield opened.jvm
    opened.shutdown()
    opened.proc.stdin.close()
    opened.proc.wait(30)


def entries(count: int = ENTRIES, seed: int = 1) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.choice([0, 1, 3, 100, 5_000])) for _ in range(count)]


def write(java: Any, path: Path, kind: str, found: Sequence[bytes], codec: str = "DefaultCodec") -> None:
    """What Pulsar's driver does: the ledger's metadata under -1, then every entry under its id."""
    io = java.org.apache.hadoop.io
    conf = java.org.apache.hadoop.conf.Configuration()
    conf.setInt("io.seqfile.compress.blocksize", 20_000)
    compressed = getattr(java.org.apache.hadoop.io, "SequenceFile$CompressionType").valueOf(kind)
    make = getattr(io.compress, codec)()
    if codec == "DefaultCodec":
        make.setConf(conf)
    maker = getattr(io, "MapFile$Writer")
    options = java.java.lang.reflect.Array.newInstance(
        java.java.lang.Class.forName("org.apache.hadoop.io.SequenceFile$Writer$Option"), 3
    )
    options[0] = maker.keyClass(java.java.lang.Class.forName("org.apache.hadoop.io.LongWritable"))
    options[1] = maker.valueClass(java.java.lang.Class.forName("org.apache.hadoop.io.BytesWritable"))
    options[2] = maker.compression(compressed, make)
    writer = maker(conf, java.org.apache.hadoop.fs.Path(path.as_uri()), options)
    for entry_id, value in enumerate([b"metadata", *found], -1):
        writer.append(io.LongWritable(entry_id), io.BytesWritable(value))
    writer.close()


def copy(directory: Path, key: str = KEY, ledger_id: int = 7, buffer_bytes: int = 10_000) -> MapFileCopy:
    location = TierLocation(MAPFILES, str(directory))
    store = Tiers().store(location, BrokerConfig())
    counters = ReadCounters()
    return MapFileCopy(
        store, open_mapfile(store, TierObject(location, key), counters), ledger_id, buffer_bytes, counters
    )


def scanned(mapfile: MapFileCopy, first: int, last: int) -> list[tuple[int, bytes]]:
    return [
        (entry_id, bytes(data))
        for run in mapfile.scan(first, last)
        for entry_id, data in iter_entries(run.data, run.frames)
    ]


@pytest.mark.parametrize("kind", ["NONE", "RECORD", "BLOCK"])
def test_entries_are_read_from_any_position_to_any_other(java: Any, kind: str, tmp_path: Path) -> None:
    known = entries()
    write(java, tmp_path / KEY, kind, known)
    mapfile = copy(tmp_path)
    assert scanned(mapfile, 0, ENTRIES - 1) == list(enumerate(known))
    rng = random.Random(2)
    fresh = copy(tmp_path)  # has the offsets of the index, and none that a scan has added
    for _ in range(30):
        first = rng.randrange(ENTRIES)
        last = rng.randrange(first, min(first + 100, ENTRIES))
        assert scanned(fresh, first, last) == list(enumerate(known))[first : last + 1]
        run = fresh.read(first, last, 6_000)
        given = [(entry_id, bytes(data)) for entry_id, data in iter_entries(run.data, run.frames)]
        assert given == list(enumerate(known))[first : first + len(given)]
        assert len(given) == 1 or sum(12 + len(data) for _, data in given) <= 6_000


def test_reading_one_entry_fetches_little(java: Any, tmp_path: Path) -> None:
    write(java, tmp_path / KEY, "BLOCK", entries())
    size_bytes = (tmp_path / KEY / "data").stat().st_size
    mapfile = copy(tmp_path)
    before = mapfile.counters.counts().fetched_bytes
    mapfile.read(ENTRIES - 1, ENTRIES - 1, 1)
    assert mapfile.counters.counts().fetched_bytes - before < size_bytes / 5


def test_codecs_that_are_not_of_zlib_are_named(java: Any, tmp_path: Path) -> None:
    write(java, tmp_path / KEY, "RECORD", entries(3), "BZip2Codec")
    with pytest.raises(NotSupported, match=r"MapFile .*/7-0e03dee9.* codec .*\.BZip2Codec is not supported"):
        copy(tmp_path)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """The golden MapFiles, to be spoilt."""
    golden.cases()["fs_mapfile"].unpack(tmp_path)
    return tmp_path / "public/default/persistent/golden-fs_mapfile/194-0e03dee9-c718-4bb5-bc44-4e761a4138cc"


def test_damage_is_reported_with_the_file_and_never_read(damaged: Path) -> None:
    data = damaged / "data"
    sound = data.read_bytes()
    key = f"public/default/persistent/golden-fs_mapfile/{damaged.name}"
    root = damaged.parents[4]
    expected = scanned(copy(root, key), 0, 39)
    reported = []
    for at in range(0, len(sound), 7):
        data.write_bytes(sound[:at] + bytes([sound[at] ^ 0x10]) + sound[at + 1 :])
        try:
            assert scanned(copy(root, key), 0, 39) == expected, at
        except (CorruptBlock, NotSupported) as error:
            reported.append(str(error))
    assert all(damaged.name in text for text in reported)
    assert len(reported) > len(sound) / 7 * 0.9  # few bytes may change unnoticed: lengths of keys and values, flags
    for end in (3, 60, 130, 200, len(sound) - 1):
        data.write_bytes(sound[:end])
        with pytest.raises(CorruptBlock):
            scanned(copy(root, key), 0, 39)


def test_a_mapfile_without_index_is_read_from_its_beginning(damaged: Path) -> None:
    (damaged / "index").unlink()
    key = f"public/default/persistent/golden-fs_mapfile/{damaged.name}"
    assert [entry_id for entry_id, _ in scanned(copy(damaged.parents[4], key), 30, 39)] == list(range(30, 40))


def test_missing_entries_and_missing_files_are_reported(damaged: Path, tmp_path: Path) -> None:
    key = f"public/default/persistent/golden-fs_mapfile/{damaged.name}"
    with pytest.raises(DamagedStripe, match="it ends before entry 40"):
        scanned(copy(damaged.parents[4], key), 38, 45)
    with pytest.raises(ObjectMissing, match=KEY):
        copy(tmp_path)
    with pytest.raises(BucketMissing, match="absent"):
        copy(tmp_path / "absent")
