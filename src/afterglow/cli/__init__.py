"""The command line: thin commands over the packages below."""

from __future__ import annotations

from afterglow.cli.app import main

__all__ = ["main"]
