"""The parser against the real ``java.util.Properties``."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from afterglow.config import parse_properties
from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

CASES = 3_000
ALPHABET = ["a", "b", "u", "0", "0041", "\\", "\\", "\\u", "=", ":", "#", "!", " ", "\t", "\f", "\n", "\r", "\r\n", "é"]

ORACLE = r"""
import java.io.*; import java.nio.charset.StandardCharsets; import java.util.*;
public class Oracle {
    static String hex(String s) { return HexFormat.of().formatHex(s.getBytes(StandardCharsets.UTF_16BE)); }
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line; (line = in.readLine()) != null; ) {
            String text = new String(HexFormat.of().parseHex(line), StandardCharsets.UTF_16BE);
            List<String> pairs = new ArrayList<>();
            Properties properties = new Properties() {
                @Override public synchronized Object put(Object key, Object value) {
                    pairs.add("[\"" + hex((String) key) + "\",\"" + hex((String) value) + "\"]");
                    return null;
                }
            };
            try {
                properties.load(new StringReader(text));
                System.out.println("[" + String.join(",", pairs) + "]");
            } catch (IllegalArgumentException malformed) {
                System.out.println("null");
            }
        }
    }
}
"""


def encoded(text: str) -> str:
    return text.encode("utf-16-be", "surrogatepass").hex()


def ours(text: str) -> list[list[str]] | None:
    try:
        return [[encoded(item.key), encoded(item.value)] for item in parse_properties(text)]
    except ConfigError:
        return None


@pytest.mark.pulsar
def test_random_texts_are_parsed_as_by_java(tmp_path: Path) -> None:
    java = shutil.which("java")
    if java is None:
        pytest.skip("no java on the path")
    source = tmp_path / "Oracle.java"
    source.write_text(ORACLE)
    draw = random.Random(20_260_801)
    # A lone backslash at the very end is an empty pair to Java and nothing here; a last line keeps it out.
    texts = ["".join(draw.choices(ALPHABET, k=draw.randrange(1, 14))) + "\nend=1" for _ in range(CASES)]
    answer = subprocess.run(
        [java, str(source)],
        input="\n".join(map(encoded, texts)),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    theirs = [json.loads(line) for line in answer.stdout.splitlines()]
    assert len(theirs) == CASES
    differing = [(text, java_says) for text, java_says in zip(texts, theirs, strict=True) if ours(text) != java_says]
    assert differing == []
