"""The independent verifier: reads metadata and tiers with parsers of its own, and shares no code with the writers.

:func:`verify` reports findings, :func:`sweep` deletes orphans. Both are in :mod:`~afterglow.verify.checker` and
:mod:`~afterglow.verify.sweep`; one object is verified in :mod:`~afterglow.verify.objects`.
"""

from __future__ import annotations

from afterglow.verify.checker import verify
from afterglow.verify.deep import ObjectChecker
from afterglow.verify.findings import Finding, Kind
from afterglow.verify.objects import ObjectCheck, Stretch, check_object
from afterglow.verify.sweep import Swept, sweep
from afterglow.verify.topic_metadata import ParsedLocation

__all__ = [
    "Finding",
    "Kind",
    "ObjectCheck",
    "ObjectChecker",
    "ParsedLocation",
    "Stretch",
    "Swept",
    "check_object",
    "sweep",
    "verify",
]
