"""Which keys and which user metadata a store takes: one rule for all, so that what one keeps every other keeps too."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from afterglow.errors import InvalidName, PartMismatch, RangeInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from afterglow.storage.store import Part, StoreLimits

__all__ = ["check_key", "check_part_number", "check_parts", "check_range", "normal_metadata"]

MAX_KEY_BYTES = 1_024
"""S3, GCS and Azure agree on this."""

MAX_METADATA_BYTES = 2_048
"""S3's limit over all keys and values together; the others allow more."""

# Metadata travels as HTTP headers: keys are header tokens, values visible ASCII that survives trimming.
_METADATA_KEY = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_METADATA_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?|")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_key(key: str) -> str:
    """Give the key back if every store can keep it.

    Raises:
        InvalidName: The key is empty, too long, absolute, not Unicode text, or has an empty, ``.`` or ``..`` component
            or a control character.
    """
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"object key {key!r} is not valid Unicode text") from None
    if not 0 < size_bytes <= MAX_KEY_BYTES:
        raise InvalidName(f"object key {key!r} has {size_bytes} bytes; it must have 1 to {MAX_KEY_BYTES}")
    if _CONTROL.search(key):
        raise InvalidName(f"object key {key!r} has a control character")
    if any(component in {"", ".", ".."} for component in key.split("/")):
        raise InvalidName(f"object key {key!r} has an empty, '.' or '..' component; use names joined by single slashes")
    return key


def normal_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Give user metadata in the form that all stores hand back: keys in lower case, as S3 does.

    Raises:
        InvalidName: Two keys differ only in case, a key is no HTTP header token, a value is not printable ASCII or has
            a space at an end, or all together pass 2,048 bytes.
    """
    normal: dict[str, str] = {}
    for name, value in (metadata or {}).items():
        key = name.lower()
        if key in normal:
            raise InvalidName(f"object metadata key {name!r} is there twice; keys are compared without case")
        if not _METADATA_KEY.fullmatch(key):
            raise InvalidName(f"object metadata key {name!r} is not made of letters, digits, '-', '_' and '.'")
        if not _METADATA_VALUE.fullmatch(value):
            raise InvalidName(f"object metadata {name!r} has the value {value!r}; only printable ASCII can be stored")
        normal[key] = value
    size_bytes = sum(len(key) + len(value) for key, value in normal.items())
    if size_bytes > MAX_METADATA_BYTES:
        raise InvalidName(f"object metadata has {size_bytes} bytes; stores take at most {MAX_METADATA_BYTES}")
    return normal


def check_range(key: str, start: int, end: int | None, size_bytes: int) -> int:
    """Give the end of the range ``[start, end)`` within an object of that size.

    Raises:
        RangeInvalid: Not ``0 <= start <= end <= size``.
    """
    stop = size_bytes if end is None else end
    if not 0 <= start <= stop <= size_bytes:
        raise RangeInvalid(f"range [{start}, {stop}) lies outside object {key!r} of {size_bytes} bytes")
    return stop


def check_part_number(number: int, limits: StoreLimits) -> None:
    """Refuse a part number that the store cannot keep.

    Raises:
        PartMismatch: The number lies outside 1…``max_parts``.
    """
    if not 1 <= number <= limits.max_parts:
        raise PartMismatch(f"part number {number} lies outside 1…{limits.max_parts}")


def check_parts(key: str, parts: Sequence[Part], limits: StoreLimits) -> None:
    """Refuse a list of parts that cannot become an object.

    Raises:
        PartMismatch: There are none, the numbers do not ascend, or a part but the last is too small.
    """
    if not parts:
        raise PartMismatch(f"upload of {key!r} cannot be completed without parts")
    for before, after in pairwise(parts):
        if before.number >= after.number:
            raise PartMismatch(f"upload of {key!r} names part {before.number} before part {after.number}")
        if before.size_bytes < limits.min_part_bytes:
            raise PartMismatch(
                f"part {before.number} of {key!r} has {before.size_bytes} bytes; "
                f"every part but the last must have at least {limits.min_part_bytes}"
            )
