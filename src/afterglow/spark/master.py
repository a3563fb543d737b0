"""Spark masters: whether tasks run on this machine, and the number of attempts per task."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from afterglow.errors import ConfigError

ATTEMPTS: Final = 4
"""Attempts per task: Spark's default for every master except a local one, where it is one attempt."""

_REMOTE: Final = re.compile(r"yarn|local-cluster\[[^\]]+\]|[\w+.-]+://\S+")
_LOCAL: Final = re.compile(r"local(?:\[\s*(?P<workers>\d+|\*)\s*(?:,\s*(?P<attempts>\d+)\s*)?\])?")


def with_attempts(master: str) -> str:
    """A master that retries a task whose Python worker died.

    A local master ignores ``spark.task.maxFailures``; the number of attempts follows that of the workers, as in
    ``local[2,4]``. One that the user wrote is kept, and masters that are not local are unchanged.
    """
    match = _LOCAL.fullmatch(master)
    if match is None or match["attempts"]:
        return master
    return f"local[{match['workers'] or 1},{ATTEMPTS}]"


def is_local(master: str) -> bool:
    """Whether tasks run on this machine, with its files and memory; else they may run anywhere.

    Raises:
        ConfigError: It is not a valid master.
    """
    if _LOCAL.fullmatch(master) is not None:
        return True
    if master.startswith("sc://"):
        raise ConfigError(
            f"--master {master} (sparkMaster) is a server of Spark Connect, which runs no jobs of Afterglow: export, "
            "verify --deep and offload need a Spark driver in their own process; give the master of the cluster, such "
            "as spark://HOST:7077"
        )
    if _REMOTE.fullmatch(master) is None:
        raise ConfigError(
            f"--master {master} (sparkMaster) is malformed: use local[*] or local[N], spark://HOST:7077, yarn or "
            "k8s://https://HOST:PORT"
        )
    return False


def master_hosts(master: str) -> tuple[str, ...]:
    """The hosts of a standalone cluster's masters; empty for masters of other kinds."""
    scheme, _, rest = master.partition("://")
    if scheme != "spark":
        return ()
    return tuple(urlsplit(f"//{part.strip()}").hostname or "" for part in rest.split(","))
