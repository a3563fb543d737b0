"""The statements of docs/sql.md, in one session; what they print is what the page shows."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.homes import ServerHome
from tests.support.pages import Page

from afterglow.format.entry import encode_entry
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Page.read(Path(__file__).parents[2] / "docs" / "sql.md")
LISTINGS = list(PAGE.listings())
VIEWS = ("orders", "cents", "recent", "everything")


def order(number: int) -> bytes:
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
    metadata.partition_key = f"customer-{number % 3}"
    return encode_entry(metadata, json.dumps({"cents": 100 * (number + 1) if number < 4 else 350}).encode())


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """A directory with a home: orders of yesterday in the tier, orders of now in the hot log, and a return."""
    home = tmp_path / "home"
    home.mkdir()
    now_ms = time.time_ns() // 1_000_000
    with ServerHome(home) as server:
        server.clock.set_now_ms(now_ms - 86_400_000)
        old = server.write("orders", [order(0), order(1)], [order(2), order(3)])
        server.clock.set_now_ms(now_ms)
        server.write("orders", [order(4), order(5)])
        for ledger_id in old:
            server.offload("orders", ledger_id)
            server.free("orders", ledger_id)
        server.write("returns", [order(0)])
    return tmp_path


def test_every_statement_prints_what_the_page_shows(
    spark: SparkSession, location: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        for listing, shown in zip(LISTINGS[::2], LISTINGS[1::2], strict=True):
            assert (listing.language, shown.language) == ("sql", "")
            capsys.readouterr()
            *statements, query = listing.text.replace("./", f"{location}/").strip().split(";\n")
            for statement in statements:
                spark.sql(statement)
            spark.sql(query).show()
            assert capsys.readouterr().out.strip() == shown.text.strip(), query
    finally:
        for view in VIEWS:
            spark.catalog.dropTempView(view)
