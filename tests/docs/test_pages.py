"""Commands with their options, settings, links and messages in the pages below docs exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import typer.main

from afterglow.broker.auth import check_exposure
from afterglow.cli.app import app, register
from afterglow.config import SETTINGS, load_conf

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
NAMES = [page.name for page in PAGES]
WRITTEN = [page for page in PAGES if page.name != "cli.md"]
"""Pages with commands that are not taken from the help itself."""
LINKED = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
"""Pages whose links are tested."""

_FENCE = re.compile(r"^ *```(?:sh|bash)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_KEY = re.compile(
    r"`((?:managedLedger|streaming|maxOffload|maxSize|offload|token|tls|broker|spark|auth|web|bind|super|damaged)[A-Z]\w+)"
)
_FIELDS = {"offloadContext", "offloadSegment"}
"""Named like settings, but fields of Pulsar's metadata."""


def commands(page: Path) -> list[str]:
    """Every line of a shell listing that calls our command line, without what stands behind it."""
    lines = "\n".join(_FENCE.findall(page.read_text())).replace("\\\n", " ").splitlines()
    found = [re.sub(r"^\s*(?:\S*/)?(?=afterglow )", "", line) for line in lines]
    return [line for line in found if line.startswith("afterglow ")]


def keys() -> set[str]:
    return {
        key for setting in SETTINGS.values() for key in (setting.key, *setting.aliases, setting.prefix or setting.key)
    }


def parse(line: str) -> None:
    """Take a command line apart as the command would, without running it."""
    register()
    words = shlex.split(line.partition(" > ")[0], comments=True)[1:]
    command: Any = typer.main.get_command(app)
    while isinstance(below := getattr(command, "commands", None), dict):
        name = words.pop(0)
        assert name in below, f"no command {name}"
        command = below[name]
    command.make_context(command.name, words)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_every_command_has_the_options_that_it_is_given(page: Path) -> None:
    for line in commands(page):
        try:
            parse(line)
        except Exception as error:
            raise AssertionError(f"{line}: {error}") from error


def test_an_unknown_option_is_detected() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse("afterglow topics offload orders --size-of-it 0")


def test_commands_are_found_in_the_pages() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 15


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "rest-api.md"], ids=lambda page: page.name)
def test_every_setting_exists(page: Path) -> None:
    assert {key for key in _KEY.findall(page.read_text()) if key not in keys() | _FIELDS} == set()


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, part = target.partition("#")
        if path.startswith("http"):
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if part:
            assert part in anchors(file), target


def prose(page: Path) -> str:
    """A page without its listings."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What the headings of a page are linked by."""
    heads = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "pictures").glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_is_well_formed_and_loads_nothing(picture: Path) -> None:
    root = ET.fromstring(picture.read_text())
    assert root.get("viewBox")
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    assert "href" not in picture.read_text()


def test_the_configuration_for_external_access_is_accepted(tmp_path: Path) -> None:
    shown, _ = re.findall(r"```properties\n(.*?)```", (ROOT / "docs" / "security.md").read_text(), re.DOTALL)
    (tmp_path / "broker.conf").write_text(shown)
    check_exposure(load_conf(tmp_path / "broker.conf", environ={}), insecure=False)


def test_messages_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    rows = [row for row in re.findall(r"^\| `([^|]*…[^|]*)` \|", page, re.MULTILINE) if " " in row]
    assert len(rows) >= 9
    source = "".join(file.read_text() for file in sorted((ROOT / "src" / "afterglow").rglob("*.py")))
    messages = re.sub(r'"\s*\n\s*f?"', "", source)
    for row in rows:
        fragments = [fragment.strip(" :") for fragment in re.split(r"…|, attempt|'[^']*'|\b\d[\d:]*\b", row)]
        for fragment in fragments:
            assert len(fragment) < 9 or fragment in messages or fragment == "address already in use", fragment


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_metric_exists(page: Path) -> None:
    emitted = (ROOT / "docs" / "metrics.md").read_text()
    assert [name for name in re.findall(r"`(afterglow_\w+)", page.read_text()) if f"`{name}`" not in emitted] == []
