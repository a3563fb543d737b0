"""The independent verifier: reads metadata and tiers with parsers of its own, and shares no code with the writers.

Entry points: :func:`~afterglow.verify.verifier.verify` reports findings, :func:`~afterglow.verify.sweep.sweep` deletes
orphans. One object is verified by :func:`~afterglow.verify.objects.verify_object`.
"""

from __future__ import annotations

from afterglow.verify.deep import ObjectVerifier
from afterglow.verify.findings import Finding, FindingKind
from afterglow.verify.objects import CommittedObject, HeldRange
from afterglow.verify.sweep import Swept, sweep
from afterglow.verify.topic_metadata import ParsedLocation
from afterglow.verify.verifier import verify

__all__ = [
    "CommittedObject",
    "Finding",
    "FindingKind",
    "HeldRange",
    "ObjectVerifier",
    "ParsedLocation",
    "Swept",
    "sweep",
    "verify",
]
