"""The rows of the configuration table, one module per section, in the order of the documentation."""

from __future__ import annotations

from afterglow.config.sections.ledgers import Ledgers
from afterglow.config.sections.offload import Offload
from afterglow.config.sections.pipeline import Pipeline
from afterglow.config.sections.reading import Reading
from afterglow.config.sections.security import Security
from afterglow.config.sections.server import Server
from afterglow.config.sections.streaming import Streaming
from afterglow.config.sections.tier import Tier
from afterglow.config.sections.topics import Topics

__all__ = ["Ledgers", "Offload", "Pipeline", "Reading", "Security", "Server", "Streaming", "Tier", "Topics"]
