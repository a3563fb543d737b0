from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Canned, Cli


@pytest.fixture
def complete(cli_at: Callable[[str], Cli], monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], list[str]]:
    """What the shell is offered for the last word of a line, with an admin API at a URL."""

    def ask(line: str, admin_url: str) -> list[str]:
        monkeypatch.setenv("_AFTERGLOW_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
        outcome = cli_at(admin_url).run("ignored")
        assert (outcome.code, outcome.stderr) == (0, "")
        return outcome.stdout.split()

    return ask


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("afterglow ten", ["tenants"]),
        ("afterglow topics offload-", ["offload-status"]),
        ("afterglow topics stats ord", ["orders"]),
        ("afterglow topics stats acme/logs/a", ["acme/logs/access"]),
        ("afterglow topics stats acme/lo", ["acme/logs/"]),
        ("afterglow namespaces policies acme/", ["acme/logs"]),
    ],
)
def test_commands_topics_and_namespaces_are_completed(
    canned: Canned, complete: Callable[[str, str], list[str]], line: str, words: list[str]
) -> None:
    orders = [f"persistent://public/default/orders-partition-{index}" for index in range(2)]
    canned.on("GET", "namespaces/public/default/topics", (200, orders))
    canned.on("GET", "namespaces/acme/logs/topics", (200, ["persistent://acme/logs/access"]))
    canned.on("GET", "namespaces/acme", (200, ["acme/logs"]))
    assert complete(line, canned.url) == words


def test_the_address_on_the_command_line_is_used(canned: Canned, complete: Callable[[str, str], list[str]]) -> None:
    canned.on("GET", "namespaces/public/default/topics", (200, ["persistent://public/default/orders"]))
    assert complete(f"afterglow topics --admin-url {canned.url} stats o", "http://127.0.0.1:1") == ["orders"]


def test_without_a_broker_completion_offers_nothing_silently(
    complete: Callable[[str, str], list[str]],
) -> None:
    assert complete("afterglow topics stats ord", "http://127.0.0.1:1") == []
