"""Where the admin API answers, and how a call to it is made.

Options may stand before or after a subcommand; the last one given counts, then the environment, then the default.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Annotated, Final

import typer

from afterglow.metadata.cluster_credentials import read_token

DEFAULT_ADMIN_URL: Final = "http://127.0.0.1:8080"


AdminUrl = Annotated[
    str | None,
    typer.Option("--admin-url", metavar="URL", help="The admin API; else AFTERGLOW_ADMIN_URL, else port 8080 here."),
]
Token = Annotated[
    str | None,
    typer.Option("--token", metavar="TOKEN", help="Proof of a role: the token, or file:///path; else AFTERGLOW_TOKEN."),
]
CaFile = Annotated[
    str | None,
    typer.Option("--ca-file", metavar="PATH", help="Certificates to trust for https; else AFTERGLOW_CA_FILE."),
]


@dataclass(frozen=True, slots=True)
class Connection:
    """The options of a connection; what is None was not given."""

    admin_url: AdminUrl = None
    token: Token = None
    ca_file: CaFile = None

    def overlaid(self, later: Connection) -> Connection:
        """These options where the later ones say nothing."""
        given = {field.name: getattr(later, field.name) or getattr(self, field.name) for field in fields(self)}
        return Connection(**given)

    def resolved(self) -> Connection:
        """The connection with what environment and defaults add, and the token itself instead of its file.

        Raises:
            ConfigError: The token's file cannot be read.
        """
        environment = Connection(*(os.environ.get(f"AFTERGLOW_{field.name.upper()}") for field in fields(self)))
        found = Connection(DEFAULT_ADMIN_URL).overlaid(environment).overlaid(self)
        return Connection(found.admin_url, read_token(found.token), found.ca_file)
