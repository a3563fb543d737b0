"""``kill -9`` under load, for real."""

from __future__ import annotations

import os
import random
import runpy
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.support.hot import read_all

from afterglow.hot.local import LocalLog

# More rounds: AFTERGLOW_CRASH_ROUNDS=200 make test. The seed of a round is in the message of its failure.
_ROUNDS = int(os.environ.get("AFTERGLOW_CRASH_ROUNDS", "6"))
_SEED = int(os.environ.get("AFTERGLOW_CRASH_SEED", "1"))
_APPENDER = Path(__file__).with_name("appender.py")


def _run_and_kill(home: Path, seed: int) -> tuple[set[int], dict[int, int]]:
    """Run the appender, kill it after a number of lines; gives the ledgers and how many entries of each were acked."""
    lines = random.Random(seed).randrange(1, 6000)
    ledgers: set[int] = set()
    acked: defaultdict[int, int] = defaultdict(int)

    def on_line(line: bytes) -> None:
        what, which = line.split()
        if what == b"ledger":
            ledgers.add(int(which))
        else:
            assert acked[int(what)] == int(which), "acknowledged out of order"
            acked[int(what)] += 1

    with subprocess.Popen([sys.executable, str(_APPENDER), str(home), str(seed)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for count, line in enumerate(process.stdout):
            on_line(line)
            if count == lines:
                process.kill()
                break
        for line in process.stdout:  # printed before it died
            if line.endswith(b"\n"):
                on_line(line)
    return ledgers, acked


def test_every_acknowledged_entry_survives_kill_9_at_random_moments(home: Path) -> None:
    payload = runpy.run_path(str(_APPENDER))["payload"]
    known: set[int] = set()
    entries: dict[int, int] = {}
    for seed in range(_SEED, _SEED + _ROUNDS):
        ledgers, acked = _run_and_kill(home, seed)
        assert not known & ledgers, f"seed {seed}: an id was given twice"
        known |= ledgers
        with LocalLog(home) as log:
            assert known <= set(log.ledgers()), f"seed {seed}: a ledger is missing"
            for ledger_id in sorted(known):
                found = read_all(log.open(ledger_id))
                assert len(found) >= acked[ledger_id], f"seed {seed}: acknowledged entries are missing"
                assert found == [payload(ledger_id, entry_id) for entry_id in range(len(found))], f"seed {seed}"
                assert entries.setdefault(ledger_id, len(found)) == len(found), f"seed {seed}: a closed ledger changed"
