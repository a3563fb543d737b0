"""What may be said to ``format("afterglow")``."""

from __future__ import annotations

from typing import Any

import pytest

from afterglow.config.choices import ReadPriority
from afterglow.errors import AfterglowError, ConfigError
from afterglow.format.position import Position

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

from afterglow.spark.datasource.offsets import START, Point
from afterglow.spark.datasource.options import OPTIONS, PARTITION_BYTES, SourceOptions

NOW_MS = 1_800_000_000_000


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse({"source": "home", "topic": "t", **options}, NOW_MS)


def test_little_needs_to_be_said() -> None:
    options = parse()
    assert (options.source, options.topics, options.topics_pattern) == ("home", ("t",), None)
    assert (options.start, options.end, options.since_ms, options.until_ms) == (START, None, None, None)
    assert (options.include, options.columns, options.hot) == ("messages", None, "read")
    assert options.entries == "auto"
    assert (options.decode, options.pushdown, options.fail_on_data_loss) == (False, False, None)
    assert (options.max_partition_bytes, options.max_bytes_per_trigger) == (PARTITION_BYTES, None)


def test_everything_can_be_said_in_any_case() -> None:
    said = {
        "SOURCE": "home",
        "topic": "a, b,,public/default/c",
        "START": "3:4:5",
        "end": "6:7",
        "since": "15m",
        "until": "2027-01-15T08:00:00Z",
        "readPriority": "tiered-first",
        "tier": "s3://b",
        "metadata": "sqlite:x",
        "include": "entries",
        "columns": "topic, data",
        "decode": "FALSE",
        "hot": "skip",
        "entries": "BookKeeper",
        "pushdown": "true",
        "maxPartitionBytes": "64m",
        "maxBytesPerTrigger": "1g",
        "maxEntriesPerTrigger": "1000",
        "failOnDataLoss": "false",
    }
    assert {name.lower() for name in said} == {name.lower() for name in OPTIONS} - {"topicspattern"}
    options = SourceOptions.parse(said, NOW_MS)
    assert options.topics == ("a", "b", "public/default/c")
    assert (options.start, options.end) == (Point(Position(3, 4), 5), Point(Position(6, 7)))
    assert (options.since_ms, options.until_ms) == (NOW_MS - 15 * 60_000, NOW_MS)
    assert options.ages == ("since",)
    assert options.read_priority is ReadPriority.TIERED_STORAGE_FIRST
    assert (options.tier, options.metadata) == ("s3://b", "sqlite:x")
    assert options.schema.names == ["topic", "data"]
    assert (options.decode, options.hot, options.pushdown, options.fail_on_data_loss) == (False, "skip", True, False)
    assert (options.max_partition_bytes, options.max_bytes_per_trigger) == (64 << 20, 1 << 30)
    assert options.max_entries_per_trigger == 1000


def test_values_are_decoded_where_there_are_messages() -> None:
    assert parse(decode="True").decode
    with pytest.raises(AfterglowError, match="but include=entries is given"):
        parse(decode="true", include="entries")


def test_the_end_of_a_topic_is_not_a_bound() -> None:
    assert parse(end="latest").end is None
    assert parse(end="earliest").end == START


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"topcs": "t"}, "unknown option 'topcs'; did you mean 'topic'?"),
        ({"zzz": "t"}, "unknown option 'zzz'; the options are source, topic, topicsPattern"),
        ({"path": "home"}, "load() takes no path"),
        ({"source": " "}, 'the option "source" is missing'),
        ({"topic": ","}, "neither was given"),
        ({"topicsPattern": "t"}, "both were given"),
        ({"topic": "", "topicsPattern": "("}, "topicsPattern='(' is not a valid regular expression"),
        ({"start": "7"}, "invalid position '7'"),
        ({"since": "yesterday"}, "'yesterday' is not a valid time"),
        ({"readPriority": "cheapest"}, "the option readPriority='cheapest' is not"),
        ({"include": "rows"}, "the option include='rows' is not valid; give messages or entries"),
        ({"hot": "no"}, "the option hot='no' is not valid; give read or skip"),
        ({"columns": " "}, 'the option "columns" is empty'),
        ({"decode": "yes"}, "the option decode='yes' is not true or false"),
        ({"maxPartitionBytes": "0"}, "the option maxPartitionBytes='0' is not a size in bytes"),
        ({"maxEntriesPerTrigger": "1.5"}, "the option maxEntriesPerTrigger='1.5' is not an integer of at least 1"),
    ],
)
def test_a_wrong_option_is_named_with_the_fix(given: dict[str, Any], error: str) -> None:
    with pytest.raises(AfterglowError) as failed:
        parse(**given)
    assert error in str(failed.value)


@pytest.mark.parametrize("name", ["provider", "option.source"])
def test_the_properties_of_a_table_are_refused_with_what_to_use_instead(name: str) -> None:
    with pytest.raises(ConfigError, match="use CREATE TEMPORARY VIEW"):
        SourceOptions.parse({"source": "s", "topic": "t", name: "afterglow"}, 0)
