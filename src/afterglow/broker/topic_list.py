"""Topics of a namespace for clients that subscribe by pattern; pure functions over names.

A pattern is evaluated here only where that takes time in proportion to its length: literals, ``.``, plain character
classes, and any number of ``.*`` and ``.+``. For any other (groups, alternatives, other repetitions, of which some take
longer than the universe lasts) all topics are sent, marked as not filtered, and the client filters them with its own
regular expressions: as it does with every broker that has no filter, and as Pulsar has it for patterns too long.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.metadata.names import Domain, TopicName

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_PATTERN_CHARS: Final = 1_000

_Mode = wire.CommandGetTopicsOfNamespace
_DOMAINS: Final = {
    _Mode.PERSISTENT: frozenset({Domain.PERSISTENT}),
    _Mode.NON_PERSISTENT: frozenset({Domain.NON_PERSISTENT}),
    _Mode.ALL: frozenset(Domain),
}
_SCHEME: Final = re.compile(r"(?P<anchor>\^?)(?:non-)?persistent://(?P<rest>.*)", re.DOTALL)
_TOKEN: Final = re.compile(
    r"""
      (?P<repeat> \.[*+] ) (?![*+?{])
    | (?P<one>
          \.
        | \[ \^? (?: [A-Za-z0-9]-[A-Za-z0-9] | [A-Za-z0-9_./%:=] )+ -? \]   # a class that is written alike everywhere
        | \\[dDwW]
        | \\[^A-Za-z0-9\s]   # an escaped sign
        | [^\\.\[\](){}*+?|^$]
      ) (?![*+?{])
    """,
    re.VERBOSE,
)


def choose_topics(
    names: Iterable[str], ask: wire.CommandGetTopicsOfNamespace
) -> wire.CommandGetTopicsOfNamespaceResponse:
    """Return the answer to a request: its topics in the order given, or none where the client knows them already.

    Args:
        names: Full names of the namespace's topics, each partition by itself.
        ask: The request.
    """
    topics = [topic for topic in map(TopicName.parse, names) if topic.domain in _DOMAINS[ask.mode]]
    matcher = compile_pattern(ask.topics_pattern) if ask.HasField("topics_pattern") else None
    if matcher is not None:
        # As in Pulsar, a partition is in where its topic's name matches, and the domain does not count.
        topics = [topic for topic in topics if matcher.fullmatch(str(topic.base).partition("://")[2])]
    chosen = [str(topic) for topic in topics]
    found = topics_hash(chosen)
    changed = not ask.HasField("topics_hash") or ask.topics_hash != found
    return wire.CommandGetTopicsOfNamespaceResponse(
        request_id=ask.request_id,
        topics=chosen if changed else (),
        filtered=matcher is not None,
        topics_hash=found,
        changed=changed,
    )


def topics_hash(names: Iterable[str]) -> str:
    """Return the hash by which clients tell whether a list has changed; the order of the list does not count.

    It is the CRC32C of the sorted names, joined by commas, as hexadecimal bytes with the lowest first.
    """
    # Java sorts by 16-bit units, which is another order than that of code points past U+FFFF.
    joined = ",".join(sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass")))
    return int(crc32c(joined.encode())).to_bytes(4, "little").hex()


def compile_pattern(pattern: str) -> re.Pattern[str] | None:
    """Return a matcher of ``tenant/namespace/name`` for a client's pattern; None where the client must match itself.

    A stretch between two ``.*`` is looked for where it first occurs, and never again further on: what stands before the
    next one may be anything, so a later place could match no more. That is what makes the time linear.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        return None
    scheme = _SCHEME.fullmatch(pattern)
    if scheme is not None:
        pattern = scheme["anchor"] + scheme["rest"]
    if "://" in pattern:
        return None
    pattern = pattern.removeprefix("^")
    if pattern.endswith("$") and not pattern.endswith(r"\$"):
        pattern = pattern[:-1]
    stretches = _stretches(pattern)
    if stretches is None:
        return None
    first, *inner = stretches
    end = f".*{inner.pop()}" if inner else ""
    middle = "".join(f"(?>.*?{stretch})" for stretch in inner)
    try:
        return re.compile(f"{first}{middle}{end}", re.ASCII)
    except re.error:
        return None  # such as a range that runs backward; the client will tell its user


def _stretches(pattern: str) -> list[str] | None:
    """The pieces between ``.*``, each a sequence of single characters; ``.+`` is ``.`` and ``.*``."""
    stretches = [""]
    at = 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            return None
        if token["repeat"] is None:
            stretches[-1] += token["one"]
        else:
            stretches[-1] += "." if token["repeat"] == ".+" else ""
            stretches.append("")
        at = token.end()
    return stretches
