"""``python -m afterglow``."""

from __future__ import annotations

from afterglow.cli import main

main()
