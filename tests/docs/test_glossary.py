"""The glossary's "do not use" column, held against identifiers, prose and messages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"

NOT_IN_IDENTIFIERS = frozenset(
    [
        "doom",
        "doomed",
        "far",
        "forget",
        "heard",
        "look",
        "looked",
        "obedience",
        "patience",
        "place",
        "ripe",
        "somebody",
        "stretch",
        "tell",
        "territory",
        "told",
        "trash",
        "trouble",
        "untaken",
        "whoever",
    ]
)
"""Single words of the column, and of the chapter on prose, that no identifier needs in another sense."""

NOT_IN_PROSE = (
    r"doom(?:ed|s)?",
    r"let(?:s|ting)? go",
    r"looked at",
    r"obedience",
    r"somebody",
    r"stretch(?:es)?",
    r"territory",
    r"there is none",
    r"told",
    r"trash",
    r"whoever",
    r"(?<!there )is no (?!longer\b|more\b|later\b|less\b|earlier\b)[a-z]+",
)
"""Phrases of the same. Words such as "go", "look", "check" or "place" have ordinary uses in prose and are left out."""

ALLOWED = {
    "docs/glossary.md": "lists the words",
    "tests/docs/test_glossary.py": "lists the words",
    "src/afterglow/ledger/properties.py": "names a stored key",
    "tests/support/sim/steps.py": "names a stored key",
}
"""Files that are left out, with the reason."""

ALLOWED_NAMES = {
    "addInPlace": "an override of PySpark's AccumulatorParam",
    "tell": "an override of io.IOBase",
}
"""Identifiers that are left out, with the reason."""

KERNELS = "src/afterglow/format/"
"""Below this, the places of texts and values are their offsets in a buffer."""


class Use(NamedTuple):
    """A forbidden word in a file."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


def words_of(name: str) -> list[str]:
    """The words of an identifier, in lower case, plural and all."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


@cache
def is_forbidden(name: str, *, in_kernels: bool) -> bool:
    """Whether an identifier has a word that the glossary replaces."""
    if name in ALLOWED_NAMES:
        return False
    forbidden = NOT_IN_IDENTIFIERS - ({"place"} if in_kernels else set())
    return any(word in forbidden or word.removesuffix("s") in forbidden for word in words_of(name))


def own_names(source: str) -> dict[str, int]:
    """Names that a module defines, with their first line: those of libraries are not ours to choose."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.setdefault(node.name, node.lineno)
        elif isinstance(node, ast.arg):
            found.setdefault(node.arg, node.lineno)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.id, node.lineno)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.attr, node.lineno)
    return found


def python_files() -> Iterator[Path]:
    for top in ("src", "tests", "bench", "scripts", "examples"):
        yield from (path for path in sorted((ROOT / top).rglob("*.py")) if not path.stem.endswith("_pb2"))


IDENTIFIER = re.compile(r"[^\W\d]\w*")


def identifier_uses(path: Path) -> Iterator[Use]:
    source, file = path.read_text(), str(path.relative_to(ROOT))
    in_kernels = file.startswith(KERNELS)
    # Most files have no such word, not even in a text, and need not be parsed.
    suspects = {name for name in set(IDENTIFIER.findall(source)) if is_forbidden(name, in_kernels=in_kernels)}
    if suspects:
        yield from (Use(file, line, name) for name, line in own_names(source).items() if name in suspects)
    if any(word in NOT_IN_IDENTIFIERS for word in words_of(path.stem)):
        yield Use(file, 1, f"the module's name {path.name}")


PROSE = re.compile(rf"\b(?:{'|'.join(NOT_IN_PROSE)})\b", re.IGNORECASE)


def prose_uses(path: Path) -> Iterator[Use]:
    source, file = path.read_text(), str(path.relative_to(ROOT))
    if not PROSE.search(re.sub(r"[\s\"]+", " ", source)):
        return  # neither in texts nor outside of them, which spares most files the tokenizer
    if path.suffix == ".md":
        texts = list(enumerate(source.splitlines(), 1))
    else:
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        texts = [(t.start[0], t.string) for t in tokens if t.type in {tokenize.STRING, tokenize.COMMENT}]
    for line, text in texts:
        # A phrase may be broken at the end of a line.
        for found in PROSE.finditer(re.sub(r"\s+", " ", text)):
            yield Use(file, line, found.group())


def pages() -> Iterator[Path]:
    yield from sorted(ROOT.glob("*.md"))
    yield from sorted((ROOT / "docs").rglob("*.md"))


def report(uses: list[Use]) -> str:
    return "docs/glossary.md has the words to use instead:\n" + "\n".join(map(str, uses))


def test_identifiers_use_the_words_of_the_glossary() -> None:
    uses = [use for path in python_files() for use in identifier_uses(path) if use.file not in ALLOWED]
    assert not uses, report(uses)


@pytest.mark.parametrize("kind", ["code", "pages"])
def test_prose_and_messages_use_the_words_of_the_glossary(kind: str) -> None:
    paths = python_files() if kind == "code" else pages()
    uses = [use for path in paths for use in prose_uses(path) if use.file not in ALLOWED]
    assert not uses, report(uses)


def test_every_word_that_is_checked_is_in_the_glossary() -> None:
    text = GLOSSARY.read_text().lower()
    assert [word for word in NOT_IN_IDENTIFIERS if not re.search(rf"\b{word}\b", text)] == []


def test_the_glossary_is_complete_where_the_shared_one_is_at_hand() -> None:
    shared = ROOT.parent / "shared" / "glossary.md"
    if not shared.is_file():
        pytest.skip("../shared/glossary.md is not here")
    assert terms_of(shared) <= terms_of(GLOSSARY)


def terms_of(glossary: Path) -> set[str]:
    """Every term in bold at the start of a row."""
    rows = re.findall(r"^\| (\*\*.*?) \|", glossary.read_text(), re.MULTILINE)
    return {term.strip() for row in rows for bold in re.findall(r"\*\*(.*?)\*\*", row) for term in bold.split(",")}
