"""Afterglow: streaming tiered storage for Apache Pulsar topics."""

from __future__ import annotations

__version__ = "0.1.0"
