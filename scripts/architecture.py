"""The architecture page and the table of layers, drawn from ``.importlinter``, docstrings and imports."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "afterglow"

_HEAD = """\
# Architecture

<!-- Generated from .importlinter, the docstrings and the imports of src/afterglow by `make docs`; edit there. -->

A package imports nothing above it, and packages on one line do not import each other: a test holds
[.importlinter](../.importlinter) against every import. The number is that of modules.
"""

_PATHS = (
    (
        "A produced entry to its receipt",
        "The receipt goes out once the entry is durable; offload does nothing on this path.",
        (
            ("broker.connection", "cuts frames out of what a client sent"),
            ("broker.commands", "finds the producer of a SEND"),
            ("broker.producer", "checks the message, and later sends the receipt"),
            ("ledger.managed_ledger", "the topic"),
            ("ledger.append", "stamps broker time and index (PIP-70), keeps the order over a roll-over"),
            ("hot.local.ledger", "the ledger in use"),
            ("hot.local.commit", "one journal, one sync for everything that was queued"),
        ),
    ),
    (
        "An entry to its committed segment",
        "Descriptions of tasks travel through Spark, entries never. Metadata is the only checkpoint.",
        (
            ("offload.service", "polls the topics that have something due"),
            ("offload.topic_offload", "one topic: ledgers, segments, hot copies to free"),
            ("offload.segments.topic_stream", "what to begin, extend and close"),
            ("offload.segments.upload", "one segment: numbered steps from its assignment to its commit"),
            ("offload.task_dispatch", "due tasks of all topics become one job"),
            ("spark.offload_jobs", "runs the job, and returns results as tasks end"),
            ("offload.task", "in a worker: reads the hot log, uploads a part"),
            ("offload.segments.upload_record", "parts and their checksums, by compare-and-set"),
            ("ledger.topic_metadata", "the commit: one compare-and-set of the topic's ledger list"),
        ),
    ),
    (
        "`spark.read` to rows",
        "Planned in the driver from metadata that is read once; read in tasks without metadata and without a broker.",
        (
            ("spark.datasource.source", "the options, and the topics that they select"),
            ("spark.datasource.batch", "plans in the driver"),
            ("source.connect", "opens what knows the topics"),
            ("source.topic", "one topic, with its partitions"),
            ("read.split_planner", "prunes by time and position, cuts splits"),
            ("spark.datasource.tasks", "in a worker: one split"),
            ("read.split_reader", "reads the copy that the read priority names, with fallback"),
            ("read.tier_reader", "opened objects and fetched blocks, cached"),
            ("read.messages", "whole, committed messages as Arrow batches"),
            ("format.columns", "blocks become columns without a Python object per message"),
        ),
    ),
    (
        "A policy change to its effect",
        "Checked by the effective policy that it would lead to, inside the compare-and-set that stores it.",
        (
            ("admin.policy_routes", "the route"),
            ("broker.service", "one change at a time"),
            ("policy.changes", "validates, or refuses"),
            ("catalog.catalog", "stores Pulsar's JSON at Pulsar's path"),
            ("policy.resolver", "drops cached policies and notifies: offload scans its topics again"),
            ("broker.policy_refresh", "applies the new effective policy to open topics"),
        ),
    ),
)
"""Module by module, as a call goes down. A module that does not exist fails the generation."""


def layers() -> list[list[str]]:
    """The packages of each layer, from the top."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter", "utf-8")
    lines = parser["importlinter:contract:rooms"]["layers"].split("\n")
    return [[name.strip(" ()") for name in line.split("|")] for line in lines if line.strip()]


def table() -> str:
    """The table of layers: each package with the first sentence of its docstring."""
    rows = [f"| {_names(packages)} | {'; '.join(map(_subject, packages))} |" for packages in layers()]
    return "\n".join(["| package | holds |", "|---|---|", *rows])


def page() -> str:
    """The architecture page."""
    parts = [_HEAD, "## Layers\n", "```text", *_picture(), "```\n", "## Four paths\n"]
    for title, remark, steps in _PATHS:
        parts += [f"### {title}\n", f"{remark}\n"]
        parts += [f"{number}. {_link(module)}: {what}" for number, (module, what) in enumerate(steps, 1)]
        parts.append("")
    parts.append("## Modules\n")
    for package in (package for packages in layers() for package in packages):
        modules = _modules(package)
        if len(modules) > 1:
            parts += [
                f"### `{package}`\n",
                *(f"- {_link(name)}: {_first_sentence(path)}" for name, path in modules),
                "",
            ]
    return "\n".join(parts)


def _picture() -> list[str]:
    width = max(len(" | ".join(packages)) for packages in layers())
    lines = []
    for packages in layers():
        modules = [path for package in packages for _, path in _modules(package)]
        used = sorted({name for package in packages for name in _imported(package)} - set(packages), key=_order)
        lines.append(f"{' | '.join(packages):{width}}  {len(modules):3}  uses {', '.join(used) or 'nothing'}")
    return lines


def _order(package: str) -> tuple[int, str]:
    return next(number for number, packages in enumerate(layers()) if package in packages), package


def _modules(package: str) -> list[tuple[str, Path]]:
    """Name below the root package, and path, of every module that was written by hand."""
    single = SOURCE / f"{package}.py"
    if single.is_file():
        return [(package, single)]
    paths = sorted((SOURCE / package).rglob("*.py"))
    found = [(".".join(path.relative_to(SOURCE).with_suffix("").parts), path) for path in paths]
    return [(name.removesuffix(".__init__"), path) for name, path in found if "_pb2" not in name]


def _imported(package: str) -> set[str]:
    text = "\n".join(path.read_text("utf-8") for _, path in _modules(package))
    known = {name for packages in layers() for name in packages}
    return {name for name in re.findall(r"^\s*from afterglow\.(\w+)", text, re.MULTILINE) if name in known}


def _names(packages: list[str]) -> str:
    return ", ".join(f"`{package}`" for package in packages)


def _link(module: str) -> str:
    path = SOURCE / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: a path of the architecture page names a module that does not exist")
    return f"[`{module}`](../{path.relative_to(ROOT)})"


def _subject(package: str) -> str:
    return _first_sentence(_modules(package)[0][1]).removesuffix(".")


def _first_sentence(path: Path) -> str:
    documentation = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    paragraph = " ".join(documentation.split("\n\n")[0].split())
    return re.sub(r":(?:class|func|mod|meth):`~?([^`]*)`", r"`\1`", paragraph).replace("``", "`")
