"""A topic's own policies as they are stored: those of this cluster, and beside them those set for all clusters.

Pulsar keeps both kinds, and where both set a policy that of the cluster wins. With one cluster all of them hold here.
Pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    Json = dict[str, Any]

_GLOBAL: Final = "global"
"""The field with the policies for all clusters."""


def effective(stored: Mapping[str, Any]) -> Json:
    """What a topic's policies ask for: by policy that of the cluster, else that for all clusters."""
    return {**of_scope(stored, is_global=True), **of_scope(stored, is_global=False)}


def of_scope(stored: Mapping[str, Any], *, is_global: bool) -> Json:
    """What is set for all clusters, or for this one alone."""
    if is_global:
        return dict(stored.get(_GLOBAL) or {})
    return {name: value for name, value in stored.items() if name != _GLOBAL}


def with_scope(stored: Mapping[str, Any], part: Json, *, is_global: bool) -> Json:
    """The policies with another part for all clusters, or for this one alone."""
    other = of_scope(stored, is_global=not is_global)
    local, everywhere = (other, part) if is_global else (part, other)
    return {**local, _GLOBAL: everywhere} if everywhere else local
