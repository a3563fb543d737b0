"""Axe, the accessibility checker, in a page of a browser. It comes from npm, and is kept in the cache of tests."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.support.cache import made_once

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

_RELEASE: Final = "axe-core@4.10.3"
_SCRIPT: Final = "package/axe.min.js"


def axe_script() -> str:
    """The script of axe; skips the test if npm is not installed."""

    def make(scratch: Path) -> Path:
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm is not installed: apt-get install npm")
        subprocess.run([npm, "pack", _RELEASE, "--silent"], cwd=scratch, check=True, timeout=300)
        (archive,) = scratch.glob("*.tgz")
        with tarfile.open(archive) as files:
            script = files.extractfile(_SCRIPT)
            assert script is not None
            made = scratch / "axe.js"
            made.write_bytes(script.read())
        return made

    return made_once(f"{_RELEASE}.js", make).read_text("utf-8")


def axe_findings(page: Page) -> list[str]:
    """What axe finds in a page as it is now: rule and element."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(axe_script())  # a script element would violate the page's content security policy
    found: dict[str, Any] = page.evaluate("axe.run(document)")
    return [f"{each['id']}: {node['html'][:160]}" for each in found["violations"] for node in each["nodes"]]
