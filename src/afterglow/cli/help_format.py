"""Help and usage errors: text as wide as the terminal, whole sentences for commands, and few suggestions."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Final

from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_WIDTH: Final = 140
"""Longer lines are hard to read, however wide the terminal."""
_LIKELY: Final = 0.8
"""Similarity above which a name may be a misspelling of another. difflib's default of 0.6 offers ``get-x`` for
``reset-x``."""
_ALIKE: Final = 0.02
"""Difference below which two names are equally likely."""
_MAX_SUGGESTED: Final = 3
_WHOLE: Final = 10_000


class HelpGroup(TyperGroup):
    """A group of commands whose help is not cut, and which suggests only commands that are likely meant."""

    suggest_commands = False

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, each with the whole first sentence of its help."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, found.get_short_help_str(_WHOLE)) for name, found in commands if found and not found.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"no such command {args[0]!r}{suggestion(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


def likely(given: str, known: Iterable[str]) -> list[str]:
    """Names that the given one may be a misspelling of, the most similar first."""
    wanted = given.lower()
    rated = ((SequenceMatcher(None, wanted, name.lower()).ratio(), name) for name in known)
    found = sorted(((ratio, name) for ratio, name in rated if ratio >= _LIKELY), key=lambda each: (-each[0], each[1]))
    best = found[0][0] if found else 0.0
    return [name for ratio, name in found if ratio >= best - _ALIKE][:_MAX_SUGGESTED]


def suggestion(given: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: a question with likely names; empty if none is likely."""
    names = likely(given, known)
    return f"; did you mean {' or '.join(map(repr, names))}?" if names else ""
