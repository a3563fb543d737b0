"""Rows of the configuration table, written as fields of a section's dataclass, and the origins of their values.

A row is declared once, as ``name: type = setting(kind, default=…, doc=…)``; mypy holds the field's type, the kind and
the default together. The key in ``broker.conf`` follows from the attribute: ``broker_service_port`` is
``brokerServicePort``. Where Pulsar spells a word in capitals (``sizeInMB``), the row names its key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from afterglow.config.kinds import Kind


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


T = TypeVar("T")


_ROW = "afterglow.setting"
_MASK = "********"


class Scope(StrEnum):
    """The narrowest level at which a setting may be set; each wider level may set it too."""

    BROKER = "broker"
    NAMESPACE = "namespace"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table."""

    key: str
    """Name in ``broker.conf``; Pulsar's own where Pulsar has the setting."""
    attribute: str
    """Name of the field of ``BrokerConfig``."""
    section: type
    """The dataclass that declares it."""
    kind: Kind[Any]
    default: Any
    doc: str
    scope: Scope
    aliases: Mapping[str, Kind[Any]]
    """Other spellings of the key, each with the kind that reads its text into this setting's value."""
    prefix: str | None
    """Keys that begin with this each add one pair to the map, as Pulsar does for driver properties."""
    secret: bool
    """Whether the value must not be shown."""

    def show(self, value: object) -> str:
        """The value for people: as ``broker.conf`` would have it, secrets masked."""
        return _MASK if self.secret and value not in (None, ()) else self.kind.render(value)


def setting(
    kind: Kind[T],
    *,
    default: T,
    doc: str,
    key: str | None = None,
    scope: Scope = Scope.BROKER,
    aliases: Mapping[str, Kind[T]] | None = None,
    prefix: str | None = None,
    secret: bool = False,
) -> T:
    """Declare a row; see :class:`Setting` for the arguments."""
    row = {"kind": kind, "doc": doc, "key": key, "scope": scope, "prefix": prefix, "secret": secret}
    return field(default=default, metadata={_ROW: row | {"aliases": dict(aliases or {})}})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(setting,))
def section(cls: type[T]) -> type[T]:
    """Make a class a section of the table: a frozen dataclass that is only ever a base of the whole configuration."""
    # Methods are generated once, for the whole; generating them for each section doubles the time of the import.
    return dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)(cls)


def declared(cls: type) -> Iterator[Setting]:
    """The rows of a section, in the order written."""
    for item in fields(cls):
        if _ROW in item.metadata:
            row = dict(item.metadata[_ROW])
            row["key"] = row["key"] or camel_case(item.name)
            yield Setting(attribute=item.name, section=cls, default=item.default, **row)


def camel_case(attribute: str) -> str:
    """``broker_service_port`` to ``brokerServicePort``."""
    first, *rest = attribute.split("_")
    return first + "".join(word.capitalize() for word in rest)


def words(key: str) -> list[str]:
    """The lower-case words of a key: ``fileSystemURI`` has ``file``, ``system``, ``uri``."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", key)]
