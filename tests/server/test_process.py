from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from afterglow.config import BrokerConfig
from afterglow.errors import ConfigError, HotLogError, MetadataUnavailable
from afterglow.metadata.address import open_metadata
from afterglow.server.process import Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIG = BrokerConfig(bind_address="127.0.0.1", broker_service_port=0)


def start_and_stop(home: Path, config: BrokerConfig = CONFIG, tier: str | None = None) -> Server:
    async def run() -> Server:
        server = await Server.start(home, config, tier=tier)
        await server.stop()
        return server

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("config", "tier", "message"),
    [
        (CONFIG, "memory://", "--tier memory://"),
        (CONFIG, "nonsense", "invalid tier address 'nonsense'"),
        (
            BrokerConfig(bind_address="127.0.0.1", broker_service_port=0, spark_master="local[x]"),
            None,
            "--master local",
        ),
    ],
)
def test_a_failed_start_releases_the_home(tmp_path: Path, config: BrokerConfig, tier: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        start_and_stop(tmp_path / "home", config, tier)
    start_and_stop(tmp_path / "home")


def test_the_server_gives_its_metadata_store_the_timeouts_of_its_settings(tmp_path: Path) -> None:
    config = replace(CONFIG, metadata_store_url="zk://127.0.0.1:1", metadata_store_operation_timeout_seconds=1)
    with pytest.raises(MetadataUnavailable, match=r"within 1 s; .* metadataStoreOperationTimeoutSeconds"):
        start_and_stop(tmp_path / "home", config)


def test_a_new_hot_log_is_never_used_with_the_metadata_of_a_lost_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    start_and_stop(home)
    before = nodes(home)
    shutil.rmtree(home / "hot")
    with pytest.raises(HotLogError, match=r"the metadata belongs to hot log .*--hot skip"):
        start_and_stop(home)
    assert nodes(home) == before


def nodes(home: Path) -> list[tuple[str, bytes]]:
    """All nodes of the metadata, with their values."""
    store = open_metadata(f"sqlite:{home / 'metadata.db'}", CONFIG)

    def walk(path: str) -> Iterator[tuple[str, bytes]]:
        found = store.get(path) if path != "/" else None
        if found is not None:
            yield path, found.value
        for name in store.children(path):
            yield from walk(f"{path.rstrip('/')}/{name}")

    try:
        return list(walk("/"))
    finally:
        store.close()


def test_the_default_tier_is_in_the_home(tmp_path: Path) -> None:
    server = start_and_stop(tmp_path / "home")
    assert server.tiering.location.url == (tmp_path / "home/tier").as_uri()
    assert server.tiering.sources.counts("public/default/persistent/t") is None


def test_a_changed_policy_applies_to_offload_at_once(tmp_path: Path) -> None:
    async def run() -> tuple[int, int]:
        server = await Server.start(tmp_path / "home", CONFIG)
        try:
            name = "public/default/persistent/t"
            before = server.tiering.policies.of(name).managed_ledger_offload_threshold_in_bytes
            namespace = server.service.catalog.namespaces("public")[0]
            await server.service.update_policies(namespace, lambda found: {**found, "offload_threshold": 77})
            return before, server.tiering.policies.of(name).managed_ledger_offload_threshold_in_bytes
        finally:
            await server.stop()

    assert asyncio.run(run()) == (-1, 77)


def test_the_retention_of_an_unopened_topic_follows_its_policies(tmp_path: Path) -> None:
    """Offload opens topics without the broker, whose own setting keeps nothing."""

    async def run() -> tuple[int, int]:
        server = await Server.start(tmp_path / "home", CONFIG)
        try:
            service = server.service
            namespace = service.catalog.namespaces("public")[0]
            none = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
            keep = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
            await service.update_policies(namespace, lambda found: {**found, "retention_policies": keep})
            ledger = await service.blocking(service.store.open, "public/default/persistent/t")
            ended = asyncio.get_running_loop().create_future()
            ledger.append([bytes(100)], 1, ended.set_result)
            await ended
            await service.blocking(ledger.roll)
            await service.blocking(service.store.trim)
            kept = ledger.layout.total_entries
            await service.update_policies(namespace, lambda _found: {"retention_policies": none})
            await service.blocking(service.store.trim)
            return kept, ledger.layout.total_entries
        finally:
            await server.stop()

    assert asyncio.run(run()) == (1, 0)
