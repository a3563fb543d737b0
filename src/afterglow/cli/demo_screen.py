"""What people see of the demo: sentences that stay, and below them, on a terminal, a picture that moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from afterglow.engine.demo_watch import Ink

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from afterglow.engine.demo_read_back import DemoResult
    from afterglow.engine.demo_watch import Look, Stroke

_SHAPES: Final = {
    Ink.HOT: ("▒", "#", "red", "hot"),
    Ink.FREED: ("·", ".", "dim", "in the tier alone"),
    Ink.OFFLOADED: ("█", "=", "cyan", "in the tier"),
    Ink.UPLOADED: ("▓", "+", "blue", "part uploaded"),
    Ink.FILLING: ("░", "-", "yellow", "filling"),
    Ink.BLANK: (" ", " ", "", ""),
}
"""How each is drawn: the sign, the sign on terminals that know ASCII alone, the colour; and what it is called."""
_WIDEST: Final = 100
_MARGIN: Final = 13
"""Columns before a lane."""
_NAMED: Final = 10
"""Differences that are printed."""


class Screen:
    """A :class:`~afterglow.engine.demo_watch.Show` on the terminal, or in plain lines where there is none."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._plain = not self._console.encoding.lower().startswith("utf")
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._print(Text("Afterglow demo", "bold"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, sentence: str) -> None:
        """A sentence that stays."""
        self._print(Text(f"  {sentence}"))

    def picture(self, look: Look, entries: int, now: str) -> None:
        """The picture as it is now; where nobody can see it move, none."""
        if self._console.is_interactive:
            self._live.start()
            self._live.update(Group(*self._lanes(look, entries), Text(f"  {now}", "italic")), refresh=True)

    def last_picture(self, look: Look) -> None:
        """The picture that stays."""
        self._live.stop()
        for line in self._lanes(look, look.entries):
            self._print(line)

    def result(self, result: DemoResult, took_s: float) -> None:
        """How it ended."""
        for difference in result.differences[:_NAMED]:
            self._print(Text(f"  {difference}", "red"))
        if result.differences:
            self._print(Text(f"Failed: {len(result.differences)} differences, after {took_s:.0f} s.", "bold red"))
            return
        self._print(
            Text(
                f"All {result.messages:,} messages came back from the tier alone: value, key, properties, event time, "
                f"position, order. {took_s:.0f} s in all.",
                "bold green",
            )
        )

    def hints(self, home: Path, topic: str) -> None:
        """What to do with a home that is kept."""
        self._print(Text(f"To look around: afterglow read {home} {topic} --limit 5"))
        self._print(Text(f"                afterglow verify {home} --deep"))
        self._print(Text(f"                afterglow serve --home {home} --streaming"))

    def _lanes(self, look: Look, entries: int) -> list[Text]:
        width = min(self._console.width, _WIDEST) - _MARGIN - 1
        lines = [Text(f"  {'log':<{_MARGIN - 3}} {f'{look.entries:,} entries':>{width}}", "dim")]
        for name, strokes in look.lanes(max(width, 20), entries).items():
            line = Text(f"  {name:<{_MARGIN - 3}} ")
            for stroke in strokes:
                line.append(*self._stroke(stroke))
            lines.append(line)
        return [*lines, self._legend()]

    def _stroke(self, stroke: Stroke) -> tuple[str, str]:
        sign, colour = self._shape(stroke.ink)
        label = f"{'|' if self._plain else '▏'}{stroke.label}" if stroke.label else ""
        return (label + sign * stroke.columns)[: stroke.columns], colour

    def _shape(self, ink: Ink) -> tuple[str, str]:
        sign, plain, colour, _ = _SHAPES[ink]
        return plain if self._plain else sign, colour

    def _legend(self) -> Text:
        line = Text(" " * _MARGIN)
        for ink, (_, _, _, word) in _SHAPES.items():
            if word:
                line.append(*self._shape(ink))
                line.append(f" {word}  ", "dim")
        return line

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)
