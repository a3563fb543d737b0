"""The independent checker: reads metadata and tiers with parsers of its own, and shares no code with the writers."""

from __future__ import annotations

from afterglow.verify.checker import verify
from afterglow.verify.deep import ObjectChecker
from afterglow.verify.findings import Finding, Kind
from afterglow.verify.objects import ObjectCheck, Stretch, check_object
from afterglow.verify.places import Place
from afterglow.verify.sweep import Swept, sweep

__all__ = [
    "Finding",
    "Kind",
    "ObjectCheck",
    "ObjectChecker",
    "Place",
    "Stretch",
    "Swept",
    "check_object",
    "sweep",
    "verify",
]
