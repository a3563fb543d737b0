"""The console in a real browser, on a real server with the stock client."""

from __future__ import annotations

import json
import re
import shutil
import time
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from tests.admin.test_access import SECRET, SECURE
from tests.admin.test_browse_routes import metadata as message
from tests.support.axe import axe_findings
from tests.support.serving import serving

from afterglow.config.choices import ReadPriority
from afterglow.format.entry import encode_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Locator, Page, Route
    from tests.admin.conftest import Admin
    from tests.support.serving import Served

pytestmark = pytest.mark.pulsar

pulsar = pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright_api.expect

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
CONF = """
maxOffloadSegmentRolloverTimeInSeconds=3600
managedLedgerMaxEntriesPerLedger=20
managedLedgerMinLedgerRolloverTimeMinutes=0
offloadTickIntervalMillis=100
"""
TIER_FIRST: dict[str, Any] = {
    "managed_ledger_offloaded_read_priority": ReadPriority.TIERED_STORAGE_FIRST,
    "managed_ledger_cache_size_mb": 0,
    "default_retention_size_in_mb": -1,
    "default_retention_time_in_minutes": -1,
}
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 812}
DASH = "\N{EN DASH}"
WAIT_MS = 60_000
"""Spark may still start."""
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with playwright_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages, and checks afterwards that none asked elsewhere or complained, but for refusals that were wanted."""
    contexts, pages, complaints, hosts = [], [], list[str](), set[str]()

    def make(url: str, path: str = "", *, size: dict[str, int] = WIDE, scheme: Any = "light") -> Page:
        context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
        contexts.append(context)
        page: Page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda said: complaints.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: hosts.add(re.sub(r"^(\w+://[^/]+).*", r"\1", request.url)))
        pages.append(url)
        page.goto(f"{url}/console{path}")
        return page

    yield make
    for context in contexts:
        context.close()
    assert hosts <= set(pages)
    # The browser notes every answer that says no, and those that were made to fail.
    assert [said for said in complaints if not said.startswith("Failed to load resource")] == []


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("console")
    (home / "broker.conf").write_text(CONF)
    with serving(home / "home", "--streaming", "--conf", str(home / "broker.conf")) as served:
        yield served


class Shop:
    """A topic that a stock client writes."""

    def __init__(self, served: Served, client: Any, name: str) -> None:
        self.served, self.name, self.path = served, name, f"persistent/public/default/{name}"
        self.address = f"#/topic/public/default/{name}"
        self._producer = client.create_producer(name, batching_enabled=False)
        self.consumer = client.subscribe(name, "fulfilment", initial_position=pulsar.InitialPosition.Earliest)

    def write(self, count: int) -> None:
        for _ in range(count):
            self._producer.send(bytes(1000))

    def send(self, value: bytes, key: str) -> None:
        self._producer.send(value, partition_key=key)

    def write_ledger(self) -> None:
        """Write until a ledger is closed."""
        before = len(self._closed())
        while len(self._closed()) == before:
            self.write(5)

    def _closed(self) -> list[Any]:
        return [row for row in self.get("log")["ledgers"] if row["status"] != "open"]

    def acknowledge(self, count: int) -> None:
        for _ in range(count):
            self.consumer.acknowledge(self.consumer.receive(timeout_millis=20_000))

    def get(self, below: str) -> Any:
        return self.served.admin("GET", f"{self.path}/{below}")


@pytest.fixture
def shop(served: Served, request: pytest.FixtureRequest) -> Iterator[Shop]:
    client = pulsar.Client(served.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield Shop(served, client, re.sub(r"\W+", "-", request.node.name)[-60:])
    client.close()


def until(found: Callable[[], Any]) -> Any:
    """What is found once something is; a page is updated within seconds."""
    deadline = time.monotonic() + WAIT_MS / 1000
    while not (result := found()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return result


def blocks(page: Page, lane: str) -> Locator:
    return page.locator(f".lane-{lane} [role=option]")


# --- on a real server -------------------------------------------------------------------------------------------------


def test_the_overview_shows_a_topic_and_follows_it(served: Served, shop: Shop, open_page: Callable[..., Page]) -> None:
    shop.write(5)
    page = open_page(served.admin_url)
    row = page.locator("tr", has=page.get_by_role("link", name=shop.name))
    expect(row).to_contain_text("Streaming")
    expect(row).to_contain_text("5 entries")
    expect(row).to_contain_text("1 subscription")
    shop.write(7)
    expect(row).to_contain_text("12 entries", timeout=WAIT_MS)
    page.get_by_role("searchbox").fill("no such topic")
    expect(page.get_by_text("No topic has")).to_be_visible()
    page.get_by_role("searchbox").fill(shop.name[-12:])
    page.get_by_role("link", name=shop.name).click()
    expect(page.get_by_role("heading", name=shop.name)).to_be_visible()


def test_lanes_are_drawn_and_grow_while_the_topic_is_written(
    served: Served, shop: Shop, open_page: Callable[..., Page]
) -> None:
    shop.write(10)
    page = open_page(served.admin_url, shop.address)
    expect(blocks(page, "hot")).to_have_count(1)
    expect(blocks(page, "hot").first).to_have_attribute("aria-label", re.compile("Open, being written, 10 entries"))
    shop.write_ledger()
    shop.write(1)
    expect(blocks(page, "hot")).to_have_count(2, timeout=WAIT_MS)
    expect(blocks(page, "hot").first).to_have_attribute("aria-label", re.compile("Closed, hot"))
    expect(blocks(page, "hot").last).to_have_attribute("aria-label", re.compile("Open, being written"))
    expect(blocks(page, "tier").first).to_have_attribute("aria-label", re.compile("Being offloaded"), timeout=WAIT_MS)
    expect(page.locator(".flag text")).to_have_text("fulfilment")
    # over time
    page.get_by_role("button", name="Time").click()
    expect(page.locator(".ticks text").first).to_have_text(re.compile(r"\d\d:\d\d"))
    expect(blocks(page, "hot")).to_have_count(2)
    # plots
    expect(page.locator(".chart").first.locator("path.line-0")).to_have_attribute(
        "d", re.compile("M.*L"), timeout=WAIT_MS
    )


def test_details_are_shown_on_hover_on_focus_and_on_tap(
    served: Served, shop: Shop, open_page: Callable[..., Page]
) -> None:
    shop.write_ledger()
    shop.write(1)
    page = open_page(served.admin_url, shop.address)
    details = page.locator(".inspector")
    expect(blocks(page, "hot")).to_have_count(2)
    first, last = (row["ledger_id"] for row in shop.get("log")["ledgers"])
    entries = shop.get("log")["ledgers"][0]["entries"]
    expect(details).to_contain_text(f"Ledger {last}")
    blocks(page, "hot").first.hover()
    expect(details).to_contain_text(f"Ledger {first}")
    expect(details).to_contain_text(f"{first}:0 {DASH} {first}:{entries - 1}")
    assert shop.get("explain")[0]["sentence"].split(".")[0] in details.inner_text()
    page.mouse.move(0, 0)
    expect(details).to_contain_text(f"Ledger {last}")
    blocks(page, "hot").last.focus()
    page.keyboard.press("ArrowLeft")
    expect(details).to_contain_text(f"Ledger {first}")
    page.keyboard.press("ArrowDown")
    expect(details).to_contain_text("Segment")
    page.locator(".flag text").click()
    expect(details).to_contain_text("Acknowledged up to")


def test_an_offload_is_triggered(served: Served, shop: Shop, open_page: Callable[..., Page]) -> None:
    shop.write(8)
    page = open_page(served.admin_url, shop.address)
    page.get_by_role("button", name="Offload…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("are not in the tier yet")
    dialog.get_by_role("button", name="Offload").click()
    expect(page.locator(".toast")).to_contain_text("Offload has finished", timeout=WAIT_MS)
    expect(blocks(page, "tier").first).to_have_attribute("aria-label", re.compile("In the tier.* 8 entries"))
    assert [row["status"] for row in shop.get("segments")] == ["Offloaded"]
    blocks(page, "tier").first.hover()
    expect(page.locator(".inspector")).to_contain_text(shop.get("segments")[0]["key"])


def test_whole_ledgers_are_offloaded_except_those_to_keep(
    served: Served, shop: Shop, open_page: Callable[..., Page]
) -> None:
    served.admin("POST", f"{shop.path}/offloadPolicies", {"streamingOffloadEnabled": False})
    for _ in range(3):
        shop.write_ledger()
    shop.write(1)
    page = open_page(served.admin_url, shop.address)
    expect(blocks(page, "hot")).to_have_count(4)
    newest = shop.get("log")["ledgers"][-2:]
    page.get_by_role("button", name="Offload…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("3 ledgers")
    dialog.get_by_label("All but the newest").check()
    expect(dialog).to_contain_text("Nothing to offload")
    expect(dialog.get_by_role("button", name="Offload")).to_be_disabled()
    dialog.get_by_label("Size to keep").fill(str(sum(row["bytes"] for row in newest)))
    expect(dialog).to_contain_text("2 ledgers")
    dialog.get_by_role("button", name="Offload").click()
    expect(page.locator(".toast")).to_contain_text("Offload has finished", timeout=WAIT_MS)
    expect(blocks(page, "tier")).to_have_count(2)
    assert [row["offloaded"] for row in shop.get("internalStats")["ledgers"]] == [True, True, False, False]


def test_a_policy_is_changed_and_removed_in_the_page(
    served: Served, shop: Shop, open_page: Callable[..., Page]
) -> None:
    page = open_page(served.admin_url, shop.address)
    row = page.locator(".policy > div", has_text="Segment size")
    expect(row).to_contain_text("64 MiB")
    expect(row).to_contain_text("from the broker")

    def change(value: str, said: str) -> None:
        page.get_by_role("button", name="Change…").click()
        page.get_by_label("Segment size").fill(value)
        expect(page.get_by_role("dialog")).to_contain_text(said)
        page.get_by_role("button", name="Apply 1 change").click()
        expect(page.get_by_role("dialog")).to_have_count(0)

    change("32 MiB", "64 MiB → 32 MiB")
    expect(row).to_contain_text("32 MiB")
    expect(row).to_contain_text("from this topic")
    assert shop.get("offloadPolicies") == {"maxSizePerOffloadSegmentMbytes": 32}
    change("", "32 MiB → inherited")
    expect(row).to_contain_text("from the broker")
    assert shop.get("offloadPolicies") is None


def test_a_refusal_shows_the_brokers_reason(served: Served, shop: Shop, open_page: Callable[..., Page]) -> None:
    page = open_page(served.admin_url, shop.address)
    page.get_by_role("button", name="Change…").click()
    page.get_by_label("Segment size").fill("lots")
    expect(page.get_by_role("dialog")).to_contain_text("is not a valid value")
    expect(page.get_by_role("button", name="Apply")).to_be_disabled()
    page.get_by_label("Segment size").fill("0")
    page.get_by_role("button", name="Apply 1 change").click()
    reason = page.locator("#problem-maxOffloadSegmentSizeInBytes")
    expect(reason).to_contain_text("maxOffloadSegmentSizeInBytes")
    expect(page.get_by_label("Segment size")).to_have_attribute("aria-invalid", "true")
    assert shop.get("offloadPolicies") is None


def test_a_subscription_is_reset_in_the_page(served: Served, shop: Shop, open_page: Callable[..., Page]) -> None:
    shop.write(10)
    shop.acknowledge(10)
    until(lambda: shop.get("stats")["subscriptions"]["fulfilment"]["msgBacklog"] == 0)
    page = open_page(served.admin_url, shop.address)

    def seek(*, choose: str, fill: str | None = None, said: str) -> None:
        page.get_by_role("button", name="Seek fulfilment").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("radio", name=choose).check()
        if fill is not None:
            dialog.get_by_label("Position", exact=True).fill(fill)
        expect(dialog).to_contain_text(said)
        dialog.get_by_role("button", name="Seek").click()
        expect(dialog).to_have_count(0)

    def backlog() -> int:
        return int(shop.get("log")["cursors"][0]["backlog"])

    ledger = shop.get("log")["ledgers"][0]["ledger_id"]
    shop.consumer.close()
    seek(choose="Earliest", said="10 entries")
    assert backlog() == 10
    seek(choose="A position", fill=f"{ledger}:6", said="4 entries to the end")
    assert backlog() == 4
    seek(choose="Latest", said="skips its backlog")
    assert backlog() == 0
    seek(choose="The first message at or after", said="Everything written from")
    assert backlog() == 10


@pytest.mark.parametrize(("size", "scheme"), [(PHONE, "light"), (PHONE, "dark"), (WIDE, "dark")])
def test_the_page_fits_a_phone_and_the_dark_theme(
    served: Served, shop: Shop, open_page: Callable[..., Page], size: dict[str, int], scheme: str
) -> None:
    shop.write(25)
    page = open_page(served.admin_url, shop.address, size=size, scheme=scheme)
    expect(blocks(page, "hot").first).to_be_visible()
    for path in (shop.address, "#/"):
        page.evaluate(f"location.hash = '{path}'")
        expect(page.locator(".figure-value").first).not_to_have_text(DASH)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    lightness = "Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"
    assert (page.evaluate(lightness) < 60) == (scheme == "dark")
    page.locator("#theme").click()
    assert (page.evaluate(lightness) < 60) == (scheme != "dark")
    page.reload()
    expect(page.locator("table.topics")).to_be_visible()
    assert (page.evaluate(lightness) < 60) == (scheme != "dark")


def test_a_partitioned_topic_is_one_row_and_shows_its_partitions(
    served: Served, open_page: Callable[..., Page]
) -> None:
    served.admin("PUT", "persistent/public/default/parts/partitions", 2)
    served.admin("PUT", "persistent/public/default/parts/subscription/s", "latest")
    page = open_page(served.admin_url)
    page.get_by_role("searchbox").fill("parts")
    expect(page.locator("table.topics tbody tr")).to_have_count(1)
    expect(page.locator("table.topics tbody tr")).to_contain_text("2 partitions")
    page.get_by_role("link", name="parts").click()
    expect(page.get_by_role("link", name="parts-partition-1")).to_be_visible()
    page.get_by_role("button", name="Seek s").click()
    page.get_by_role("radio", name="Earliest").check()
    page.get_by_role("dialog").get_by_role("button", name="Seek").click()
    expect(page.locator(".toast")).to_contain_text("was reset")
    page.get_by_role("link", name="parts-partition-1").click()
    expect(page.get_by_text("It has the policies of public/default/parts")).to_be_visible()


def test_messages_are_browsed_searched_and_linked(served: Served, shop: Shop, open_page: Callable[..., Page]) -> None:
    for number in range(60):
        shop.send(json.dumps({"number": number}).encode(), f"key-{number}")
    page = open_page(served.admin_url, f"{shop.address}/messages")
    rows = page.locator("button.value")
    expect(rows).to_have_count(50)
    expect(rows.last).to_contain_text('"number": 59')
    page.get_by_role("button", name="Older").click()
    expect(rows).to_have_count(10)
    expect(rows.first).to_contain_text('"number": 0')
    expect(page.get_by_role("button", name="Older")).to_be_disabled()
    page.get_by_label("Text that messages contain").fill("KEY-42")
    page.get_by_label("Where to begin").select_option("earliest")
    page.get_by_role("button", name="Show").click()
    expect(rows).to_have_count(1)
    rows.first.click()
    expect(page.locator(".message")).to_contain_text("Sequence id")
    expect(page.locator(".message pre")).to_have_text('{\n  "number": 42\n}')
    link = page.locator("table.messages th a").first
    at = link.inner_text()
    link.click()
    expect(page.get_by_label("Position", exact=True)).to_have_value(at)
    expect(rows).to_have_count(18)
    expect(page.locator("table.messages th a").first).to_have_text(at)
    page.get_by_label("Position", exact=True).fill("nowhere")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("Enter a position as LEDGER:ENTRY")).to_be_visible()


def test_a_message_shows_the_tier_that_served_it(start: Callable[..., Admin], open_page: Callable[..., Page]) -> None:
    admin = start(offload=True, **TIER_FIRST)
    admin.do("PUT", "persistent/public/default/t")
    admin.write(encode_entry(message(partition_key="<b>"), b"<img src=x onerror=alert(1)>"))
    admin.service.store.open("public/default/persistent/t", create=False).roll()
    admin.do("PUT", "persistent/public/default/t/offload", "latest")
    for _ in range(2):
        admin.offloading.begin()
        admin.offloading.finish()
    page = open_page(f"http://127.0.0.1:{admin.port}", "#/topic/public/default/t/messages")
    expect(page.locator("table.messages .badge")).to_have_text("Tier")
    page.locator("button.value").click()
    expect(page.locator(".message pre")).to_have_text("<img src=x onerror=alert(1)>")
    assert page.locator("main img").count() == 0


def test_clients_and_their_subscriptions_are_shown_and_skipped(
    served: Served, shop: Shop, open_page: Callable[..., Page]
) -> None:
    shop.write(5)
    page = open_page(served.admin_url, f"{shop.address}/clients")
    tables = page.locator("table.cards")
    expect(tables.nth(0)).to_contain_text("Shared")
    expect(tables.nth(0)).to_contain_text("127.0.0.1")
    expect(tables.nth(1)).to_contain_text("fulfilment")
    page.get_by_role("button", name="Skip fulfilment").click()
    page.get_by_label("Number of entries").fill("2")
    expect(page.get_by_role("dialog")).to_contain_text("2 entries of its backlog of 5")
    page.get_by_role("dialog").get_by_role("button", name="Skip").click()
    until(lambda: shop.get("stats")["subscriptions"]["fulfilment"]["msgBacklog"] == 3)


def test_a_topic_is_created_and_deleted_in_the_page(served: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(served.admin_url)
    page.get_by_role("button", name="Create topic…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Create")).to_be_disabled()
    dialog.get_by_label("Name").fill("made here")
    expect(dialog).to_contain_text("Enter a name")
    dialog.get_by_label("Name").fill("made-here")
    dialog.get_by_label("Partitions").fill("2")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="made-here", exact=True)).to_be_visible()
    assert served.admin("GET", "persistent/public/default/made-here/partitions")["partitions"] == 2
    page.get_by_role("button", name="Delete…").click()
    expect(dialog.get_by_role("button", name="Delete")).to_be_disabled()
    dialog.get_by_label("Type made-here to confirm").fill("made-here")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Topics", exact=True)).to_be_attached()
    assert "persistent://public/default/made-here" not in served.admin("GET", "persistent/public/default/partitioned")


def test_a_schema_and_the_health_are_shown(start: Callable[..., Admin], open_page: Callable[..., Page]) -> None:
    admin = start(offload=True)
    admin.do("PUT", "persistent/public/default/t")
    body = {"type": "JSON", "schema": '{"type":"record","name":"R","fields":[]}', "properties": {}}
    assert admin.call("POST", "schemas/public/default/t/schema", body).status == 200
    page = open_page(f"http://127.0.0.1:{admin.port}", "#/topic/public/default/t/schema")
    expect(page.locator("details")).to_contain_text('"name": "R"')
    page.get_by_role("link", name="Health").click()
    expect(page.locator(".figures")).to_contain_text("Healthy")
    outage = {"location": "s3://b", "available": False, "since_ms": 1, "error": "refused", "cure": "start it"}
    page.route("**/afterglow/tiers", lambda route: route.fulfill(json=[outage]))
    expect(page.locator("table.cards")).to_contain_text("refused; start it", timeout=WAIT_MS)
    expect(page.locator(".figures")).to_contain_text("a tier is unavailable")


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (WIDE, "dark"), (PHONE, "light")])
def test_axe_finds_nothing_on_any_page(
    served: Served, shop: Shop, open_page: Callable[..., Page], size: dict[str, int], scheme: str
) -> None:
    shop.write(25)
    page = open_page(served.admin_url, size=size, scheme=scheme)
    findings: dict[str, list[str]] = {}
    seen = {
        "#/": "table.topics tbody tr",
        "#/health": ".figures",
        shop.address: ".lane-hot [role=option]",
        f"{shop.address}/messages": "button.value",
        f"{shop.address}/clients": "table.cards tbody tr",
        f"{shop.address}/schema": ".versions p",
        "#/topic/public/default/none": "h1:has-text('Not found')",
    }
    for path, what in seen.items():
        page.evaluate(f"location.hash = '{path}'")
        page.locator(what).first.wait_for(state="attached")
        assert page.locator("h1").count() == 1, path
        if path.endswith("/messages"):
            page.locator("button.value").first.click()
        if found := axe_findings(page):
            findings[path] = found
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    page.evaluate(f"location.hash = '{shop.address}'")
    page.get_by_role("button", name="Change…").click()
    page.get_by_label("Segment size").fill("lots")
    if found := axe_findings(page):
        findings["dialog"] = found
    assert findings == {}


# --- what seldom happens ----------------------------------------------------------------------------------------------


def test_the_page_stays_when_the_broker_does_not_answer(
    served: Served, shop: Shop, open_page: Callable[..., Page]
) -> None:
    shop.write(3)
    page = open_page(served.admin_url, shop.address)
    expect(blocks(page, "hot")).to_have_count(1)
    page.route("**/admin/v2/**", lambda route: route.abort())
    banner = page.locator("#banner")
    expect(banner).to_contain_text("The broker does not answer", timeout=WAIT_MS)
    expect(blocks(page, "hot")).to_have_count(1)
    page.unroute("**/admin/v2/**")
    banner.get_by_role("button", name="Try now").click()
    expect(banner).to_be_hidden()
    expect(page.locator("#live")).to_have_text("Live")


def test_a_missing_topic_is_answered_with_404(served: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(served.admin_url, "#/topic/public/default/none")
    expect(page.locator("main")).to_contain_text("does not exist")
    expect(page.locator("#banner")).to_be_hidden()
    assert page.get_by_text("does not exist").count() == 1
    page.get_by_role("link", name="All topics").click()
    expect(page.get_by_role("searchbox")).to_be_visible()


def test_the_page_asks_for_a_token_if_the_broker_needs_one(
    start: Callable[..., Admin], open_page: Callable[..., Page]
) -> None:
    admin = start(**SECURE)
    page = open_page(f"http://127.0.0.1:{admin.port}")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.locator("#banner")).to_contain_text("token")
    page.get_by_role("button", name="Try now").click()
    dialog.get_by_label("Token").fill(jwt.encode({"sub": "someone"}, SECRET, "HS256"))
    dialog.get_by_role("button", name="Use this token").click()
    expect(page.get_by_text("There are no topics yet")).to_be_visible()
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 1, ""]
    page.get_by_role("button", name="Remove token").click()
    expect(page.get_by_role("dialog")).to_contain_text("token")


def test_markup_in_names_is_text(start: Callable[..., Admin], open_page: Callable[..., Page]) -> None:
    admin = start()
    admin.do("PUT", "persistent/public/default/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    page = open_page(f"http://127.0.0.1:{admin.port}")
    page.get_by_role("link", name="<img src=x onerror=alert(1)>").click()
    expect(page.get_by_role("heading", name="<img src=x onerror=alert(1)>")).to_be_visible()
    assert page.locator("main img").count() == 0


def test_a_thousand_topics_are_paged(start: Callable[..., Admin], open_page: Callable[..., Page]) -> None:
    admin = start()
    for index in range(1000):
        admin.service.store.open(f"public/default/persistent/t-{index:04}")
    page = open_page(f"http://127.0.0.1:{admin.port}")
    rows = page.locator("table.topics tbody tr")
    expect(rows).to_have_count(50)
    expect(page.locator(".tools")).to_contain_text(f"1{DASH}50 of 1,000 topics")
    page.get_by_role("button", name="Next").click()
    expect(rows.first).to_contain_text("t-0050")
    page.get_by_role("searchbox").fill("t-0987")
    expect(rows).to_have_count(1)
    page.get_by_role("searchbox").fill("")
    page.get_by_role("columnheader", name="Topic").get_by_role("button").click()
    expect(rows.first).to_contain_text("t-0999")


def test_thousands_of_ledgers_are_drawn_together(served: Served, shop: Shop, open_page: Callable[..., Page]) -> None:
    shop.write(1)
    log = shop.get("log")
    [ledger] = log["ledgers"]
    many = 5000
    log["entries"] = many * 10
    log["ledgers"] = [
        {**ledger, "ledger_id": at, "first_index": at * 10, "entries": 10, "status": "closed"} for at in range(many)
    ]
    log["ledgers"][-1]["status"] = "open"

    def answer(route: Route) -> None:
        route.fulfill(body=json.dumps(log), content_type="application/json")

    page = open_page(served.admin_url)
    page.route("**/log*", answer)
    page.evaluate(f"location.hash = '{shop.address}'")
    expect(blocks(page, "hot").last).to_have_attribute("aria-label", re.compile("ledger"))
    assert 20 < blocks(page, "hot").count() < 400
    page.get_by_label("Part of the log that is shown").select_option("0.01")
    expect(blocks(page, "hot").last).to_have_attribute("aria-label", re.compile(f"Ledger {many - 1}, Open"))
