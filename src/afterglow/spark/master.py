"""What a Spark master says about where tasks run."""

from __future__ import annotations

import re
from typing import Final

from afterglow.errors import ConfigError

ATTEMPTS: Final = 4
"""Times that Spark tries a task, as it does by default on every master but a local one, where it tries once."""

_LOCAL: Final = re.compile(r"local(?:\[\s*(?P<workers>\d+|\*)\s*(?:,\s*(?P<attempts>\d+)\s*)?\])?")


def with_attempts(master: str) -> str:
    """A master that tries a task again whose Python worker died.

    On a local master ``spark.task.maxFailures`` is not looked at: the number stands behind the workers, as in
    ``local[2,4]``. One that the user wrote stays, and so do masters that are not local.
    """
    match = _LOCAL.fullmatch(master)
    if match is None or match["attempts"]:
        return master
    return f"local[{match['workers'] or 1},{ATTEMPTS}]"


def check_local(master: str) -> None:
    """Refuse a master whose tasks would run on other machines.

    Raises:
        ConfigError: It is not local.
    """
    if _LOCAL.fullmatch(master) is None:
        raise ConfigError(
            f"--master {master} (sparkMaster) cannot run offloads: tasks read the ledgers' files and cannot read from "
            "afar yet; use local[*] or local[N]"
        )
