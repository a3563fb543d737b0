"""Write the pages of ``docs/`` that come from code, or check that they are current.

Each page is a function from nothing to text; add one to ``PAGES`` and ``make docs`` writes it.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from afterglow.config import ENVIRONMENT_PREFIX, SECTIONS, SETTINGS
from afterglow.config.known import is_pulsar_key

if TYPE_CHECKING:
    from afterglow.config import Setting

ROOT = Path(__file__).resolve().parent.parent

_CONFIGURATION_HEAD = f"""\
# Configuration

<!-- Generated from src/afterglow/config/sections by `make docs`; edit there. -->

A setting's value comes from the first of these that has it:

1. an argument of the command line, where the command has one for it;
2. the environment variable `{ENVIRONMENT_PREFIX}<key>`, with the key spelt as below:
   `{ENVIRONMENT_PREFIX}webServicePort=0`;
3. the file given with `--conf`, in the syntax of Java's `.properties`: a Pulsar `broker.conf` or `standalone.conf` can
   be used as it is;
4. the default.

`afterglow topics policy` prints every effective value with its origin.

- **Sizes and durations** may be plain numbers, in the unit that the key names, or carry a suffix: `k`, `m`, `g`, `t`
  (powers of 1024) for sizes; `ms`, `s`, `m`, `h`, `d`, `w`, `y` for durations. Case does not count.
- **A key without a value** sets an optional setting or a list to nothing; for every other setting it counts as not
  given.
- **An unknown key** is an error that names the nearest known one. Keys that Apache Pulsar 4.0 has and this page has not
  are accepted without effect, all of them named in one warning.
- **Two spellings** of one setting with different values in the same place are an error.
- **Level** is the narrowest at which a setting may be set; `topic` means broker, namespace and topic.
- Settings marked † are Afterglow's own; all others are settings of Pulsar, under Pulsar's names.
"""


def configuration_page() -> str:
    """Every setting, section by section."""
    parts = [_CONFIGURATION_HEAD]
    for section in SECTIONS:
        title, _, introduction = inspect.cleandoc(section.__doc__ or "").partition("\n\n")
        rows = [row for row in SETTINGS.values() if row.section is section]
        parts += [
            f"## {title.rstrip('.')}\n",
            *([introduction + "\n"] if introduction else []),
            "| Setting | Value | Default | Level | Meaning |\n|---|---|---|---|---|",
            "\n".join(map(_table_row, rows)) + "\n",
        ]
    return "\n".join(parts)


def _table_row(row: Setting) -> str:
    default = f"`{row.show(row.default)}`" if row.show(row.default) else "nothing"
    mark = "" if is_pulsar_key(row.key) else " †"
    aliases = "".join(
        f" Also `{name}`." if kind.description == row.kind.description else f" Also `{name}`: {kind.description}."
        for name, kind in row.aliases.items()
    )
    return f"| `{row.key}`{mark} | {row.kind.description} | {default} | {row.scope} | {row.doc}{aliases} |"


PAGES = {"docs/configuration.md": configuration_page}


def main() -> int:
    """Write or check every page; 1 if a page is stale."""
    parser = argparse.ArgumentParser(description="Write the pages of docs/ that come from code.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    check = parser.parse_args().check
    stale = []
    for name, page in PAGES.items():
        path, content = ROOT / name, page()
        if path.is_file() and path.read_text("utf-8") == content:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, "utf-8")
            print(f"wrote {name}")
    if check and stale:
        print(f"stale: {', '.join(stale)}; run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
