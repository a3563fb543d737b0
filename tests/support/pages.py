"""Pages of documentation: what they show, and running it as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

_FENCE: Final = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Listing:
    """What stands between fences."""

    language: str
    text: str
    before: str
    """The line of prose above it."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page, or a part of one."""

    text: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """The page in a file."""
        return cls(path.read_text())

    def part(self, head: str) -> Page:
        """What stands below a heading of the second level.

        Raises:
            ValueError: There is no such heading, or there are several.
        """
        (found,) = [text for text in re.split(r"^## ", self.text, flags=re.MULTILINE) if text.startswith(f"{head}\n")]
        return Page(found)

    def listings(self) -> Iterator[Listing]:
        """Everything between fences, in order."""
        for match in _FENCE.finditer(self.text):
            above = self.text[: match.start()].rstrip().rpartition("\n")[2]
            yield Listing(match[2], re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE), above)

    @property
    def programs(self) -> list[str]:
        """The programs in Python."""
        return [listing.text for listing in self.listings() if listing.language == "python"]

    @property
    def commands(self) -> list[str]:
        """The lines of shell listings, each with what it goes on with."""
        shells = (listing.text for listing in self.listings() if listing.language in {"sh", "bash"})
        return [line for text in shells for line in text.replace("\\\n", " ").splitlines() if line.strip()]

    def program(self, marker: str) -> str:
        """The one program that has these words.

        Raises:
            ValueError: None has them, or several do.
        """
        (found,) = [text for text in self.programs if marker in text]
        return found


@contextmanager
def without_java() -> Iterator[dict[str, str]]:
    """This process's environment on a machine without Java: none by a variable, none on the path."""
    hidden = {"JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME"}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    folders = [Path(folder) for folder in kept.get("PATH", "").split(os.pathsep) if folder]
    with tempfile.TemporaryDirectory(prefix="afterglow-path-") as scratch:
        for number, folder in enumerate(folders):
            if (folder / "java").exists():
                folders[number] = Path(scratch) / str(number)
                folders[number].mkdir()
                for program in folder.iterdir():
                    if program.name != "java":
                        (folders[number] / program.name).symlink_to(program)
        yield {**kept, "PATH": os.pathsep.join(map(str, folders))}


def run_python(*arguments: str, cwd: Path | None = None, timeout_s: float = _TIMEOUT_S) -> str:
    """Run this interpreter on a machine without Java, its environment not activated; returns what it printed.

    Raises:
        AssertionError: It failed; the message is what it said.
    """
    with without_java() as environment:
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**environment, "SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    if done.returncode:
        raise AssertionError(done.stderr)
    return done.stdout
