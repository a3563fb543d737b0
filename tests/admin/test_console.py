"""The console's files, and that every call and field that they ask for is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hatchling.builders.wheel import WheelBuilder

from afterglow.admin.app import ALL_RESOURCES
from afterglow.admin.console import FILES
from afterglow.offload.explain import LedgerState
from afterglow.offload.segments.listing import SegmentStatus
from afterglow.pipeline.metrics.overview import OffloadMode
from afterglow.policy.offload_json import POLICY_SETTINGS, read_checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.admin.conftest import Admin

ROOT = Path(__file__).parents[2]
SCRIPTS = {name: file.body.decode() for name, file in FILES.items() if name.endswith(".js")}
ALL_SCRIPTS = "\n".join(SCRIPTS.values())
PAGE = FILES["index.html"].body.decode()
STYLE = FILES["console.css"].body.decode()
TOPIC = "persistent/public/default/t"


def keys(value: Any) -> set[str]:
    """Every key of an answer, however deep."""
    if isinstance(value, dict):
        return set(value).union(*map(keys, value.values()))
    return set().union(*map(keys, value)) if isinstance(value, list) else set()


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/console", "/console/", "/console/main.js", "/console/console.css", "/console/icon.svg"]
)
def test_files_have_a_strict_content_security_policy(shared: Admin, path: str) -> None:
    answer = shared.call("GET", path)
    assert answer.status == 200
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert policy["frame-ancestors"] == "'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    kind = {"console": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert answer.headers["content-type"].split(";")[0] == kind[re.split(r"[/.]", path.rstrip("/"))[-1]]


def test_the_root_leads_to_the_console(shared: Admin) -> None:
    answer = shared.call("GET", "/")
    assert (answer.status, answer.headers["location"]) == (307, "/console")


def test_a_file_that_the_browser_has_is_not_sent_again(shared: Admin) -> None:
    tag = shared.call("GET", "/console/main.js").headers["etag"]
    same = shared.call("GET", "/console/main.js", headers={"If-None-Match": f'"other", W/{tag}'})
    assert (same.status, same.body, same.headers["etag"]) == (304, b"", tag)
    assert "content-security-policy" in same.headers
    assert shared.call("GET", "/console/main.js", headers={"If-None-Match": '"other"'}).status == 200


@pytest.mark.parametrize("name", ["nothing.js", "index.html", "..%2F__init__.py", "%2e%2e"])
def test_nothing_but_the_files_is_served(shared: Admin, name: str) -> None:
    assert "/console" in shared.refused(404, "GET", f"/console/{name}")


def test_the_page_needs_no_token_and_the_calls_do(start: Callable[..., Admin]) -> None:
    from tests.admin.test_access import SECURE

    admin = start(**SECURE)
    assert admin.call("GET", "/console").status == 200
    assert admin.call("GET", "/console/main.js").status == 200
    assert admin.call("GET", "afterglow/topics").status == 401
    assert admin.call("GET", f"{TOPIC}/log").status == 401


def test_every_file_that_is_asked_for_is_there_and_every_file_is_asked_for() -> None:
    asked = set(re.findall(r'(?:src|href)="/console/([^"]+)"', PAGE))
    asked |= set(re.findall(r'from "\./([^"]+)"', ALL_SCRIPTS))
    assert asked == set(FILES) - {"index.html"}


def test_the_page_has_no_external_and_no_inline_content() -> None:
    for name, text in {**SCRIPTS, "page": PAGE, "style": STYLE}.items():
        addresses = set(re.findall(r"\w+://[^\s\"'`]+", text)) - {"http://www.w3.org/2000/svg"}
        assert all(found.startswith("persistent://") for found in addresses), (name, addresses)
    assert re.findall(r"<script(?![^>]*src=)|\son\w+=|\sstyle=|<style", PAGE) == []
    # Names and messages become text, never markup.
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", ALL_SCRIPTS) == []


def test_every_imported_name_is_exported() -> None:
    for name, text in SCRIPTS.items():
        for names, source in re.findall(r'import \{ ([^}]+) \} from "\./([^"]+)"', text):
            for brought in names.split(", "):
                given = rf"export (?:async )?(?:function|const|class|let) {brought}\b"
                assert re.search(given, SCRIPTS[source]), (name, brought, source)
                assert len(re.findall(rf"\b{brought}\b", text)) > 1, (name, brought, "is not used")


def test_the_files_are_in_the_wheel() -> None:
    packed = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {f"afterglow/admin/console/page/{name}" for name in FILES} <= packed


@pytest.mark.parametrize(
    ("text", "ground"),
    [
        *(("ink", ground) for ground in ("paper", "card", "sunk", "mist")),
        *(("soft", ground) for ground in ("paper", "card", "sunk")),
        *(("dusk", "card"), ("ember", "card"), ("alarm", "alarm-soft"), ("card", "ink")),
        *(("on-ember", "ember-fill"), ("on-sand", "sand"), ("on-dusk", "dusk-fill"), ("on-dusk", "alarm-fill")),
    ],
)
def test_text_has_enough_contrast_in_both_themes(text: str, ground: str) -> None:
    colours = {
        name: (day, night) for name, day, night in re.findall(r"--([\w-]+): light-dark\(#(\w{6}), #(\w{6})\);", STYLE)
    }
    for one, other in zip(colours[text], colours[ground], strict=True):
        bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, (one, other)


def luminance(colour: str) -> float:
    """As WCAG 2 has it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


# --- what they ask for ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the console is answered, of a topic in segments, in a ledger's object and in the hot log."""
    from tests.admin.conftest import running

    with running(tmp_path_factory.mktemp("console"), offload=True, default_retention_size_in_mb=-1) as admin:
        admin.do("PUT", TOPIC)
        admin.do("PUT", f"{TOPIC}/subscription/s", "earliest")
        admin.do("PUT", "persistent/public/default/p/partitions", 2)
        ledgers = admin.write_ledgers(2)
        offload(admin, {"ledgerId": ledgers[1], "entryId": 0})
        admin.do("POST", f"{TOPIC}/offloadPolicies", {"streamingOffloadEnabled": True})
        admin.write_entries(3)
        offload(admin, "latest")
        admin.write_entries(2)
        # begun, and not run
        admin.offloading.begin()
        found = {
            name: admin.get(f"{TOPIC}/{name}")
            for name in ("log", "policy", "offload", "offloadPolicies", "partitions", "subscriptions", "explain")
        }
        found["tail"] = admin.get(f"{TOPIC}/log?from={ledgers[1]}")
        found["bad"] = [admin.call("GET", f"{TOPIC}/log?from={given}").status for given in ("x", "-1", "9" * 20)]
        found["partitioned"] = admin.call("GET", "persistent/public/default/p/log").status
        found["topics"] = admin.get("afterglow/topics")
        found["tiers"] = admin.get("afterglow/tiers")
        found["health"] = admin.get("afterglow/health")
        found["messages"] = admin.get(f"{TOPIC}/messages")
        admin.run(admin.process.history.sample())
        found["history"] = admin.get("afterglow/history")
        found["ledgers"] = ledgers
        return found


def offload(admin: Admin, before: object) -> None:
    admin.do("PUT", f"{TOPIC}/offload", before)
    for _ in range(2):
        admin.offloading.begin()
        admin.offloading.finish()
    assert admin.get(f"{TOPIC}/offload")["status"] == "SUCCESS"


def test_every_field_that_the_scripts_name_is_answered(answers: dict[str, Any]) -> None:
    named = set(re.findall(r"\.([a-z]+(?:_[a-z]+)+)\b", ALL_SCRIPTS))
    assert len(named) > 20
    assert named - keys(answers) == set()
    for words in (
        {"log": "ledgers objects cursors entries terminated", "topics": "topics totals total matching failing"},
        {"offload": "status lastError", "partitions": "partitions"},
    ):
        for name, fields in words.items():
            assert set(fields.split()) <= set(answers[name]), name
    assert set(answers["policy"][0]) == {"name", "value", "origin"}


def test_every_path_that_the_scripts_call_is_served() -> None:
    served = {resource.path.rpartition("/")[2] for resources in ALL_RESOURCES for resource in resources}
    below = set(re.findall(r'topicPath\([\w.]+, "(\w+)"', ALL_SCRIPTS))
    assert {"log", "offload", "policy", "offloadPolicies", "partitions", "subscriptions", "subscription"} < below
    assert {"messages", "history"} < below
    of_process = {"history"}
    assert below - {"subscription"} <= served | of_process
    moves = set(re.findall(r"\$\{path\}/(\w+)", ALL_SCRIPTS))
    assert moves == {"resetcursor", "skip_all", "skip"} <= served | {"resetcursor", "skip"}


def test_every_state_has_a_word() -> None:
    for mode in OffloadMode:
        assert re.search(rf"^  {mode}: \[", SCRIPTS["topic_table.js"], re.MULTILINE), mode
    for status in (*SegmentStatus, "open", "closed", "gone"):
        assert re.search(rf"^  {status}: \"", SCRIPTS["log_model.js"], re.MULTILINE), status
        assert f".swatch.s-{status} " in STYLE
    code = SCRIPTS["log_model.js"] + SCRIPTS["offload.js"]
    states = set(re.findall(r'"((?!aria-)[a-z]+(?:-[a-z]+)+|offloaded|freed)"', code))
    assert {"offloaded", "to-be-freed"} < states <= set(LedgerState)


def test_every_policy_that_can_be_changed_is_one(answers: dict[str, Any]) -> None:
    fields = re.findall(r'key: "(\w+)"', SCRIPTS["policy.js"])
    assert len(fields) == 7
    assert set(fields) <= set(POLICY_SETTINGS) & {row["name"] for row in answers["policy"]}
    shorts = re.findall(r'short: "(\w+)"', SCRIPTS["policy.js"])
    assert set(read_checked(dict.fromkeys(shorts, 1)).given) <= set(fields)
    priorities = re.findall(r"([A-Z_]+): \"(?:tier|hot log) first\"", SCRIPTS["policy.js"])
    for value in priorities:
        read_checked({"managedLedgerOffloadedReadPriority": value})
    assert len(priorities) == 2


# --- the log ----------------------------------------------------------------------------------------------------------


def test_the_log_has_both_lanes_and_the_subscriptions(answers: dict[str, Any]) -> None:
    log, (first, second) = answers["log"], answers["ledgers"]
    rows = {row["ledger_id"]: row for row in log["ledgers"]}
    assert [rows[ledger]["status"] for ledger in (first, second)] == ["closed", "closed"]
    assert log["ledgers"][-1]["status"] == "open"
    assert [row["first_index"] for row in log["ledgers"]] == [0, 1, 2]
    assert sum(row["entries"] for row in log["ledgers"]) == log["entries"] == 7
    assert sum(row["bytes"] for row in log["ledgers"]) == log["size_bytes"]
    explained = {row["ledger_id"]: row for row in answers["explain"]}
    assert {row["ledger_id"]: row["state"] for row in log["ledgers"]} == {
        ledger: row["state"] for ledger, row in explained.items()
    }
    kinds = [(found["kind"], found["status"]) for found in log["objects"]]
    assert kinds == [("ledger", "Offloaded"), ("segment", "Offloaded"), ("segment", "Assigned")]
    assert log["objects"][0]["key"].endswith(f"-ledger-{first}")
    assert log["objects"][-1]["end"] is None
    [cursor] = log["cursors"]
    assert (cursor["name"], cursor["index"], cursor["backlog"]) == ("s", 0, 7)
    assert log["offloaded_bytes"] + log["lag_bytes"] == log["size_bytes"]
    assert log["first_ms"] <= log["now_ms"]


def test_the_tail_of_a_log_omits_earlier_ledgers(answers: dict[str, Any]) -> None:
    log, tail, (_, second) = answers["log"], answers["tail"], answers["ledgers"]
    assert [row["ledger_id"] for row in tail["ledgers"]] == [row["ledger_id"] for row in log["ledgers"][1:]]
    assert [found["id"] for found in tail["objects"]] == [found["id"] for found in log["objects"][1:]]
    assert tail["ledgers"][0]["ledger_id"] == second
    assert (tail["entries"], tail["first_ledger_id"]) == (log["entries"], log["first_ledger_id"])


def test_malformed_parameters_are_refused(answers: dict[str, Any]) -> None:
    assert answers["bad"] == [400, 400, 400]
    assert answers["partitioned"] == 404


def test_a_broker_that_does_not_offload_has_one_lane(shared: Admin) -> None:
    shared.call("PUT", "persistent/public/default/plain")
    shared.write_entries(2, "public/default/persistent/plain")
    log = shared.get("persistent/public/default/plain/log")
    assert (log["entries"], log["objects"], log["offloaded_bytes"]) == (2, [], 0)
    assert log["ledgers"][0]["state"] is None
