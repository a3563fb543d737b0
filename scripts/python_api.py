"""The page of the Python API, from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import afterglow
from afterglow.errors import AfterglowError

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = """\
# Python API

<!-- Generated from the docstrings of the package by `make docs`; edit there. -->

All names below are in the package `afterglow`. [DataFrames](dataframes.md) explains their use; `help(afterglow)` shows
the same texts. The package has type annotations; pyarrow has none, so that its types are not checked.
"""

_FUNCTIONS = ("connect", "prepare_spark", "spark.register")
_CLASSES = ("Source", "SourceTopic", "BatchReader", "SourceLedger", "SourceSegment", "Position", "SchemaVersion")
_ROLE = re.compile(r":\w+:`~?(?:[^<`]*<)?([\w.]+)>?`")
_INTERNAL = frozenset({"parse"})
"""Public methods for this package alone."""


def page() -> str:
    """Functions, classes, and the tree of errors."""
    parts = [_HEAD, "## Functions\n"]
    for name in _FUNCTIONS:
        found: Any = afterglow
        for each in name.split("."):
            found = getattr(found, each)
        parts.append(_function(name, found, "###"))
    parts.append("## Classes\n")
    parts += [_class(name, getattr(afterglow, name)) for name in _CLASSES]
    parts += ["## Errors\n", "Those at the top of `afterglow` are in bold; all are in `afterglow.errors`.\n"]
    parts.append("\n".join(_errors(AfterglowError, 0)) + "\n")
    return "\n".join(parts)


def _class(name: str, found: type[Any]) -> str:
    parts = [f"### {name}\n", _text(inspect.getdoc(found) or "")]
    if is_dataclass(found):
        documented = _field_docs(found)
        parts.append("| field | type | meaning |\n|---|---|---|")
        rows = (f"| `{each.name}` | `{_type(each.type)}` | {documented.get(each.name, '')} |" for each in fields(found))
        parts.append("\n".join(rows) + "\n")
        return "\n".join(parts)
    for attribute, member in vars(found).items():
        if attribute.startswith("_") or attribute in _INTERNAL:
            continue
        if isinstance(member, property):
            parts.append(f"#### {name}.{attribute}\n\n{_text(inspect.getdoc(member) or '')}")
        elif inspect.isfunction(member):
            parts.append(_function(f"{name}.{attribute}", member, "####"))
    return "\n".join(parts)


def _function(name: str, found: Any, heading: str) -> str:
    signature = inspect.signature(found)
    given = [each for each in signature.parameters.values() if each.name != "self"]
    shown = _unquoted(str(signature.replace(parameters=given)))
    arguments, _, returns = shown.rpartition(" -> ")
    lines = f"{name}{arguments} -> {returns}" if arguments else f"{name}{shown}"
    if len(lines) > 120:
        body = ",\n".join(f"    {_argument(each)}" for each in _with_star(given))
        lines = f"{name}(\n{body},\n) -> {returns}"
    return f"{heading} {name}\n\n```text\n{lines}\n```\n\n{_text(inspect.getdoc(found) or '')}"


def _unquoted(signature: str) -> str:
    """A signature with its annotations as they are written: they are kept as strings."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", signature)


def _with_star(parameters: list[inspect.Parameter]) -> Iterator[inspect.Parameter | None]:
    star = False
    for each in parameters:
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            star = True
            yield None
        yield each


def _argument(parameter: inspect.Parameter | None) -> str:
    if parameter is None:
        return "*"
    shown = _unquoted(str(parameter))
    if inspect.isroutine(parameter.default):
        shown = shown.partition(" = ")[0] + f" = {parameter.default.__name__}"
    return shown


def _type(annotation: Any) -> str:
    return str(annotation).replace("|", "\\|")


def _field_docs(found: type[Any]) -> dict[str, str]:
    """Texts below the fields of a dataclass."""
    source = inspect.getsource(found)
    pattern = re.compile(r'^    (\w+): [^\n]+\n    """(.+?)"""', re.DOTALL | re.MULTILINE)
    return {name: re.sub(r"\s+", " ", _prose(text)) for name, text in pattern.findall(source)}


def _text(docstring: str) -> str:
    """A docstring as Markdown: its sections as lists."""
    out: list[str] = []
    in_section = False
    for line in docstring.splitlines():
        section = re.fullmatch(r"(Args|Raises|Returns|Attributes):", line)
        if section is not None:
            in_section = True
            out += [f"**{section[1]}**", ""]
        elif in_section and (entry := re.fullmatch(r"    (\*{0,2}\w+): (.*)", line)) is not None:
            out.append(f"- `{entry[1]}`: {entry[2]}")
        elif in_section and line.startswith("        "):
            out.append(f"  {line.strip()}")
        else:
            out.append(line)
    return _prose("\n".join(out).rstrip()) + "\n"


def _prose(text: str) -> str:
    return _ROLE.sub(lambda match: f"`{match[1].rpartition('.')[2]}`", text).replace("``", "`")


def _errors(found: type[AfterglowError], depth: int) -> Iterator[str]:
    name = f"**`{found.__name__}`**" if found.__name__ in afterglow.__all__ else f"`{found.__name__}`"
    summary = (inspect.getdoc(found) or "").partition("\n")[0]
    yield f"{'  ' * depth}- {name}: {_prose(summary)}"
    known = (each for each in found.__subclasses__() if each.__module__ == "afterglow.errors")
    for each in sorted(known, key=lambda each: each.__name__):
        yield from _errors(each, depth + 1)
