"""Every key that may stand in a configuration, and the nearest of them to one that may not.

Apache Pulsar has many more settings than this table. Their names are accepted without effect, so that a stock
``broker.conf`` can be used as it is.
"""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afterglow.config.broker import SETTINGS
from afterglow.config.kinds import Kind
from afterglow.config.setting import words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from afterglow.config.setting import Setting


@cache
def spellings() -> Mapping[str, tuple[Setting, Kind[Any]]]:
    """Every key and alias of the table, with its setting and the kind that reads its text."""
    table: dict[str, tuple[Setting, Kind[Any]]] = {}
    for row in SETTINGS.values():
        table[row.key] = row, row.kind
        table |= {alias: (row, kind) for alias, kind in row.aliases.items()}
    return table


def find(key: str) -> tuple[Setting, Kind[Any]] | None:
    """The setting that a key belongs to, with the kind that reads its text; None for an unknown key."""
    found = spellings().get(key)
    return found if found is not None else _find_property(key)


def _find_property(key: str) -> tuple[Setting, Kind[Any]] | None:
    owner = next((row for row in SETTINGS.values() if row.prefix and key.startswith(row.prefix)), None)
    name = key.removeprefix(owner.prefix) if owner and owner.prefix else ""
    if not owner or not name:
        return None
    return owner, Kind("a text", lambda text: ((name, text),), owner.kind.accepts, takes_empty=True)


@cache
def pulsar_keys() -> frozenset[str]:
    """The keys of a stock Pulsar 4.0; one that ends in ``*`` stands for all that begin so."""
    lines = Path(__file__).with_name("pulsar_keys.txt").read_text("utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


@cache
def _pulsar_prefixes() -> tuple[str, ...]:
    return tuple(key[:-1] for key in pulsar_keys() if key.endswith("*"))


def is_pulsar_key(key: str) -> bool:
    """Whether a stock Pulsar 4.0 knows the key."""
    return key in pulsar_keys() or key.startswith(_pulsar_prefixes())


def nearest(key: str) -> str | None:
    """The known key that was probably meant, or None where none is near."""
    known = {name.lower(): name for name in (*pulsar_keys(), *spellings()) if not name.endswith("*")}
    close = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.75)
    if close:
        return known[close[0]]
    # A shortened name, as s3Bucket: all its words occur, and the fewest others.
    wanted = set(words(key))
    longer = [name for name in known.values() if wanted and wanted <= set(words(name))]
    return min(longer, key=lambda name: (len(name), name), default=None)
