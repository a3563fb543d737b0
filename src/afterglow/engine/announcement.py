"""Where a running engine is reached, told in its home to whoever reads beside it.

Readers of the home need it only for processes on other machines, such as tasks of a Spark job: these find no hot log on
their own disk. What an engine that was killed has left is as good as nothing: nobody answers there.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_FILE: Final = "serving.json"
_SERVICE_URL: Final = "serviceUrl"


def announce(home: Path, service_url: str) -> None:
    """Say where the broker is reached; an empty address says nothing.

    Raises:
        OSError: The disk refuses.
    """
    if not service_url:
        return
    new = home / f"{_FILE}.new"
    new.write_text(json.dumps({_SERVICE_URL: service_url}) + "\n", "utf-8")
    os.replace(new, home / _FILE)  # noqa: PTH105 - readers see the old one or the new one


def withdraw(home: Path) -> None:
    """Say it no more; where the disk refuses, it is as after a crash."""
    with suppress(OSError):
        (home / _FILE).unlink(missing_ok=True)


def announced(home: Path) -> str:
    """Where the engine on a home says that it is reached; empty where it says nothing."""
    try:
        found = json.loads((home / _FILE).read_text("utf-8"))[_SERVICE_URL]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return found if isinstance(found, str) else ""
