"""Credentials for a cluster, and the authorities to trust there.

Apart from the client, whose imports would slow down ``afterglow --help``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from afterglow.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ClusterCredentials:
    """Credentials for the admin API and the brokers of one cluster, and the authorities to trust there."""

    token: str | None = field(default=None, repr=False)
    """Proves a role; None where nothing is asked."""
    ca_file: str | None = None
    """A PEM file of the authorities to trust; None: those that the system trusts."""

    @classmethod
    def of(cls, token: str | None = None, ca_file: str | None = None) -> Self:
        """What was given, else what the environment says: ``AFTERGLOW_TOKEN`` and ``AFTERGLOW_CA_FILE``.

        Raises:
            ConfigError: The token's file cannot be read.
        """
        return cls(
            read_token(token or os.environ.get("AFTERGLOW_TOKEN") or None),
            ca_file or os.environ.get("AFTERGLOW_CA_FILE") or None,
        )


def read_token(given: str | None) -> str | None:
    """A token in any of Pulsar's spellings: as it is, after ``token:``, or the content of ``file:///path``.

    Raises:
        ConfigError: Its file cannot be read.
    """
    if given is None or not given.startswith("file:"):
        return given if given is None else given.removeprefix("token:")
    path = Path(given.removeprefix("file:").removeprefix("//"))
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token in {path} cannot be read: {error}; give --token file:///PATH") from error
