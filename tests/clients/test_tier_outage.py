"""A store that is gone while ``serve --streaming`` needs it: seen within seconds, and over as soon as it is back."""

from __future__ import annotations

import os
import threading
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.fault_proxy import fault_proxy
from tests.support.served_topics import eventually, offload_all
from tests.support.servers import start_moto
from tests.support.serving import serving

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fault_proxy import FaultProxy
    from tests.support.serving import Served

pulsar = pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

TOPIC = "persistent://public/default/out"
PATH = "persistent/public/default/out"
CONF = """
offloadTickIntervalMillis=200
offloadRequestTimeoutSeconds=10
offloadRetryMinBackoffMillis=60000
offloadRetryMaxBackoffMillis=60000
"""
"""A request fails after seconds, and what has failed would wait for a minute."""


def produce(served: Served, count: int) -> None:
    client = pulsar.Client(served.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        producer = client.create_producer(TOPIC)
        for _ in range(count):
            producer.send(os.urandom(1000))
    finally:
        client.close()


def signs(served: Served, tier: str) -> dict[str, bool]:
    """Where the outage is to be seen."""
    with urllib.request.urlopen(f"{served.admin_url}/metrics", timeout=30) as answer:
        metrics = answer.read().decode()
    (explained, *_) = served.admin("GET", f"{PATH}/explain")
    segments = served.admin("GET", f"{PATH}/segments")
    return {
        "explain": tier in (explained["error"] or "") and "unavailable since" in explained["sentence"],
        "segments": tier in (segments[-1]["error"] or ""),
        "metric": f'afterglow_tier_available{{cluster="standalone",location="{tier}"}} 0' in metrics,
        "overview": [row["location"] for row in served.admin("GET", "afterglow/topics")["outages"]] == [tier],
        "topic page": [row["location"] for row in served.admin("GET", f"{PATH}/log")["outages"]] == [tier],
        "log": len(lines(served, "unavailable since")) == 1,
    }


def lines(served: Served, text: str) -> list[str]:
    return [line for line in served.lines if text in line]


class FirstRefused:
    """When the first request failed after a proxy went down."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self._spoiled = proxy.spoiled
        self.at_s: float | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while self._proxy.spoiled == self._spoiled:
            time.sleep(0.01)
        self.at_s = time.monotonic()


def test_an_outage_is_seen_within_seconds_and_over_as_soon_as_the_store_is_back(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    with start_moto() as store, fault_proxy(store.endpoint, share=0.0) as proxy:
        store.create_bucket("outage")
        conf.write_text(
            CONF + f"s3ManagedLedgerOffloadServiceEndpoint={proxy.endpoint}\n"
            f"s3ManagedLedgerOffloadRegion={store.region}\n"
            f"s3ManagedLedgerOffloadCredentialId={store.access_key}\n"
            f"s3ManagedLedgerOffloadCredentialSecret={store.secret_key}\n"
        )
        tier = f"s3://outage at {proxy.endpoint}"
        options = ("--streaming", "--conf", str(conf), "--tier", "s3://outage", "--master", "local[2]")
        with serving(tmp_path / "home", *options) as served:
            produce(served, 10)
            offload_all(served, TOPIC)
            assert not any(signs(served, tier).values())
            produce(served, 10)
            proxy.down = True
            refused = FirstRefused(proxy)
            served.admin("PUT", f"{PATH}/offload", "latest")
            eventually(lambda: refused.at_s is not None, lambda: served.lines[-20:])
            eventually(lambda: all(signs(served, tier).values()), lambda: signs(served, tier))
            assert refused.at_s is not None
            assert time.monotonic() - refused.at_s < 5

            def failed() -> bool:
                statistics: dict[str, Any] = served.admin("GET", f"{PATH}/stats")
                return bool(statistics["lastOffloadFailureTimeStamp"])

            eventually(failed, lambda: served.lines[-20:])
            assert served.admin("GET", f"{PATH}/offload")["status"] == "RUNNING"
            proxy.down = False
            back_s = time.monotonic()
            eventually(
                lambda: served.admin("GET", f"{PATH}/offload")["status"] == "SUCCESS", lambda: served.lines[-20:], 60
            )
            assert time.monotonic() - back_s < 30  # most of it Spark's, on a loaded machine
            assert [row["error"] for row in served.admin("GET", f"{PATH}/segments")] == [None, None]
            assert served.admin("GET", "afterglow/tiers") == [
                {"location": tier, "available": True, "since_ms": None, "error": None, "cure": None}
            ]
            assert len(lines(served, "unavailable since")) == len(lines(served, "is available again after")) == 1
            # The request that fails first does so before a probe has confirmed the outage.
            assert len(lines(served, "is retried later")) <= 1
            assert served.stop() == 0
