"""Build the documentation site from the Markdown pages of the repository, without network access.

The pages are copied to ``build/site-source`` with the directories that they have here, so that links between them stay
as they are. A link to any other file of the repository leads to ``--repository`` or, without one, becomes its text.
``make docs-site`` runs this with the environment of ``requirements-docs.lock``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "build" / "site-source"
SITE: Final = ROOT / "build" / "site"

NAVIGATION: Final[dict[str, tuple[str, ...]]] = {
    "Tutorial": ("docs/README.md", "docs/quick-start.md"),
    "How-to": (
        "docs/installation.md",
        "docs/dataframes.md",
        "docs/spark-cookbook.md",
        "docs/sql.md",
        "docs/spark-cluster.md",
        "docs/console.md",
        "docs/operating.md",
        "docs/monitoring.md",
        "docs/tokens.md",
        "docs/upgrade.md",
        "docs/restore.md",
        "docs/clusters.md",
        "docs/attach.md",
        "docs/migration.md",
        "docs/sizing.md",
        "docs/offloaders.md",
    ),
    "Reference": (
        "docs/cli.md",
        "docs/configuration.md",
        "docs/metrics.md",
        "docs/rest-api.md",
        "docs/python-api.md",
        "docs/format.md",
        "docs/spark-releases.md",
        "docs/figures.md",
        "docs/glossary.md",
    ),
    "Explanation": (
        "docs/how-it-works.md",
        "docs/architecture.md",
        "docs/reliability.md",
        "docs/performance.md",
        "docs/security.md",
    ),
    "Decisions": (),  # docs/decisions/*.md, by their numbers
    "Project": ("DEVELOP.md", "SECURITY.md", "CHANGELOG.md"),
}
"""Pages by the reader's purpose. A page that does not exist is left out."""

_CONFIGURATION: Final = """\
[project]
site_name = "Afterglow"
site_description = "Streaming tiered storage for Apache Pulsar topics"
docs_dir = {source}
site_dir = {site}
use_directory_urls = false
nav = {nav}

[project.theme]
font = false
features = ["navigation.sections", "navigation.top", "content.code.copy", "search.highlight"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"

[project.extra]
generator = false

[project.plugins.search]

[project.markdown_extensions.tables]
[project.markdown_extensions.pymdownx.highlight]
[project.markdown_extensions.pymdownx.superfences]
[project.markdown_extensions.toc]
permalink = true
slugify = {{ object = "pymdownx.slugs.slugify", kwds = {{ case = "lower" }} }}
"""

_FENCE: Final = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def pages() -> dict[str, list[str]]:
    """The pages of each section that exist, as paths from the root of the repository."""
    found = {section: [name for name in names if (ROOT / name).is_file()] for section, names in NAVIGATION.items()}
    found["Decisions"] = [str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    return found


def adapt_links(text: str, page: str, published: set[str], repository: str | None) -> str:
    """Return a page whose links lead only to published pages, to the repository, or to other sites.

    Args:
        text: The page.
        page: Its path from the root of the repository.
        published: Paths of all pages and pictures of the site.
        repository: The address below which files of the repository are shown; None: unknown.
    """

    def adapt(link: re.Match[str]) -> str:
        label, target = link.groups()
        path, _, part = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return link[0]
        name = os.path.normpath(Path(page).parent / path)
        if name in published:
            return link[0]
        if repository is None:
            return label
        return f"[{label}]({repository.rstrip('/')}/{name}{'#' + part if part else ''})"

    parts = _FENCE.split(text)
    return "".join(part if number % 2 else _LINK.sub(adapt, part) for number, part in enumerate(parts))


def write_source(repository: str | None) -> None:
    """Write pages, pictures and the configuration of the generator below ``build/site-source``."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    sections = pages()
    names = ["README.md", *(name for section in sections.values() for name in section)]
    pictures = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs" / "pictures").iterdir())]
    published = {*names, *pictures}
    for name in published:
        (SOURCE / name).parent.mkdir(parents=True, exist_ok=True)
        if name in pictures:
            shutil.copyfile(ROOT / name, SOURCE / name)
        else:
            text = (ROOT / name).read_text("utf-8")
            (SOURCE / name).write_text(adapt_links(text, name, published, repository), "utf-8")
    nav = ['{ "Home" = "README.md" }']
    nav += [f"{{ {json.dumps(section)} = {json.dumps(found)} }}" for section, found in sections.items() if found]
    configuration = _CONFIGURATION.format(
        source=json.dumps(SOURCE.name), site=json.dumps(SITE.name), nav=f"[{', '.join(nav)}]"
    )
    (SOURCE.parent / "zensical.toml").write_text(configuration, "utf-8")


def main() -> int:
    """Build the site; returns the generator's exit code, which is not 0 if a link leads nowhere."""
    parser = argparse.ArgumentParser(description="Build the documentation site in build/site.")
    parser.add_argument("--repository", default=None, help="address below which files of the repository are shown")
    repository = parser.parse_args().repository or None
    shutil.rmtree(SITE, ignore_errors=True)
    write_source(repository)
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--strict", "--clean", "-f", "zensical.toml"]
    return subprocess.run(command, cwd=SOURCE.parent, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
