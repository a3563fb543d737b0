"""The command line ``afterglow``: thin commands over the packages below.

Entry point: :func:`main`. :mod:`afterglow.cli.app` lists the modules of commands.
"""

from __future__ import annotations

from afterglow.cli.app import main

__all__ = ["main"]
