"""Hot copies of a ledger: truncated reads are reported, and never served."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from afterglow.errors import CorruptBlock
from afterglow.read.copies import HotCopy
from afterglow.testing.memory_hot import MemoryLog

if TYPE_CHECKING:
    from afterglow.testing.memory_hot import MemoryLedger


@pytest.mark.parametrize("kept_bytes", [0, 1, 12, 15])
def test_a_hot_read_that_ends_within_its_first_entry_is_damage(
    kept_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without entries would be asked for again for ever."""
    with closing(MemoryLog()) as hot:
        ledger = hot.create()
        ledger.append((b"entry",), lambda _error: None)
        read_frames = ledger.read_frames

        def torn(first: int, max_bytes: int) -> tuple[memoryview, int]:
            frames, count = read_frames(first, max_bytes)
            return frames[:kept_bytes], count

        assert _read(hot, ledger) == [b"entry"]
        monkeypatch.setattr(ledger, "read_frames", torn)
        with pytest.raises(CorruptBlock):
            _read(hot, ledger)


def _read(hot: MemoryLog, ledger: MemoryLedger) -> list[bytes]:
    return [bytes(entry) for entry in HotCopy(hot, ledger.ledger_id).read(0, 0, 100).entries()]
