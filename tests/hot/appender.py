"""A process that appends as fast as it can until it is killed, and prints what was acknowledged.

Run as ``python appender.py HOME SEED``. It prints ``ledger LEDGER`` when one was created and ``LEDGER ENTRY`` for each
acknowledgement, each by one write of a whole line.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import Counter
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from afterglow.hot.local import LocalLog

if TYPE_CHECKING:
    from afterglow.errors import HotLogError
    from afterglow.hot.local.ledger import LocalLedger

_WINDOW = 500


def payload(ledger_id: int, entry_id: int) -> bytes:
    """What every entry must hold."""
    seed = blake2b(b"%d:%d" % (ledger_id, entry_id)).digest()
    return seed * (1 + seed[0] % 30)


def _report(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main(home: Path, seed: int) -> None:
    chance = random.Random(seed)
    window = threading.Semaphore(_WINDOW)

    def acknowledged(ledger_id: int, entry_id: int, error: HotLogError | None) -> None:
        if error is None:
            _report(f"{ledger_id} {entry_id}")
        window.release()

    log = LocalLog(home, flush_interval_ms=5, checkpoint_interval_ms=40, journal_max_bytes=200_000, max_open_files=5)
    ledgers: list[LocalLedger] = []
    next_ids: Counter[int] = Counter()
    while True:
        while len(ledgers) < 5:
            ledgers.append(log.create())
            _report(f"ledger {ledgers[-1].ledger_id}")
        for _ in range(200):
            window.acquire()
            ledger = chance.choice(ledgers)
            entry_id = next_ids[ledger.ledger_id]
            next_ids[ledger.ledger_id] += 1
            done = partial(acknowledged, ledger.ledger_id, entry_id)
            assert ledger.append((payload(ledger.ledger_id, entry_id),), done) == entry_id
        ledgers.pop(chance.randrange(len(ledgers))).close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
