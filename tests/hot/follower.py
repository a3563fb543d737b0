"""A process that reads a ledger of a living log up to its published end, and checks every byte of it.

Run as ``python follower.py HOME LEDGER``. Prints ``reading`` once it has opened the ledger, then ``COUNT`` when it is
closed, or what is wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path

from afterglow.format.frames import FRAME, FRAME_BYTES
from afterglow.hot.local import open_shared


def payload(entry_id: int) -> bytes:
    """What every entry must hold."""
    return b"%d," % entry_id * (1 + entry_id % 50)


def main(home: Path, ledger_id: int) -> str:
    with open_shared(home, ledger_id) as ledger:
        sys.stdout.write("reading\n")
        sys.stdout.flush()
        first = 0
        while True:
            closed = ledger.closed  # before the end is asked for: what comes behind that is not missed
            confirmed = ledger.confirmed
            if confirmed < first - 1:
                return f"the end went back from {first - 1} to {confirmed}"
            while first <= confirmed:
                frames, count = ledger.read_frames(first, 50_000)
                offsets = ledger.offsets(first, first + count - 1) - ledger.offsets(first, first)[0]
                for number in range(count):
                    length, entry_id = FRAME.unpack_from(frames, int(offsets[number]))
                    entry = frames[int(offsets[number]) + FRAME_BYTES : int(offsets[number + 1])]
                    if (length, entry_id, bytes(entry)) != (len(entry), first + number, payload(first + number)):
                        return f"entry {first + number} is not what it should be"
                first += count
            if closed:
                return str(first)


if __name__ == "__main__":
    sys.stdout.write(main(Path(sys.argv[1]), int(sys.argv[2])) + "\n")
