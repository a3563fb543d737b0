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
    NAMESPACE = "namespace"
    TOPIC = "topic"

    @property
    def level(self) -> str:
        """For whom the value was set: ``topic``, ``namespace`` or ``broker``; ``default`` where nobody set it."""
        return self.value if self in {OriginKind.TOPIC, OriginKind.NAMESPACE, OriginKind.DEFAULT} else "broker"


@dataclass(frozen=True, slots=True)
class Origin:
    """The place that gave a value."""

    kind: OriginKind
    where: str
    """For people: ``broker.conf:12``, the variable's name, the argument's name, ``topic policies``, or ``default``."""

    def __str__(self) -> str:
        return self.where


DEFAULT = Origin(OriginKind.DEFAULT, "default")
