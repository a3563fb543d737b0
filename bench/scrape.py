"""What a scrape of ``/metrics`` costs a broker with 1,000 open topics, and what receipts notice of it.

Receipts are timed at a fixed rate, without a scraper and with one that scrapes without a pause,
in turns: many times what any Prometheus does, so that each scrape meets some message.
"""

from __future__ import annotations

import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.support.raw_client import RawClient
from tests.support.serving import serving

from bench.broker_load import WINDOW, pace, push, sends
from bench.measure import keep

if TYPE_CHECKING:
    from collections.abc import Sequence

TOPICS = 1_000
ROUNDS = 3
RATE = 500
SENDS = 3_000
GOALS = {"receipt p99, scraped without a pause / not scraped": 5.0}
CONF = "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"


class Scraping:
    """Scrapes until it is stopped."""

    def __init__(self, admin_url: str) -> None:
        self.seconds: list[float] = []
        self.size_bytes = 0
        self._url = f"{admin_url}/metrics"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._scrape)

    def __enter__(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._scrape)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _scrape(self) -> None:
        while not self._stop.is_set():
            began = time.perf_counter()
            with urllib.request.urlopen(self._url, timeout=60) as answer:
                self.size_bytes = len(answer.read())
            self.seconds.append(time.perf_counter() - began)


def milliseconds(seconds: Sequence[float], share: float) -> float:
    return 1000 * float(np.percentile(seconds, share))


def main() -> None:
    quiet: list[float] = []
    scraped: list[float] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        conf = Path(directory) / "broker.conf"
        conf.write_text(CONF)
        with serving(Path(directory) / "home", "--conf", str(conf)) as served:
            client = RawClient(served.service_url)
            producers = [client.open_producer(f"persistent://public/default/t{n}") for n in range(TOPICS)]
            push(client, sends(producers, TOPICS, 1), WINDOW)
            scraping = Scraping(served.admin_url)
            for _ in range(ROUNDS):
                quiet += pace(client, sends(producers, SENDS, 1), RATE)
                with scraping:
                    scraped += pace(client, sends(producers, SENDS, 1), RATE)
            client.close()
    figures: dict[str, Any] = {
        "topics": TOPICS,
        "one scrape, median, ms": round(milliseconds(scraping.seconds, 50)),
        "one scrape, kB": scraping.size_bytes // 1000,
        "scrapes per second": round(1 / float(np.mean(scraping.seconds)), 1),
    }
    for share in (50, 99, 100):
        name = f"p{share}" if share < 100 else "longest"
        figures[f"receipt {name} at {RATE} msg/s, not scraped, ms"] = round(milliseconds(quiet, share), 2)
        figures[f"receipt {name} at {RATE} msg/s, scraped without a pause, ms"] = round(milliseconds(scraped, share), 2)
    ratio = milliseconds(scraped, 99) / milliseconds(quiet, 99)
    figures["receipt p99, scraped without a pause / not scraped"] = round(ratio, 2)
    keep("scrape", figures, GOALS)
