"""Statistics of a topic for people: figures first, then a table for each list or map inside. Machines get the JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from afterglow.cli.output import Output

_COLUMNS: Final = {
    "publishers": ("producerName", "producerId", "msgRateIn", "address", "clientVersion"),
    "subscriptions": ("name", "type", "msgBacklog", "unackedMessages", "msgOutCounter", "bytesOutCounter"),
    "ledgers": ("ledgerId", "entries", "size", "offloaded", "isOffloaded"),
    "cursors": ("name", "markDelete", "markDeletePosition", "readPosition", "state", "individuallyDeletedMessages"),
}
"""What people see of the longer ones, as far as it is there; the rest is in the JSON."""


def print_statistics(out: Output, stats: Mapping[str, Any]) -> None:
    """Print statistics as the admin API gives them; those of partitions one after another."""
    if out.as_json:
        out.json(stats)
        return
    figures = {name: value for name, value in stats.items() if not isinstance(value, dict | list)}
    out.record(figures, absent="")
    for name, columns in _COLUMNS.items():
        found = stats.get(name) or []
        rows = [{"name": key, **row} for key, row in found.items()] if isinstance(found, dict) else found
        if rows:
            out.table(rows, [column for column in columns if column in rows[0]], title=name)
    for name, partition in (stats.get("partitions") or {}).items():
        out.say(name)
        print_statistics(out, partition)
