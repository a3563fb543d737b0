"""Options of a tier on the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from afterglow.errors import ConfigError

TierOptions = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="An option of the tier, such as endpoint or region."),
]


def tier_options(given: list[str] | None) -> dict[str, str]:
    """Options given as NAME=VALUE.

    Raises:
        ConfigError: One has no value.
    """
    options: dict[str, str] = {}
    for item in given or ():
        name, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"--option {item!r} has no value; write --option NAME=VALUE")
        options[name.strip()] = value
    return options
