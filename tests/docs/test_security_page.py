"""docs/security.md, word for word, on a machine without Java.

Every command is typed and every file saved under the name that the page gives it, in an empty directory. Three
substitutions are made: ports become free ones, the broker listens on this machine alone, and ``/path/to`` is that
directory.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.pages import Page, without_java
from tests.support.terminal import free_port, terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.terminal import Terminal

pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")

PAGE: Final = Page.read(Path(__file__).parents[2] / "docs" / "security.md")
PART: Final = PAGE.part("With TLS and tokens")
SAVED: Final = re.compile(r"`([\w.]+)`:$")
SERVE: Final = "afterglow serve"
PORTS: Final = ("6651", "8443")


class Walk:
    """The page, walked through up to its end; the broker still runs."""

    def __init__(self, location: Path) -> None:
        self.location = location
        self.ports = {port: str(free_port()) for port in PORTS}
        self.broker: Terminal
        self.said: list[str] = []
        """What each command listing printed."""

    def here(self, text: str) -> str:
        text = re.sub(r"\b(6651|8443)\b", lambda port: self.ports[port.group()], text)
        return text.replace("bindAddress=0.0.0.0", "bindAddress=127.0.0.1").replace("/path/to", str(self.location))


@contextmanager
def walked(location: Path) -> Iterator[Walk]:
    walk = Walk(location)
    with without_java() as environment:
        # As in an environment that is activated.
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        with terminal(location, environment) as walk.broker, terminal(location, environment) as typed:
            assert not re.search("[0-9]", typed.run("command -v java || true"))
            for listing in PART.listings():
                if listing.language in {"python", "properties"}:
                    (saved,) = SAVED.findall(listing.before)
                    (location / saved).write_text(walk.here(listing.text))
                elif listing.text.startswith(SERVE):
                    walk.broker.type(walk.here(listing.text))
                    assert walk.broker.wait_for("^ready |^afterglow: ").group() == "ready ", walk.broker.said
                elif listing.language == "sh":
                    walk.said.append(typed.run(walk.here(listing.text)))
                elif listing.text.startswith("ready "):
                    assert walk.here(listing.text).strip() in walk.broker.said
            yield walk


def test_the_commands_and_programs_of_the_page_end_in_a_message_over_tls(tmp_path: Path) -> None:
    with walked(tmp_path) as walk:
        *_, listed, sent = walk.said
        assert "persistent://public/default/orders" in listed
        assert "over TLS, with a token" in sent
        assert "WARNING" not in walk.broker.said


@pytest.mark.pulsar
def test_the_stock_tools_work_with_the_client_conf_of_the_page(tmp_path: Path) -> None:
    from tests.support.java_tools import JavaTools

    with walked(tmp_path) as walk:
        shown = (tmp_path / "client.conf").read_text()
        tools = JavaTools("", "", tmp_path)
        (tmp_path / "client.conf").write_text(shown)
        assert "persistent://public/default/orders" in tools.admin("topics", "list", "public/default")
        tools.client("produce", "orders", "-m", "by the stock tool")
        assert "by the stock tool" in tools.client("consume", "orders", "-s", "stock", "-p", "Earliest", "-n", "2")
        assert "WARNING" not in walk.broker.said


def test_nothing_that_can_be_typed_escapes() -> None:
    assert {listing.language for listing in PART.listings()} == {"sh", "python", "properties", ""}
    outside = [listing.language for listing in PAGE.listings() if listing not in list(PART.listings())]
    assert set(outside) == {""}, "the rest of the page shows messages only"
    starts = [listing.text for listing in PART.listings() if SERVE in listing.text]
    assert len(starts) == 1
    for listing in PART.listings():
        if listing.language in {"python", "properties"}:
            assert SAVED.findall(listing.before)
