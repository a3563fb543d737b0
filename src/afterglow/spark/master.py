"""What a Spark master says about where tasks run."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from afterglow.errors import ConfigError

ATTEMPTS: Final = 4
"""Times that Spark tries a task, as it does by default on every master but a local one, where it tries once."""

_ELSEWHERE: Final = re.compile(r"yarn|local-cluster\[[^\]]+\]|[\w+.-]+://\S+")
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


def is_local(master: str) -> bool:
    """Whether tasks run beside this process, so that they see what it sees; else they may run anywhere.

    Raises:
        ConfigError: It is no master.
    """
    if _LOCAL.fullmatch(master) is not None:
        return True
    if _ELSEWHERE.fullmatch(master) is None:
        raise ConfigError(
            f"--master {master} (sparkMaster) is malformed: use local[*] or local[N], spark://HOST:7077, yarn or "
            "k8s://https://HOST:PORT"
        )
    return False


def master_hosts(master: str) -> tuple[str, ...]:
    """The hosts that a standalone cluster's masters are on; empty for masters of other kinds."""
    scheme, _, rest = master.partition("://")
    if scheme != "spark":
        return ()
    return tuple(urlsplit(f"//{part.strip()}").hostname or "" for part in rest.split(","))
