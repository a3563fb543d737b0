"""A disk that remembers: it counts calls, lets any of them fail, and rebuilds what a crash would have left.

The model of a crash is strict. Bytes survive if their file was synced after they were written; a name, its removal or
its change survives if its directory was synced after. All else may be there or not: each write on its own, whole or
torn at any byte; changes of names in their order. (Real file systems keep more.)
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from afterglow.hot.local.disk import Disk

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["Op", "RecordedDisk", "Survival", "UnsyncedDisk", "rebuild"]

Survival = Literal["all", "synced", "some"]
"""What survives a crash of what was not synced: all of it (only the process died), nothing, or chance decides."""


class UnsyncedDisk(Disk):
    """The real disk without its syncs, for what needs speed and no durability."""

    def sync(self, descriptor: int) -> None:
        """Do nothing."""

    def sync_directory(self, path: Path) -> None:
        """Do nothing."""


class Op(NamedTuple):
    """One change, or a mark that a test set."""

    kind: str
    """``write``, ``truncate``, ``sync``; ``link``, ``rename``, ``unlink``, ``sync_directory``; ``mark``."""

    subject: Any
    """The file's number; for names, the directory; for a mark, what was marked."""

    at: Any = None
    """Offset or length; for names, the name or names."""

    data: bytes = b""
    """What was written."""


class RecordedDisk(UnsyncedDisk):
    """A disk below a directory, whose files at the start count as durable."""

    def __init__(self, root: Path) -> None:
        self.ops: list[Op] = []
        """Every change, in order."""
        self.calls: Counter[str] = Counter()
        """Calls by the method's name."""
        self.read_bytes = 0
        """Bytes read."""
        self.open_now = 0
        """Files open now."""
        self.most_open = 0
        """Most files ever open at once."""
        self.fault: Callable[[str, Path], OSError | None] = lambda _method, _path: None
        """Asked before every call that may fail; it fails with what this gives."""
        self._guard = threading.RLock()
        self._numbers: dict[Path, int] = {}
        self._files: dict[int, tuple[int, Path]] = {}
        self._next = 0
        for path in sorted(root.rglob("*")):
            if path.is_file():
                number = self._link(path)
                self.ops += [Op("write", number, 0, path.read_bytes()), Op("sync", number)]
                self.ops.append(Op("sync_directory", path.parent))

    def mark(self, what: object) -> None:
        """Put a mark among the changes."""
        with self._guard:
            self.ops.append(Op("mark", what))

    # --- the calls --------------------------------------------------------------------------------------------------

    def open(self, path: Path, *, write: bool = False, create: bool = False, empty: bool = False) -> int:
        """Open a file."""
        self._count("open", path)
        with self._guard:
            descriptor = super().open(path, write=write, create=create, empty=empty)
            number = self._numbers.get(path)
            if number is None:
                number = self._link(path)
            elif empty:
                self.ops.append(Op("truncate", number, 0))
            self._files[descriptor] = (number, path)
            self.open_now += 1
            self.most_open = max(self.most_open, self.open_now)
            return descriptor

    def close(self, descriptor: int) -> None:
        """Close a file."""
        with self._guard:
            self._files.pop(descriptor)
            self.open_now -= 1
            super().close(descriptor)

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        """Read from a file."""
        self._count("read", self._files[descriptor][1])
        data = super().read(descriptor, length, offset)
        with self._guard:
            self.read_bytes += len(data)
        return data

    def read_into(self, descriptor: int, target: memoryview, offset: int) -> int:
        """Read a file into a buffer."""
        self._count("read_into", self._files[descriptor][1])
        done = super().read_into(descriptor, target, offset)
        with self._guard:
            self.read_bytes += done
        return done

    def write(self, descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write to a file."""
        number, path = self._files[descriptor]
        self._count("write", path)
        with self._guard:
            super().write(descriptor, data, offset)
            self.ops.append(Op("write", number, offset, bytes(data)))

    def write_buffers(self, descriptor: int, pieces: Sequence[bytes | memoryview], offset: int) -> None:
        """Write to a file."""
        self.write(descriptor, b"".join(pieces), offset)

    def truncate(self, descriptor: int, length: int) -> None:
        """Cut a file."""
        number, path = self._files[descriptor]
        self._count("truncate", path)
        with self._guard:
            super().truncate(descriptor, length)
            self.ops.append(Op("truncate", number, length))

    def sync(self, descriptor: int) -> None:
        """Note that a file is durable."""
        number, path = self._files[descriptor]
        self._count("sync", path)
        with self._guard:
            self.ops.append(Op("sync", number))

    def sync_directory(self, path: Path) -> None:
        """Note that the names in a directory are durable."""
        self._count("sync_directory", path)
        with self._guard:
            self.ops.append(Op("sync_directory", path))

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file within its directory."""
        self._count("rename", target)
        with self._guard:
            super().rename(source, target)
            self._numbers[target] = self._numbers.pop(source)
            for descriptor, (number, path) in self._files.items():
                if path == source:
                    self._files[descriptor] = (number, target)
            self.ops.append(Op("rename", source.parent, (source.name, target.name)))

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        self._count("unlink", path)
        with self._guard:
            super().unlink(path)
            if self._numbers.pop(path, None) is not None:
                self.ops.append(Op("unlink", path.parent, path.name))

    def _link(self, path: Path) -> int:
        number = self._next
        self._next += 1
        self._numbers[path] = number
        self.ops.append(Op("link", path.parent, (path.name, number)))
        return number

    def _count(self, method: str, path: Path) -> None:
        """Count a call and ask whether it fails; not under the guard, so that a call may be held up."""
        with self._guard:
            self.calls[method] += 1
        error = self.fault(method, path)
        if error is not None:
            raise error


@dataclass(slots=True)
class _Pending:
    """What happened to a file or to a directory, and how much of it is durable."""

    ops: list[Op]
    durable: int = 0


def rebuild(ops: Sequence[Op], root: Path, target: Path, survival: Survival, chance: random.Random) -> None:
    """Lay down below ``target`` what a crash after these changes below ``root`` may have left."""
    files: dict[int, _Pending] = {}
    directories: dict[Path, _Pending] = {}
    for op in ops:
        if op.kind in {"write", "truncate"}:
            files.setdefault(op.subject, _Pending([])).ops.append(op)
        elif op.kind == "sync":
            pending = files.setdefault(op.subject, _Pending([]))
            pending.durable = len(pending.ops)
        elif op.kind in {"link", "rename", "unlink"}:
            directories.setdefault(op.subject, _Pending([])).ops.append(op)
        elif op.kind == "sync_directory":
            pending = directories.setdefault(op.subject, _Pending([]))
            pending.durable = len(pending.ops)
    for directory, pending in directories.items():
        location = target / directory.relative_to(root)
        location.mkdir(parents=True, exist_ok=True)
        for name, number in _names(pending, survival, chance).items():
            (location / name).write_bytes(_bytes(files.get(number, _Pending([])), survival, chance))


def _names(pending: _Pending, survival: Survival, chance: random.Random) -> dict[str, int]:
    kept = {
        "all": len(pending.ops),
        "synced": pending.durable,
        "some": chance.randint(pending.durable, len(pending.ops)),
    }
    names: dict[str, int] = {}
    for op in pending.ops[: kept[survival]]:
        if op.kind == "link":
            name, number = op.at
            names[name] = number
        elif op.kind == "rename":
            source, name = op.at
            names[name] = names.pop(source)
        else:
            del names[op.at]
    return names


def _bytes(pending: _Pending, survival: Survival, chance: random.Random) -> bytes:
    content = bytearray()
    for index, op in enumerate(pending.ops):
        data = op.data
        if index >= pending.durable and survival != "all":
            if survival == "synced" or chance.random() < 1 / 3:
                continue
            if op.kind == "write" and chance.random() < 1 / 2:
                data = data[: chance.randint(0, len(data))]
        if op.kind == "truncate":
            del content[op.at :]
            content += bytes(op.at - len(content))
        else:
            content += bytes(max(0, op.at - len(content)))
            content[op.at : op.at + len(data)] = data
    return bytes(content)
