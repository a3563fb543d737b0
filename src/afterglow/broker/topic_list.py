"""Topics of a namespace for clients that subscribe by pattern; pure functions over names.

The broker evaluates only patterns that match in linear time: literals, ``.``, plain character classes, and any number
of ``.*`` and ``.+``. For other patterns (groups, alternatives, other repetitions, some of which take exponential time)
it sends all topics, marked as not filtered, and the client filters them itself, as it does with brokers that have no
filter, and with Pulsar for overlong patterns.
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
        | \[ \^? (?: [A-Za-z0-9]-[A-Za-z0-9] | [A-Za-z0-9_./%:=] )+ -? \]   # a class of the same meaning everywhere
        | \\[dDwW]
        | \\[^A-Za-z0-9\s]   # an escaped character
        | [^\\.\[\](){}*+?|^$]
      ) (?![*+?{])
    """,
    re.VERBOSE,
)


def choose_topics(
    names: Iterable[str], ask: wire.CommandGetTopicsOfNamespace
) -> wire.CommandGetTopicsOfNamespaceResponse:
    """Return the response to a request: the matching topics in the order given, or none if the client has them already.

    Args:
        names: Full names of the namespace's topics, partitions included.
        ask: The request.
    """
    topics = [topic for topic in map(TopicName.parse, names) if topic.domain in _DOMAINS[ask.mode]]
    matcher = compile_pattern(ask.topics_pattern) if ask.HasField("topics_pattern") else None
    if matcher is not None:
        # As in Pulsar, a partition is included if its topic's name matches, and the domain is not compared.
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
    """Return the hash by which clients detect changes of a list, independent of its order.

    It is the CRC32C of the sorted names, joined by commas, as little-endian hexadecimal.
    """
    # Java sorts by UTF-16 code units, which differs from the order of code points above U+FFFF.
    joined = ",".join(sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass")))
    return int(crc32c(joined.encode())).to_bytes(4, "little").hex()


def compile_pattern(pattern: str) -> re.Pattern[str] | None:
    """Return a matcher of ``tenant/namespace/name`` for a client's pattern; None if the client must filter itself.

    The text between two ``.*`` is matched at its first occurrence only, by atomic groups: since anything may follow, a
    later occurrence could not match more. This makes the time linear.
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
    parts = _fixed_parts(pattern)
    if parts is None:
        return None
    first, *inner = parts
    end = f".*{inner.pop()}" if inner else ""
    middle = "".join(f"(?>.*?{part})" for part in inner)
    try:
        return re.compile(f"{first}{middle}{end}", re.ASCII)
    except re.error:
        return None  # such as a reversed character range; the client reports it


def _fixed_parts(pattern: str) -> list[str] | None:
    """Split a pattern at ``.*`` into sequences of single characters; ``.+`` counts as ``.`` and ``.*``."""
    parts = [""]
    at = 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            return None
        if token["repeat"] is None:
            parts[-1] += token["one"]
        else:
            parts[-1] += "." if token["repeat"] == ".+" else ""
            parts.append("")
        at = token.end()
    return parts
