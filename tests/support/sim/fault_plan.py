"""Fault plans: rules for the tier and for metadata that hold for a while, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tests.support.faults import CHANGES, Fault, FaultRule

if TYPE_CHECKING:
    from random import Random

_WRITES: Final = frozenset({"put", "delete", "create_upload", "upload_part", "complete_upload", "abort_upload"})
_DATA: Final = "*[0-9a-f]"
"""Keys of data objects; an index ends otherwise, and no checksum covers it: only its length is noticed."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Faults that hold at the same time."""

    name: str
    tier: tuple[FaultRule, ...] = ()
    metadata: tuple[FaultRule, ...] = ()
    torn: float = 0.0
    """Of a read of the hot log giving less than it says, or nothing."""
    conflicts: float = 0.0
    """Of another process changing a topic's ledger list, harmlessly, right before it is written."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing goes wrong."""
        return not (self.tier or self.metadata or self.torn or self.conflicts)


NO_FAULTS: Final = FaultPlan("calm")


def draw_fault_plan(rng: Random) -> FaultPlan:
    """One of the kinds, more or less severe."""
    often = rng.choice((0.05, 0.2, 0.5))
    kinds = {
        "a tier that fails now and then": FaultPlan("", tier=_flaky_tier(often)),
        "a tier that is out": FaultPlan("", tier=_out_tier()),
        "a tier that garbles what is read": FaultPlan("", tier=_garbled_tier(often)),
        "a hot log whose reads are torn": FaultPlan("", torn=often),
        "torn and garbled reads": FaultPlan("", tier=_garbled_tier(often), torn=often),
        "metadata that fails now and then": FaultPlan("", metadata=_flaky_metadata(often), conflicts=often),
        "metadata that is out": FaultPlan("", metadata=_out_metadata()),
        "another process that changes ledger lists": FaultPlan("", conflicts=often),
        "a storm": FaultPlan("", _flaky_tier(often) + _garbled_tier(often), _flaky_metadata(often), often, often),
    }
    name = rng.choice(tuple(kinds))
    drawn = kinds[name]
    return replace(drawn, name=f"{name} ({often})")


def _flaky_tier(often: float) -> tuple[FaultRule, ...]:
    return (
        FaultRule(Fault.ERROR_BEFORE, times=None, probability=often),
        FaultRule(Fault.ERROR_AFTER, _WRITES, times=None, probability=often),
    )


def _out_tier() -> tuple[FaultRule, ...]:
    return (FaultRule(Fault.ERROR_BEFORE, times=None),)


def _garbled_tier(often: float) -> tuple[FaultRule, ...]:
    return (
        FaultRule(Fault.FLIPPED_BIT, key=_DATA, times=None, probability=often / 2),
        FaultRule(Fault.SHORT_READ, times=None, probability=often / 2),
    )


def _flaky_metadata(often: float) -> tuple[FaultRule, ...]:
    return (
        FaultRule(Fault.ERROR_BEFORE, times=None, probability=often),
        FaultRule(Fault.ERROR_AFTER, CHANGES, times=None, probability=often),
        FaultRule(Fault.LOST, times=None, probability=often),
    )


def _out_metadata() -> tuple[FaultRule, ...]:
    return (FaultRule(Fault.ERROR_BEFORE, times=None),)
