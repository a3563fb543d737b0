r"""Parser of Java ``.properties`` files, the syntax of ``broker.conf``.

Follows ``java.util.Properties.load``: ``#`` and ``!`` begin comments; ``=``, ``:`` or white space ends a key; a
backslash escapes, continues a line, or begins ``\uXXXX``; trailing white space belongs to the value. The one
difference: a lone backslash on the last line is ignored, where Java sees an empty pair.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLANKS = " \t\f"
# str.splitlines would also split at form feeds, NEL and other separators that Java treats as content.
_LINE_END = re.compile(r"\r\n|\r|\n")
_PAIR = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*(?:[=:][ \t\f]*)?(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Property:
    """A key and its value."""

    key: str
    value: str
    line: int
    """Line on which the key begins, counted from 1."""


def parse_properties(text: str, name: str = "properties") -> list[Property]:
    r"""Parse all pairs in the order of the file; a key may occur more than once.

    Args:
        text: Content of the file.
        name: Name of the file in error messages.

    Raises:
        ConfigError: A ``\u`` is not followed by four hexadecimal digits.
    """
    properties = []
    for line, content in _logical_lines(text):
        match = _PAIR.fullmatch(content)
        assert match  # the pattern matches any text in which a character follows each backslash
        try:
            properties.append(Property(_unescape(match[1]), _unescape(match[2]), line))
        except ValueError:
            raise ConfigError(
                f"{name}:{line}: \\u needs four hexadecimal digits; write \\\\u for a backslash and the letter u"
            ) from None
    return properties


def decode_properties(data: bytes) -> str:
    """Decode a file as UTF-8, or as ISO-8859-1 like Java, which accepts any bytes."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("iso-8859-1")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    lines = iter(enumerate(_LINE_END.split(text), start=1))
    for number, line in lines:
        content = line.lstrip(_BLANKS)
        if not content or content[0] in "#!":
            continue
        while _continues(content):
            content = content[:-1]
            if not content:
                break  # only a backslash so far: the next line is separate, and may be a comment
            content += next(lines, (0, ""))[1].lstrip(_BLANKS)
        if content:
            yield number, content


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        escaped = match[1]
        if escaped[0] == "u":
            return chr(int(escaped[1:], 16))  # ValueError for \u without digits
        return _CONTROLS.get(escaped, escaped)

    # Java escapes a character outside the basic plane as a surrogate pair; the round trip joins the two.
    return _ESCAPE.sub(replace, text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
