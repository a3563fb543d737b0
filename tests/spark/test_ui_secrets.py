"""Secrets of a DataFrame's source, searched for in the pages of Spark's UI and in its errors."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING

import pytest
from tests.support.homes import ServerHome
from tests.support.ledgers import message

from afterglow.metadata.names import NamespaceName
from afterglow.spark.session import local_session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.support.shared_spark import SharedSpark

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

pytestmark = pytest.mark.own_spark

POLICY_SECRET = "of-a-policy-Qy72"
MARK = "of-spark-Kw63"
"""Part of every secret. Spark also masks values that themselves speak of secrets, which real ones do not."""
SETTINGS = {
    "spark.hadoop.fs.s3a.secret.key": f"{MARK}-1",
    "spark.hadoop.fs.s3a.session.token": f"{MARK}-2",
    "spark.hadoop.fs.azure.account.key.archive.dfs.core.windows.net": f"{MARK}-3",
    "spark.hadoop.fs.gs.auth.service.account.private.key": f"{MARK}-4",
    "spark.ssl.trustStorePassword": f"{MARK}-5",
    "spark.executorEnv.AFTERGLOW_TOKEN": f"{MARK}-6",
    "spark.executorEnv.AWS_SECRET_ACCESS_KEY": f"{MARK}-7",
}


@pytest.fixture(scope="module")
def spark(shared_spark: SharedSpark) -> Iterator[SparkSession]:
    """A session of its own, with secrets among its settings, and a UI."""
    shared_spark.end()
    ui = {"spark.ui.enabled": "true", "spark.ui.port": "0"}
    with local_session("local[1]", **ui, **SETTINGS) as session:
        yield session


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic in the tier, below a namespace whose policy has credentials."""
    path = tmp_path_factory.mktemp("home")
    policy = {
        "s3ManagedLedgerOffloadCredentialId": "reader",
        "s3ManagedLedgerOffloadCredentialSecret": POLICY_SECRET,
    }
    with ServerHome(path) as server:
        server.catalog.update_policies(
            NamespaceName("public", "default"), lambda old: {**old, "offload_policies": policy}
        )
        ledgers = server.write("t", [message(b"first")], [message(b"second")])
        server.offload("t", ledgers[0])
    return path


def page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return str(answer.read().decode())


def pages(spark: SparkSession) -> dict[str, str]:
    context = spark.sparkContext
    base = context.uiWebUrl
    assert base is not None
    api = f"{base}/api/v1/applications/{context.applicationId}"
    queries = [query["id"] for query in json.loads(page(f"{api}/sql"))]
    paths = [f"{api}/{name}" for name in ("environment", "jobs", "stages?details=true", "executors")]
    paths += [f"{api}/sql?details=true&planDescription=true"]
    paths += [f"{base}/{name}/" for name in ("jobs", "stages", "storage", "environment", "executors", "SQL")]
    paths += [f"{base}/SQL/execution/?id={query}" for query in queries]
    return {path: page(path) for path in paths}


def test_no_page_of_sparks_ui_has_a_secret(spark: SparkSession, home: Path) -> None:
    reader = spark.read.format("afterglow").option("source", str(home)).option("topic", "t")
    rows = reader.load().filter("entry_id >= 0").select("value", "tier").collect()
    assert sorted((bytes(row.value), row.tier) for row in rows) == [(b"first", "tiered"), (b"second", "hot")]
    shown = pages(spark)
    environment = next(text for path, text in shown.items() if path.endswith("/environment"))
    for name in SETTINGS:
        assert name in environment
    assert any(path.endswith("/SQL/execution/?id=0") for path in shown)
    assert [path for path, text in shown.items() if MARK in text or POLICY_SECRET in text] == []


def test_the_error_of_a_refused_option_hides_its_value(spark: SparkSession, home: Path) -> None:
    reader = spark.read.format("afterglow").option("source", str(home)).option("topic", "t")
    with pytest.raises(Exception, match="token") as refused:
        reader.option("token", MARK).load()
    assert MARK not in str(refused.value)
