"""docs/quick-start.md, word for word.

The long test is a new user: it types every command of the page into terminals, saves every program under the name that
the page gives it, opens every address, all in a fresh clone in an empty directory. One substitution is made, the one
that the page itself tells of: ports 6650 and 8080, where text or a default names them, become free ones.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.pages import Page
from tests.support.terminal import free_port, terminal

if TYPE_CHECKING:
    from tests.support.terminal import Terminal

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = Page.read(ROOT / "docs" / "quick-start.md")
LISTINGS: Final = list(PAGE.listings())
SERVE: Final = "afterglow serve"
SAVED: Final = re.compile(r"[Ss]ave as `(try/\w+\.py)`:$")
ADDRESSES: Final = re.findall(r"<(http://[^>]+)>", PAGE.text)


def new_users_environment(ports: dict[str, int]) -> dict[str, str]:
    """This process's own without the environment that runs the tests, and with the ports as the page says."""
    here = str(Path(sys.executable).parent)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AFTERGLOW_", "PYTEST_"))}
    for name in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"):
        kept.pop(name, None)
    return {
        **kept,
        "PATH": ":".join(part for part in kept["PATH"].split(":") if part != here),
        "AFTERGLOW_REPOSITORY": str(ROOT),
        "AFTERGLOW_CONF_brokerServicePort": str(ports["6650"]),
        "AFTERGLOW_CONF_webServicePort": str(ports["8080"]),
        "AFTERGLOW_ADMIN_URL": f"http://127.0.0.1:{ports['8080']}",
    }


@pytest.mark.pulsar
@pytest.mark.timeout(3600)
def test_a_new_user_gets_from_a_clone_to_a_dataframe(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no git repository to clone: the sources are an archive")
    ports = {"6650": free_port(), "8080": free_port()}

    def here(text: str) -> str:
        return re.sub(r"\b(6650|8080)\b", lambda port: str(ports[port.group()]), text)

    environment = new_users_environment(ports)
    said = ""
    with ExitStack() as stack:
        typed = stack.enter_context(terminal(tmp_path, environment))
        serving: Terminal | None = None
        for listing in LISTINGS:
            if listing.text.startswith("rm "):
                assert_unchanged(tmp_path / "afterglow")
            if listing.language == "python":
                (saved,) = SAVED.findall(listing.before)
                (tmp_path / "afterglow" / saved).write_text(here(listing.text))
            elif listing.language == "sh" and listing.text.startswith(SERVE):
                serving, typed = typed, stack.enter_context(terminal(tmp_path / "afterglow", environment))
                serving.type(here(listing.text))
                serving.wait_for(r"^tier ")
                said = serving.said
                for address in map(here, ADDRESSES):
                    with urllib.request.urlopen(address, timeout=60) as answer:
                        assert answer.status == 200, address
            elif listing.language == "sh":
                if listing.text.startswith("rm "):
                    assert serving is not None
                    serving.press_ctrl_c()
                    serving.run("true")  # the shell has its prompt back
                said = typed.run(here(listing.text))
            else:
                check(listing.text, said)
        assert not (tmp_path / "afterglow" / "home").exists()


def assert_unchanged(clone: Path) -> None:
    """Nothing that the page made is new to git, and ruff, which ignores what git ignores, has no finding."""
    status = subprocess.run(["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True)
    assert status.stdout == ""
    subprocess.run([sys.executable, "-m", "ruff", "check", "--quiet", "."], cwd=clone, check=True, timeout=300)


def check(shown: str, said: str) -> None:
    """What the page shows was printed, whatever numbers stand in it."""
    for line in shown.splitlines():
        words = re.findall(r"[A-Za-z][A-Za-z :,]{4,}", line.partition("file:///")[0])
        for word in words:
            assert word.strip() in said, f"{line!r} was not printed:\n{said}"


def test_every_program_has_a_name_to_be_saved_under_and_is_run() -> None:
    names = [SAVED.findall(listing.before) for listing in LISTINGS if listing.language == "python"]
    assert len(names) >= 3
    for (name,) in names:
        assert f"python {name}" in PAGE.commands


def test_every_program_compiles() -> None:
    for program in PAGE.programs:
        compile(program, "quick-start.md", "exec")


def test_every_command_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    known = ("git", "cd", "source", "export", "python", "afterglow", "mkdir", "rm")
    for line in PAGE.commands:
        name, *rest = line.split()
        assert name in known or (name == "make" and f"\n{rest[0]}:" in makefile), line
    # What our own commands are given is held against them in test_pages.


def test_nothing_that_can_be_typed_escapes_the_long_test() -> None:
    assert {listing.language for listing in LISTINGS} == {"sh", "python", ""}
    starts = [listing.text.startswith(SERVE) for listing in LISTINGS if listing.language == "sh"]
    assert starts.count(True) == 1, "one listing, of one line, starts the broker"
    assert sum(line.startswith(SERVE) for line in PAGE.commands) == 1
    fences = PAGE.text.count("```")
    assert fences == 2 * len(LISTINGS)


def test_the_console_is_among_the_addresses() -> None:
    assert ADDRESSES == ["http://127.0.0.1:8080/console"]


def test_the_page_names_the_one_substitution_that_is_made() -> None:
    for name in ("AFTERGLOW_CONF_brokerServicePort", "AFTERGLOW_CONF_webServicePort", "AFTERGLOW_ADMIN_URL"):
        assert name in PAGE.text
