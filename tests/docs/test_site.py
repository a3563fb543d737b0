"""The documentation site: its navigation, the links that leave docs/, and what a build loads from other hosts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import build_site
import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


def test_every_page_is_in_the_navigation_once() -> None:
    listed = [name for names in build_site.pages().values() for name in names]
    assert len(listed) == len(set(listed))
    written = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")}
    missing = written - set(listed)
    assert not missing, f"add the page to NAVIGATION in scripts/build_site.py: {missing}"


def test_every_page_is_in_the_list_of_pages() -> None:
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "README.md").read_text())
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"} <= set(listed)


def test_links_to_pages_stay_and_links_to_other_files_lead_to_the_repository() -> None:
    text = "[a](b.md#part) [c](../tests/docs) [d](https://e) [f](#here)\n```sh\n[g](../tests)\n```\n"
    published = {"docs/b.md"}
    found = build_site.adapt_links(text, "docs/a.md", published, "https://host/blob/main/")
    assert found == text.replace("../tests/docs", "https://host/blob/main/tests/docs")
    assert build_site.adapt_links(text, "docs/a.md", published, None) == text.replace("[c](../tests/docs)", "c")


@pytest.mark.pulsar
def test_the_site_is_built_with_a_search_index_and_loads_nothing_from_other_hosts() -> None:
    subprocess.run(["make", "docs-site"], cwd=ROOT, check=True, timeout=900)
    found = sorted((ROOT / "build" / "site").rglob("*.html"))
    assert len(found) > len(list((ROOT / "docs").rglob("*.md")))
    for page in found:
        text = page.read_text()
        assert LOADED.findall(text) == [], page
        assert 'class="mermaid"' not in text, "the generator loads its script from another host"
    styles = "".join(sheet.read_text() for sheet in (ROOT / "build" / "site").rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", styles) == []
    assert "retention" in (ROOT / "build" / "site" / "search.json").read_text()
