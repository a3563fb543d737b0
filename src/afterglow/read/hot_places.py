"""How a process comes to the hot ledgers of a topic, by a description that travels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from afterglow.errors import HotLogUnavailable
from afterglow.read.handle import SharedHot

if TYPE_CHECKING:
    from afterglow.read.copies import HotReader


@dataclass(frozen=True, slots=True)
class HotPlace:
    """Where a hot log is. Holds no secrets."""

    home: str
    """The engine's home, an absolute path on its machine."""

    def open(self) -> HotReader:
        """The hot log, as it is reached from here.

        Raises:
            HotLogUnavailable: It cannot be reached from this machine.
        """
        home = Path(self.home)
        if not home.is_dir():
            raise HotLogUnavailable(
                f"the hot log in {self.home} cannot be reached from here: read it on the engine's machine, share its "
                "disk, or leave it out (hot=skip)"
            )
        return SharedHot(home)
