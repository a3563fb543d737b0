"""Start of ``serve`` with a tier that is missing or does not respond."""

from __future__ import annotations

import socket
import time
import urllib.request
from typing import TYPE_CHECKING

from tests.support.served_topics import eventually
from tests.support.servers import start_moto
from tests.support.serving import serving

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.serving import Served

CURE = "create the bucket or directory, or correct the tier's address, endpoint and region"


def settings(endpoint: str, access_key: str = "a", secret_key: str = "s") -> tuple[str, ...]:
    pairs = {
        "ServiceEndpoint": endpoint,
        "Region": "us-east-1",
        "CredentialId": access_key,
        "CredentialSecret": secret_key,
    }
    return tuple(item for name, value in pairs.items() for item in ("--set", f"s3ManagedLedgerOffload{name}={value}"))


def lines(served: Served, text: str) -> list[str]:
    return [line for line in served.lines if text in line]


def is_available(served: Served, tier: str) -> float:
    with urllib.request.urlopen(f"{served.admin_url}/metrics", timeout=30) as answer:
        metrics = answer.read().decode()
    [sample] = [line for line in metrics.splitlines() if line.startswith("afterglow_tier_available{") and tier in line]
    return float(sample.split()[-1])


def test_a_missing_bucket_is_reported_at_start_with_its_fix_and_again_when_it_exists(tmp_path: Path) -> None:
    with start_moto() as store:
        options = settings(store.endpoint, store.access_key, store.secret_key)
        tier = f"s3://later at {store.endpoint}"
        with serving(tmp_path / "home", "--tier", "s3://later", *options) as served:
            eventually(lambda: bool(lines(served, "unavailable since")), lambda: served.lines, 60)
            [line] = lines(served, "unavailable since")
            assert f"the tier {tier} has been unavailable since" in line
            assert line.endswith(f"; {CURE}")
            [row] = served.admin("GET", "afterglow/tiers")
            assert (row["location"], row["available"], row["cure"]) == (tier, False, CURE)
            assert is_available(served, tier) == 0
            store.create_bucket("later")
            eventually(lambda: bool(lines(served, "is available again after")), lambda: served.lines, 30)
            assert is_available(served, tier) == 1
            assert len(lines(served, "unavailable since")) == len(lines(served, "is available again after")) == 1
            assert served.stop() == 0


def test_an_unresponsive_store_delays_neither_start_nor_shutdown(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections are accepted, and never answered
        options = settings(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with serving(tmp_path / "home", "--tier", "s3://silent", *options) as served:
            silent.settimeout(60)
            connection, _ = silent.accept()  # the probe has begun, and the server serves meanwhile
            assert [row["available"] for row in served.admin("GET", "afterglow/tiers")] == [True]
            began = time.monotonic()
            assert served.stop() == 0
            assert time.monotonic() - began < 20
            connection.close()
