"""What the admin API asks of whoever offloads; ``afterglow.offload.service`` answers it.

Topics are named by their managed-ledger name. Every method may wait for metadata, so that calls run on a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from afterglow.format.position import Position
    from afterglow.offload.explain import Explanation


class OffloadStatus(Protocol):
    """How the last offload that was asked for by hand went."""

    @property
    def state(self) -> str:
        """``NOT_RUN``, ``RUNNING``, ``SUCCESS`` or ``ERROR``."""
        ...

    @property
    def last_error(self) -> str:
        """What went wrong; empty where nothing did."""
        ...

    @property
    def first_unoffloaded(self) -> Position:
        """The first position that was not offloaded; the earliest where that is not known."""
        ...


class OffloadStatistics(Protocol):
    """What was offloaded of a topic, and when."""

    @property
    def offloaded_bytes(self) -> int:
        """Of ledgers that are in the tier as a whole."""
        ...

    @property
    def last_ledger_id(self) -> int:
        """The newest of them; 0 where there is none."""
        ...

    @property
    def last_success_ms(self) -> int:
        """Epoch milliseconds; 0: none."""
        ...

    @property
    def last_failure_ms(self) -> int:
        """Epoch milliseconds; 0: none."""
        ...


class Offloads(Protocol):
    """Who offloads."""

    def offload_prefix(self, name: str, position: Position) -> None:
        """Begin to offload everything before a position.

        Raises:
            OffloadInProgress: The one before still runs.
        """
        ...

    def status(self, name: str) -> OffloadStatus:
        """How the last offload by hand went."""
        ...

    def explain(self, name: str) -> tuple[Explanation, ...]:
        """Why each ledger is where it is."""
        ...

    def statistics(self, name: str) -> OffloadStatistics:
        """What was offloaded."""
        ...
