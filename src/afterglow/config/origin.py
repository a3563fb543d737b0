"""Where a value came from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OriginKind(StrEnum):
    """The kinds of places that give values, the weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    ARGUMENT = "argument"


@dataclass(frozen=True, slots=True)
class Origin:
    """The place that gave a value."""

    kind: OriginKind
    where: str
    """For people: ``broker.conf:12``, the variable's name, the argument's name, or ``default``."""

    def __str__(self) -> str:
        return self.where


DEFAULT = Origin(OriginKind.DEFAULT, "default")
