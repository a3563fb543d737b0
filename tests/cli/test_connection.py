from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Canned, Cli


@pytest.mark.parametrize(
    "options",
    [
        lambda url: ("--admin-url", url, "topics", "list"),
        lambda url: ("topics", "--admin-url", url, "list"),
        lambda url: ("topics", "list", "--admin-url", url),
        lambda url: ("--admin-url", "http://127.0.0.1:1", "topics", "list", "--admin-url", url),
    ],
)
def test_the_admin_url_may_precede_or_follow_the_subcommand_and_overrides_the_environment(
    canned: Canned, canned_cli: Cli, monkeypatch: pytest.MonkeyPatch, options: Callable[[str], tuple[str, ...]]
) -> None:
    monkeypatch.setenv("AFTERGLOW_ADMIN_URL", "http://127.0.0.1:1")
    canned.on("GET", "namespaces/public/default/topics", (200, ["persistent://public/default/t"]))
    assert canned_cli.do(*options(canned.url)) == "persistent://public/default/t\n"


def test_an_address_without_a_server_is_one_line_with_the_remedy(canned_cli: Cli) -> None:
    output = canned_cli.refused(1, "topics", "list", "--admin-url", "http://127.0.0.1:1")
    assert "http://127.0.0.1:1 does not answer" in output
    assert "afterglow serve" in output


@pytest.mark.parametrize("url", ["localhost:8080", "pulsar://127.0.0.1:6650", "http://", "http://h:port", "http://h:0"])
def test_an_invalid_address_exits_2(canned_cli: Cli, url: str) -> None:
    assert "http://HOST:PORT" in canned_cli.refused(2, "topics", "list", "--admin-url", url)


def test_a_token_is_sent_from_the_option_the_environment_or_a_file(
    canned: Canned, canned_cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    canned.on("GET", "namespaces/public", (200, []))
    file = tmp_path / "token"
    file.write_text("from-file\n")
    monkeypatch.setenv("AFTERGLOW_TOKEN", "from-environment")
    canned_cli.do("namespaces", "list")
    canned_cli.do("--token", "token:from-option", "namespaces", "list")
    canned_cli.do("namespaces", "list", "--token", file.as_uri())
    sent = [headers["Authorization"] for _, _, _, headers in canned.calls]
    assert sent == ["Bearer from-environment", "Bearer from-option", "Bearer from-file"]
    output = canned_cli.refused(2, "namespaces", "list", "--token", (tmp_path / "absent").as_uri())
    assert "absent" in output


def test_a_redirect_to_the_owner_is_followed_with_the_body(canned: Canned, canned_cli: Cli) -> None:
    moved = f"{canned.url}/admin/v2/moved?authoritative=true"
    canned.on("PUT", "namespaces/public/x/offloadThreshold", (307, moved))
    canned.on("PUT", "moved?authoritative=true", (204, None))
    canned_cli.do("namespaces", "set-offload-threshold", "public/x", "-s", "1k")
    assert canned.calls[-1][:3] == ("PUT", "/admin/v2/moved?authoritative=true", 1024)


def test_a_redirect_loop_ends(canned: Canned, canned_cli: Cli) -> None:
    canned.on("GET", "namespaces/public", (307, f"{canned.url}/admin/v2/namespaces/public"))
    assert "too many redirects" in canned_cli.refused(1, "namespaces", "list")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((409, {"reason": "it is\nin use"}), "afterglow: it is in use"),
        ((500, b"<html>oops</html>"), "status 500: <html>oops</html>"),
        ((503, None), "status 503"),
        ((200, b"<html>welcome</html>"), "which is not valid JSON"),
        ((200, {"topics": []}), "not a list of names"),
    ],
)
def test_a_refusal_or_an_unexpected_answer_is_one_line_and_exit_1(
    canned: Canned, canned_cli: Cli, answer: tuple[int, object], words: str
) -> None:
    canned.on("GET", "namespaces/public/default/topics", answer)
    assert words in canned_cli.refused(1, "topics", "list")


def test_an_answer_that_lacks_required_fields_is_one_line(canned: Canned, canned_cli: Cli) -> None:
    canned.on("GET", "persistent/public/default/t/partitions", (200, {"partitions": 0}))
    canned.on("GET", "persistent/public/default/t/offload", (200, {"state": "fine"}))
    assert "with status, lastError" in canned_cli.refused(1, "topics", "offload-status", "t")
    canned.on("GET", "persistent/public/default/t/segments", (200, None))
    assert "a list of objects" in canned_cli.refused(1, "topics", "segments", "t")
