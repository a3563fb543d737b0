from __future__ import annotations

import asyncio
import time
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families

from afterglow.config import AuthenticationProvider
from afterglow.offload.task_dispatch import JobCounters
from afterglow.pipeline.metrics.definitions import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.admin.conftest import Admin

TOPIC = "persistent://public/default/t"
OF_TOPIC = {"cluster": "standalone", "namespace": "public/default", "topic": TOPIC}

KEPT = {"default_retention_time_in_minutes": -1, "default_retention_size_in_mb": -1}

ENTRY_BYTES = 115
"""Of an entry of 100 bytes with the broker's envelope."""


class Scrape:
    """What a scrape brought, as Prometheus reads it."""

    def __init__(self, admin: Admin) -> None:
        answer = admin.call("GET", "/metrics")
        assert answer.status == 200, answer
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        self.samples = [
            sample for family in text_string_to_metric_families(answer.body.decode()) for sample in family.samples
        ]

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}

    def value(self, name: str, **labels: str) -> float:
        (found,) = [sample.value for sample in self.samples if sample.name == name and sample.labels == labels]
        return found

    def labels(self, name: str, label: str) -> set[str]:
        return {sample.labels[label] for sample in self.samples if sample.name == name}


@pytest.fixture
def connect() -> Iterator[Callable[[Admin], pulsar.Client]]:
    clients = []

    def make(admin: Admin) -> pulsar.Client:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        clients.append(pulsar.Client(admin.service.service_url, logger=quiet))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def test_an_idle_broker_has_broker_metrics_and_no_topic_metrics(admin: Admin) -> None:
    found = Scrape(admin)
    assert found.value("pulsar_active_connections", cluster="standalone") == 0
    assert "pulsar_storage_size" not in found.names


def test_topics_and_subscriptions_are_counted(admin: Admin, connect: Callable[[Admin], pulsar.Client]) -> None:
    client = connect(admin)
    producer = client.create_producer("t")
    consumer = client.subscribe("t", "s")
    for _ in range(3):
        producer.send(bytes(100))
    consumer.acknowledge(consumer.receive(10_000))
    while (found := Scrape(admin)).value("pulsar_subscription_back_log", subscription="s", **OF_TOPIC) != 2:
        pass
    stats = admin.get("persistent/public/default/t/stats")
    assert found.value("pulsar_topics_count", cluster="standalone", namespace="public/default") == 1
    assert found.value("pulsar_producers_count", **OF_TOPIC) == 1
    assert found.value("pulsar_consumers_count", **OF_TOPIC) == 1
    assert found.value("pulsar_subscriptions_count", **OF_TOPIC) == 1
    assert found.value("pulsar_in_messages_total", **OF_TOPIC) == 3
    assert found.value("pulsar_in_bytes_total", **OF_TOPIC) == stats["bytesInCounter"] > 300
    assert found.value("pulsar_storage_size", **OF_TOPIC) == stats["storageSize"] > 300
    assert found.value("pulsar_storage_backlog_size", **OF_TOPIC) == stats["backlogSize"] > 200
    assert found.value("pulsar_msg_backlog", **OF_TOPIC) == 2
    assert found.value("pulsar_rate_in", **OF_TOPIC) > 0
    assert found.value("pulsar_throughput_in", **OF_TOPIC) > 100 * found.value("pulsar_rate_in", **OF_TOPIC)
    assert found.value("pulsar_subscription_consumers_count", subscription="s", **OF_TOPIC) == 1


def test_offloaded_and_pending_bytes_are_reported(start: Callable[..., Admin]) -> None:
    admin = start(offload=True, managed_ledger_offload_threshold_in_bytes=0, **KEPT)
    admin.do("PUT", "persistent/public/default/t")
    admin.get("persistent/public/default/t/stats")
    admin.write_ledgers(2)
    assert Scrape(admin).value("afterglow_offload_lag_bytes", **OF_TOPIC) == 2 * ENTRY_BYTES
    admin.offloading.begin()
    assert Scrape(admin).value("afterglow_offload_ledgers_running", **OF_TOPIC) == 2
    admin.offloading.finish()
    admin.write_entries(3)
    found = Scrape(admin)
    assert found.value("afterglow_offload_ledgers_running", **OF_TOPIC) == 0
    assert found.value("pulsar_storage_offloaded_size", **OF_TOPIC) == 2 * ENTRY_BYTES
    assert found.value("afterglow_offload_lag_bytes", **OF_TOPIC) == 3 * ENTRY_BYTES
    assert found.value("afterglow_offload_task_bytes_total", route="files", **OF_TOPIC) >= 2 * ENTRY_BYTES
    read = {
        origin: found.value("afterglow_offload_read_bytes_total", cluster="standalone", **{"from": origin})
        for origin in found.labels("afterglow_offload_read_bytes_total", "from")
    }
    assert read == {"buffer": 0, "cache": 0, "hot": 0, "file": 2 * ENTRY_BYTES}
    assert found.value("brk_ledgeroffloader_offload_rate", **OF_TOPIC) > 0
    assert found.value("brk_ledgeroffloader_write_storage_error_total", **OF_TOPIC) == 0
    assert found.value("brk_ledgeroffloader_read_ledger_latency_count", **OF_TOPIC) == 2
    longest_us = found.value("brk_ledgeroffloader_read_ledger_latency", quantile="1.0", **OF_TOPIC)
    assert 0 < longest_us <= found.value("brk_ledgeroffloader_read_ledger_latency_sum", **OF_TOPIC)
    assert found.value("afterglow_offload_last_success_timestamp_seconds", **OF_TOPIC) > 1e9


def test_tasks_that_fail_are_counted(start: Callable[..., Admin]) -> None:
    admin = start(offload=True, managed_ledger_offload_threshold_in_bytes=0, **KEPT)
    admin.do("PUT", "persistent/public/default/t")
    admin.get("persistent/public/default/t/stats")
    admin.write_ledgers(2)
    admin.offloading.begin()
    assert Scrape(admin).value("brk_ledgeroffloader_offload_error_total", **OF_TOPIC) == 0
    rmtree(admin.offloading.tier)
    admin.offloading.tier.write_bytes(b"no directory")
    admin.offloading.finish()
    found = Scrape(admin)
    assert found.value("brk_ledgeroffloader_offload_error_total", **OF_TOPIC) == 2
    assert found.value("brk_ledgeroffloader_write_storage_error_total", **OF_TOPIC) == 2
    assert found.value("afterglow_offload_last_failure_timestamp_seconds", **OF_TOPIC) > 1e9


def test_deletions_of_objects_are_counted_by_result(start: Callable[..., Admin]) -> None:
    admin = start(offload=True, managed_ledger_offload_threshold_in_bytes=0)
    admin.do("PUT", "persistent/public/default/t")
    admin.do("PUT", "persistent/public/default/t/subscription/s")

    def offload_and_let_go(ledgers: int, before: Callable[[], object]) -> dict[str, float]:
        admin.write_ledgers(ledgers)
        admin.offloading.begin()
        admin.offloading.finish()
        before()
        admin.do("POST", "persistent/public/default/t/subscription/s/skip_all")
        admin.service.store.trim()
        admin.offloading.begin()
        found = Scrape(admin)
        name = "brk_ledgeroffloader_delete_offload_ops_total"
        return {status: found.value(name, status=status, **OF_TOPIC) for status in ("succeed", "failed")}

    tier = admin.offloading.tier
    assert offload_and_let_go(2, before=lambda: None) == {"succeed": 2, "failed": 0}
    assert offload_and_let_go(1, before=lambda: tier.rename(tier.with_name("gone"))) == {"succeed": 2, "failed": 1}


def test_jobs_are_counted_by_duration(admin: Admin) -> None:
    jobs = JobCounters()
    admin.server.offload_jobs = jobs.counts
    for seconds in (0.05, 2.0, 1000.0):
        jobs.begun()
        jobs.ended(seconds, failed=seconds > 2)
    found = Scrape(admin)
    within = {
        sample.labels["le"]: sample.value
        for sample in found.samples
        if sample.name == "afterglow_spark_job_seconds_bucket"
    }
    assert list(within) == ["0.1", "0.3", "1.0", "3.0", "10.0", "30.0", "100.0", "300.0", "+Inf"]
    assert list(within.values()) == [1, 1, 1, 2, 2, 2, 2, 2, 3]
    assert found.value("afterglow_spark_job_seconds_sum", cluster="standalone") == 1002.05
    assert found.value("afterglow_spark_job_seconds_count", cluster="standalone") == 3


def test_lag_is_the_age_of_the_oldest_entry_outside_the_tier(
    start: Callable[..., Admin], connect: Callable[[Admin], pulsar.Client]
) -> None:
    admin = start(offload=True, managed_ledger_offload_threshold_in_bytes=0, **KEPT)
    producer = connect(admin).create_producer("t")
    began_s = time.time()
    producer.send(b"first")
    while not (found := Scrape(admin).value("afterglow_offload_lag_seconds", **OF_TOPIC)):
        pass
    assert found <= time.time() - began_s + 0.001
    admin.service.store.open("public/default/persistent/t").roll()
    admin.offloading.begin()
    admin.offloading.finish()
    assert Scrape(admin).value("afterglow_offload_lag_seconds", **OF_TOPIC) == 0


def test_segments_are_counted_by_status(start: Callable[..., Admin]) -> None:
    admin = start(offload=True, streaming_offload_enabled=True, **KEPT)
    admin.do("PUT", "persistent/public/default/t")
    admin.get("persistent/public/default/t/stats")
    admin.write_entries(3)
    admin.offloading.begin()
    found = Scrape(admin)
    assert found.labels("afterglow_segments", "status") == {"Assigned", "Failed", "Offloaded"}
    assert found.value("afterglow_segments", status="Assigned", **OF_TOPIC) == 1
    assert found.value("afterglow_segments", status="Offloaded", **OF_TOPIC) == 0
    assert found.value("afterglow_open_segment_age_seconds", **OF_TOPIC) >= 0


def test_topics_past_the_limit_share_one_series(start: Callable[..., Admin]) -> None:
    admin = start(metrics_max_topics=2)
    for number in range(5):
        admin.do("PUT", f"persistent/public/default/t{number}")
        admin.get(f"persistent/public/default/t{number}/stats")
    found = Scrape(admin)
    assert found.labels("pulsar_storage_size", "topic") == {
        "persistent://public/default/t0",
        "persistent://public/default/t1",
        "other",
    }
    assert found.value("pulsar_topics_count", cluster="standalone", namespace="other") == 3
    assert found.value("afterglow_topics_without_series", cluster="standalone") == 3


def test_without_the_topic_label_the_topics_of_a_namespace_are_summed(start: Callable[..., Admin]) -> None:
    admin = start(expose_topic_level_metrics_in_prometheus=False, **KEPT)
    for number in range(2):
        admin.do("PUT", f"persistent/public/default/t{number}")
        admin.get(f"persistent/public/default/t{number}/stats")
        admin.write_entries(1, f"public/default/persistent/t{number}")
    found = Scrape(admin)
    assert found.value("pulsar_storage_size", cluster="standalone", namespace="public/default") == 2 * ENTRY_BYTES
    assert not any({"topic", "subscription"} & set(sample.labels) for sample in found.samples)


def test_metrics_of_managed_ledgers_can_be_left_out(start: Callable[..., Admin]) -> None:
    admin = start(offload=True, expose_managed_ledger_metrics_in_prometheus=False)
    admin.do("PUT", "persistent/public/default/t")
    admin.get("persistent/public/default/t/stats")
    names = Scrape(admin).names
    assert "pulsar_storage_size" in names
    assert not {name for name in names if name.startswith(("brk_", "pulsar_ml_", "afterglow_offload_"))}


def test_names_are_escaped(admin: Admin) -> None:
    admin.do("PUT", "persistent/public/default/a%22b%0Ac")
    admin.get("persistent/public/default/a%22b%0Ac/stats")
    assert Scrape(admin).labels("pulsar_storage_size", "topic") == {'persistent://public/default/a"b\nc'}


def test_scrapes_at_a_time_all_answer_and_leave_the_loop_free(admin: Admin) -> None:
    async def scrape_many() -> list[Any]:
        return await asyncio.gather(*(asyncio.to_thread(Scrape, admin) for _ in range(8)))

    assert all("pulsar_active_connections" in found.names for found in asyncio.run(scrape_many()))


def test_only_declared_metrics_are_emitted(start: Callable[..., Admin]) -> None:
    admin = start(offload=True)
    admin.do("PUT", "persistent/public/default/t")
    admin.get("persistent/public/default/t/stats")
    assert Scrape(admin).names <= set(METRICS)


@pytest.mark.parametrize(("asks", "status"), [(True, 401), (False, 200)])
def test_a_scrape_is_authenticated_if_the_setting_says_so(
    start: Callable[..., Admin], status: int, *, asks: bool
) -> None:
    admin = start(
        authentication_enabled=True,
        authenticate_metrics_endpoint=asks,
        authentication_providers=(AuthenticationProvider.TOKEN,),
        token_secret_key="data:;base64,c2VjcmV0LW9mLWF0LWxlYXN0LTMyLWJ5dGVzLWxlbmd0aA==",
    )
    assert admin.call("GET", "/metrics").status == status
