"""Declaration of settings as fields of a section's dataclass, and the origins of their values.

A setting is declared once, as ``name: type = setting(value_type, default=…, doc=…)``; mypy checks that the field's
type, the value type and the default agree. The key in ``broker.conf`` is derived from the attribute:
``broker_service_port`` becomes ``brokerServicePort``. Where Pulsar writes a word in capitals (``sizeInMB``), the
setting names its key. The settings themselves are in ``settings_server``, ``settings_topics`` and ``settings_offload``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from afterglow.config.value_types import ValueType


class OriginKind(StrEnum):
    """Sources of values, in ascending order of precedence."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    ARGUMENT = "argument"
    NAMESPACE = "namespace"
    TOPIC = "topic"

    @property
    def level(self) -> str:
        """The level that set the value: ``topic``, ``namespace`` or ``broker``; ``default`` if none did."""
        return self.value if self in {OriginKind.TOPIC, OriginKind.NAMESPACE, OriginKind.DEFAULT} else "broker"


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a value."""

    kind: OriginKind
    where: str
    """For messages: ``broker.conf:12``, a variable's name, an argument's name, ``topic policies``, or ``default``."""

    def __str__(self) -> str:
        return self.where


DEFAULT = Origin(OriginKind.DEFAULT, "default")

T = TypeVar("T")

_ROW = "afterglow.setting"
MASK = "********"
"""Shown in place of a secret."""


class Scope(StrEnum):
    """The narrowest level at which a setting may be set; wider levels may set it too."""

    BROKER = "broker"
    NAMESPACE = "namespace"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the configuration table."""

    key: str
    """Name in ``broker.conf``; Pulsar's name where Pulsar has the setting."""
    attribute: str
    """Name of the field in ``BrokerConfig``."""
    section: type
    """The dataclass that declares the setting."""
    value_type: ValueType[Any]
    default: Any
    doc: str
    scope: Scope
    aliases: Mapping[str, ValueType[Any]]
    """Other spellings of the key, each with the type that parses its text into a value of this setting."""
    prefix: str | None
    """Each key with this prefix adds one pair to the map, as in Pulsar's driver properties."""
    secret: bool
    """Whether the value must be masked."""

    def show(self, value: object) -> str:
        """Return the value as it would be written in ``broker.conf``, with secrets masked."""
        return MASK if self.secret and value not in (None, ()) else self.value_type.render(value)


def setting(
    value_type: ValueType[T],
    *,
    default: T,
    doc: str,
    key: str | None = None,
    scope: Scope = Scope.BROKER,
    aliases: Mapping[str, ValueType[T]] | None = None,
    prefix: str | None = None,
    secret: bool = False,
) -> T:
    """Declare a setting; see :class:`Setting` for the arguments."""
    row = {"value_type": value_type, "doc": doc, "key": key, "scope": scope, "prefix": prefix, "secret": secret}
    return field(default=default, metadata={_ROW: row | {"aliases": dict(aliases or {})}})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(setting,))
def section(cls: type[T]) -> type[T]:
    """Make a class a section of the table: a frozen dataclass that serves only as a base of ``BrokerConfig``."""
    # Methods are generated once, for BrokerConfig; generating them for each section doubles the import time.
    return dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)(cls)


def declared(cls: type) -> Iterator[Setting]:
    """Return the settings of a section in the order of declaration."""
    for item in fields(cls):
        if _ROW in item.metadata:
            row = dict(item.metadata[_ROW])
            row["key"] = row["key"] or camel_case(item.name)
            yield Setting(attribute=item.name, section=cls, default=item.default, **row)


def camel_case(attribute: str) -> str:
    """Convert ``broker_service_port`` to ``brokerServicePort``."""
    first, *rest = attribute.split("_")
    return first + "".join(word.capitalize() for word in rest)


def words(key: str) -> list[str]:
    """Split a key into lower-case words: ``fileSystemURI`` into ``file``, ``system``, ``uri``."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", key)]
