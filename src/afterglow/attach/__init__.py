"""Attach: streaming tiered storage for the topics of an Apache Pulsar cluster, which is not changed.

Entry points: :class:`~afterglow.attach.process.AttachProcess` is the running process of ``afterglow attach``, and
:class:`~afterglow.attach.topics.AttachedTopics` has the topics that :mod:`afterglow.offload` streams to the tier.
:class:`SettingsReader` reads what applies to topics, :func:`check` finds what endangers entries that are not in the
tier yet, :func:`is_attachable` leaves topics out.
"""

from __future__ import annotations

from afterglow.attach.attachable import exclusion_rule, is_attachable
from afterglow.attach.cluster_checks import Consequence, Risk, WhenBehind, check, release_bytes
from afterglow.attach.cluster_settings import SettingsReader, TopicSettings

__all__ = [
    "Consequence",
    "Risk",
    "SettingsReader",
    "TopicSettings",
    "WhenBehind",
    "check",
    "exclusion_rule",
    "is_attachable",
    "release_bytes",
]
