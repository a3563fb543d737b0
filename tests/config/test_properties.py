from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterglow.config import Property, parse_properties
from afterglow.config.properties import decode_properties
from afterglow.errors import ConfigError

CHARACTERS = st.characters(codec="utf-8")
AWKWARD = st.sampled_from(list(" \t\f\n\r\\=:#!u0aé\u2028\x85\U0001f31f"))
TEXTS = st.text(st.one_of(CHARACTERS, AWKWARD))


def escaped(word: str, *, key: bool) -> str:
    """As java.util.Properties.store writes: every character that could be taken for syntax is escaped."""
    written = []
    for index, character in enumerate(word):
        if character in "\t\n\r\f":
            written.append("\\" + {"\t": "t", "\n": "n", "\r": "r", "\f": "f"}[character])
        elif character in "\\=:#!" or (character == " " and (key or index == 0)):
            written.append("\\" + character)
        elif ord(character) < 0x20 or ord(character) > 0x7E:
            units = character.encode("utf-16-be")
            written += [f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2)]
        else:
            written.append(character)
    return "".join(written)


def pairs(text: str) -> list[tuple[str, str]]:
    return [(item.key, item.value) for item in parse_properties(text)]


@given(st.lists(st.tuples(TEXTS.filter(bool), TEXTS)), st.sampled_from(["=", ":", " ", " = ", "\t:\f"]))
def test_properties_that_java_stores_are_parsed(items: list[tuple[str, str]], separator: str) -> None:
    lines = [f"{escaped(key, key=True)}{separator}{escaped(value, key=False)}" for key, value in items]
    assert pairs("\n".join(lines)) == items


@given(TEXTS)
def test_any_text_is_read_or_refused_with_its_line(text: str) -> None:
    try:
        found = parse_properties(text, "x.conf")
    except ConfigError as error:
        assert str(error).startswith("x.conf:")  # noqa: PT017 - either end is right
    else:
        assert len(found) <= len(text.replace("\r", "\n").split("\n"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", [("a", "1")]),
        ("a = 1 ", [("a", "1 ")]),
        ("a:1\nb 2\nc\td", [("a", "1"), ("b", "2"), ("c", "d")]),
        ("a", [("a", "")]),
        ("=1", [("", "1")]),
        ("a==1", [("a", "=1")]),
        ("a = : 1", [("a", ": 1")]),
        ("# c\n ! d\n\n  a=1 # no comment", [("a", "1 # no comment")]),
        ("a=1\\\n   ,2\\\n\t,3", [("a", "1,2,3")]),
        ("a=1\\\n# part of the value", [("a", "1# part of the value")]),
        ("a=1\\\\\nb=2", [("a", "1\\"), ("b", "2")]),
        ("# no continuation \\\na=1", [("a", "1")]),
        ("a=1\\", [("a", "1")]),
        ("\\\n# a comment after a lone backslash\na=1", [("a", "1")]),
        ("a\\ b\\=c=1", [("a b=c", "1")]),
        ("a=\\t\\q\\u00e9\\uD83C\\uDF1F", [("a", "\tqé\U0001f31f")]),
        ("a=1\r\nb=2\rc=3", [("a", "1"), ("b", "2"), ("c", "3")]),
        ("a=x\u2028y\x85z", [("a", "x\u2028y\x85z")]),
        ("", []),
    ],
)
def test_the_syntax_is_java_s(text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(text) == expected


def test_a_property_knows_the_line_on_which_it_begins() -> None:
    assert parse_properties("# one\n\na=1\\\n2\nb=3") == [Property("a", "12", 3), Property("b", "3", 5)]


def test_a_malformed_unicode_escape_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"^broker\.conf:2: \\u needs four hexadecimal digits"):
        parse_properties("a=1\npath=C:\\users", "broker.conf")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "iso-8859-1"])
def test_both_encodings_are_recognised(encoding: str) -> None:
    assert decode_properties("rôle=é".encode(encoding)) == "rôle=é"
