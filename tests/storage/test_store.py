from __future__ import annotations

import pytest

from afterglow.errors import InvalidName, PartMismatch
from afterglow.storage.memory import MEMORY_LIMITS
from afterglow.storage.s3 import S3_LIMITS
from afterglow.storage.store import Part, check_key, check_parts, normal_metadata


def test_the_longest_key_has_1024_bytes_not_letters() -> None:
    assert check_key("é" * 512) == "é" * 512
    with pytest.raises(InvalidName, match="1026 bytes"):
        check_key("é" * 513)


def test_metadata_of_exactly_two_kibibytes_passes() -> None:
    assert normal_metadata({"Key": "x" * 2_045}) == {"key": "x" * 2_045}
    with pytest.raises(InvalidName, match="2049 bytes"):
        normal_metadata({"Key": "x" * 2_046})


def test_no_metadata_is_an_empty_mapping() -> None:
    assert normal_metadata(None) == normal_metadata({}) == {}


def test_only_the_last_part_may_be_small() -> None:
    large, small = Part(1, 5 << 20, "t"), Part(2, 1, "t")
    check_parts("a", [large, small], S3_LIMITS)
    check_parts("a", [small], S3_LIMITS)
    with pytest.raises(PartMismatch, match="at least 5242880"):
        check_parts("a", [Part(1, (5 << 20) - 1, "t"), small], S3_LIMITS)
    check_parts("a", [Part(1, 1, "t"), small], MEMORY_LIMITS)
