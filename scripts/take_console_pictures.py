"""Take the pictures of the console in ``docs/pictures``: a real server, real clients, a real browser.

Run it by ``make pictures``. Needs Chromium (``apt-get install chromium``); takes about five minutes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pulsar
import pulsar.schema
from playwright.sync_api import sync_playwright
from tests.support.serving import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page
    from tests.support.serving import Served

PICTURES: Final = Path(__file__).parents[1] / "docs" / "pictures"

CONF: Final = """
maxOffloadSegmentSizeInBytes=6M
maxOffloadSegmentRolloverTimeInSeconds=15
managedLedgerMaxEntriesPerLedger=2600
managedLedgerMinLedgerRolloverTimeMinutes=0
managedLedgerOffloadDeletionLagInMillis=30000
retentionCheckIntervalInSeconds=2
offloadTickIntervalMillis=200
"""

LOADS: Final = {
    "acme/shop/orders": (4096, 80),
    "acme/shop/payments": (700, 40),
    "acme/web/clicks": (220, 150),
    "acme/web/sessions": (1500, 12),
    "public/default/audit": (900, 4),
}
"""Bytes of a message, and messages per second."""
TYPED: Final = "acme/web/clicks"
"""Its values have a schema."""
PAGES: Final = ("lamps", "kettles", "bicycles", "umbrellas", "teapots")
REGIONS: Final = ("north", "south", "west")
PARTITIONED: Final = "acme/shop/payments"
FAILING: Final = "acme/shop/invoices"
"""Its tier is a directory that is not there."""


class Click(pulsar.schema.Record):  # type: ignore[misc]  # the client has no types
    """Value of a message about a click."""

    number = pulsar.schema.Long()
    customer = pulsar.schema.String()
    page = pulsar.schema.String()
    referrer = pulsar.schema.String()


CLICK_SCHEMA: Final = pulsar.schema.JsonSchema(Click)


class Producing:
    """Clients that write at a steady pace until they are stopped."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._going = threading.Event()
        self._going.set()
        self._threads: list[threading.Thread] = []

    def start(self, topic: str, size: int, per_second: float) -> None:
        """Write messages of a size at a pace."""
        schema = CLICK_SCHEMA if topic == TYPED else pulsar.schema.BytesSchema()
        producer = self._client.create_producer(topic, schema=schema, batching_enabled=False, block_if_queue_full=True)
        thread = threading.Thread(target=self._produce, args=(producer, size, per_second))
        thread.start()
        self._threads.append(thread)

    def consume(self, topic: str, name: str, per_second: float) -> None:
        """Read messages at a pace, and acknowledge them."""
        consumer = self._client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest)
        thread = threading.Thread(target=self._consume, args=(consumer, per_second))
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        """End all of them."""
        self._going.clear()
        for thread in self._threads:
            thread.join()

    def _produce(self, producer: Any, size: int, per_second: float) -> None:
        for number in self._beats(per_second):
            customer, page = f"customer-{number * 7919 % 1000}", PAGES[number % len(PAGES)]
            content: Any = f"{number:012}".encode().ljust(size, b".")
            if producer.topic().endswith(TYPED):
                content = Click(number=number, customer=customer, page=f"/{page}", referrer="/search")
            producer.send_async(
                content,
                lambda *_: None,
                partition_key=customer,
                properties={"region": REGIONS[number % len(REGIONS)], "trace": f"{number * 2654435761 % 2**32:08x}"},
            )
        producer.flush()

    def _consume(self, consumer: Any, per_second: float) -> None:
        for _ in self._beats(per_second):
            try:
                consumer.acknowledge(consumer.receive(timeout_millis=1000))
            except pulsar.Timeout:
                continue

    def _beats(self, per_second: float) -> Iterator[int]:
        begun_s, number = time.monotonic(), 0
        while self._going.is_set():
            due_s = begun_s + number / per_second
            if (wait_s := due_s - time.monotonic()) > 0:
                time.sleep(min(wait_s, 0.2))
                continue
            yield number
            number += 1


def set_up(served: Served, away: Path) -> None:
    """Namespaces, topics and policies of a small shop."""
    served.admin("PUT", "tenants/acme", {"adminRoles": [], "allowedClusters": ["standalone"]})
    for namespace in ("shop", "web"):
        served.admin("PUT", f"namespaces/acme/{namespace}")
    served.admin("PUT", f"persistent/{PARTITIONED}/partitions", 3)
    for topic in {*LOADS, FAILING} - {PARTITIONED}:
        served.admin("PUT", f"persistent/{topic}")
    served.admin(
        "POST",
        "persistent/acme/web/sessions/offloadPolicies",
        {"streamingOffloadEnabled": False, "managedLedgerOffloadThresholdInBytes": 2_000_000},
    )
    served.admin("POST", "persistent/public/default/audit/offloadPolicies", {"streamingOffloadEnabled": False})
    served.admin(
        "POST",
        f"persistent/{FAILING}/offloadPolicies",
        {
            "managedLedgerOffloadDriver": "filesystem",
            "fileSystemURI": away.as_uri(),
            "managedLedgerExtraConfigurations": {"afterglowFormat": "blocks"},
        },
    )


def wait_for_tier(served: Served) -> None:
    """Wait until half of the data is in the tier; on a machine under load the first segments take minutes."""
    deadline_s = time.monotonic() + 600
    while time.monotonic() < deadline_s:
        totals = served.admin("GET", "afterglow/topics")["totals"]
        if totals["offloaded_bytes"] > totals["size_bytes"] / 2:
            return
        time.sleep(1)


@contextmanager
def shop(seconds: float) -> Iterator[Served]:
    """A shop whose topics have been written for a while, and still are."""
    with tempfile.TemporaryDirectory(prefix="shop-") as directory:
        conf = Path(directory) / "broker.conf"
        conf.write_text(CONF)
        away = Path(directory) / "away"
        with serving(Path(directory) / "home", "--streaming", "--conf", str(conf)) as served:
            set_up(served, away)
            client = pulsar.Client(served.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
            producing = Producing(client)
            try:
                for topic, (size, per_second) in LOADS.items():
                    producing.start(topic, size, per_second)
                producing.start(FAILING, 600, 3)
                producing.consume("acme/shop/orders", "fulfilment", 78)
                producing.consume("acme/shop/orders", "analytics", 40)
                producing.consume("acme/web/clicks", "funnel", 150)
                time.sleep(seconds)
                wait_for_tier(served)
                yield served
            finally:
                producing.stop()
                client.close()


@dataclass(frozen=True, slots=True)
class Picture:
    """What is taken, and how."""

    name: str
    path: str
    """Of the page."""
    width: int
    height: int
    scheme: Literal["light", "dark"]
    seconds: float
    """How long the page loads."""
    prepare: Callable[[Page], None] = lambda _page: None

    def take(self, browser: Browser, url: str) -> None:
        """Take it: the part of the page that fits."""
        page = browser.new_page(
            viewport={"width": self.width, "height": self.height},
            color_scheme=self.scheme,
            device_scale_factor=1.5 if self.width < 500 else 1,
        )
        page.goto(url + self.path)
        page.wait_for_timeout(1000 * self.seconds)
        self.prepare(page)
        page.wait_for_timeout(2000)
        path = PICTURES / f"console-{self.name}.png"
        page.screenshot(path=path)
        print(f"{path.name}: {path.stat().st_size // 1024} KB")
        page.close()


def inspect_open_segment(page: Page) -> None:
    """Choose the newest block of the tier, which is on its way."""
    page.locator(".lane-tier [role=option]").last.click(force=True)
    page.mouse.move(0, 0)


def over_time(page: Page) -> None:
    """The same over the other axis."""
    page.get_by_role("button", name="Time").click()
    inspect_open_segment(page)


def open_first_message(page: Page) -> None:
    """Show the details of a message."""
    page.locator("button.value").nth(1).click()


CLICKS: Final = f"/console#/topic/{TYPED}"
TOPIC: Final = "/console#/topic/acme/shop/orders"
ALL: Final = (
    Picture("topic-light", TOPIC, 1320, 1000, "light", 5, inspect_open_segment),
    Picture("topic-dark", TOPIC, 1320, 1000, "dark", 5, over_time),
    Picture("overview", "/console", 1320, 740, "light", 5),
    Picture("messages", f"{CLICKS}/messages?from=earliest", 1320, 860, "light", 5, open_first_message),
    Picture("health", "/console#/health", 1320, 560, "dark", 5),
    Picture("phone", TOPIC, 375, 812, "light", 5),
    Picture("phone-dark", "/console", 375, 812, "dark", 5),
)


def main() -> int:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=75, help="How long topics are written before the pictures.")
    given = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("Chromium is not installed: apt-get install chromium", file=sys.stderr)
        return 1
    with shop(given.seconds) as served, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for picture in ALL:
            picture.take(browser, served.admin_url)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
