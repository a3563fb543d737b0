"""Credentials for a Pulsar cluster, and the certificate authorities to trust.

Separate from ``admin_client``, whose imports would slow down ``afterglow --help``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from afterglow.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ClusterCredentials:
    """Credentials for the admin API and the brokers of one cluster, and the certificate authorities to trust."""

    token: str | None = field(default=None, repr=False)
    """Token of a role; None without authentication."""
    ca_file: str | None = None
    """PEM file of the certificate authorities to trust; None: those of the system."""

    @classmethod
    def of(cls, token: str | None = None, ca_file: str | None = None) -> Self:
        """Take the given values, by default those of ``AFTERGLOW_TOKEN`` and ``AFTERGLOW_CA_FILE``.

        Raises:
            ConfigError: The token's file cannot be read.
        """
        return cls(
            read_token(token or os.environ.get("AFTERGLOW_TOKEN") or None),
            ca_file or os.environ.get("AFTERGLOW_CA_FILE") or None,
        )


def read_token(given: str | None) -> str | None:
    """Return a token given in any of Pulsar's forms: the token itself, ``token:TOKEN``, or ``file:///path``.

    Raises:
        ConfigError: The file cannot be read.
    """
    if given is None or not given.startswith("file:"):
        return given if given is None else given.removeprefix("token:")
    path = Path(given.removeprefix("file:").removeprefix("//"))
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token in {path} cannot be read: {error}; give --token file:///PATH") from error
