"""Names as path components: the encoding of Java's ``URLEncoder`` in UTF-8, which Pulsar uses for topics and cursors.

Kept as they are: ASCII letters and digits, and ``.``, ``-``, ``*``, ``_``. A space becomes ``+``. Of everything else
each byte becomes ``%XX`` in upper case.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from urllib.parse import quote_plus, unquote_plus

from afterglow.errors import InvalidName

_ENCODED: Final = re.compile(r"(?:[^%]|%[0-9A-Fa-f]{2})*", re.DOTALL)


@lru_cache(maxsize=4096)
def encode_name(name: str) -> str:
    """Encode a topic's local name or a subscription name.

    Raises:
        InvalidName: The name is no Unicode text (a lone surrogate), is empty, or is ``.`` or ``..``, which the encoding
            keeps and no path can hold.
    """
    if name in {"", ".", ".."}:
        raise InvalidName(f"the name {name!r} cannot be stored: choose another")
    try:
        # Python keeps '~', Java does not; Java keeps '*', Python does not.
        return quote_plus(name, safe="*").replace("~", "%7E")
    except UnicodeEncodeError as error:
        raise InvalidName(f"the name {name!r} is no Unicode text: {error.reason}") from error


def decode_name(encoded: str) -> str:
    """Decode what :func:`encode_name` made, or any other valid URL encoding of a name.

    Raises:
        InvalidName: A ``%`` is not followed by two hexadecimal digits, or the bytes are not UTF-8.
    """
    if _ENCODED.fullmatch(encoded) is None:
        raise InvalidName(f"the encoded name {encoded!r} has a '%' without two hexadecimal digits")
    try:
        return unquote_plus(encoded, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidName(f"the encoded name {encoded!r} is not UTF-8: {error.reason}") from error
