"""Files of machine code: a library and beside it its manifest, verified before any of its code runs.

The manifest has the digest of the kernels' sources, of which the library must be the result, and the digest of the
library's bytes. Neither protects against an attacker who can write both files: so a file of a cache directory is only
used if it and its directory belong to this user or to root, and nobody else may write to them. Files of the package
itself have no such condition, since their owner can change the Python code as well.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import stat
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from afterglow.format._kernels.targets import NATIVE

if TYPE_CHECKING:
    from collections.abc import Mapping

_HERE: Final = Path(__file__).parent
NOT_COMPILED: Final = frozenset({"__init__.py", "__main__.py", "calls.py", "library.py", "native.py"})
"""Modules that call, find and load machine code, without an effect on it."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Description of a library."""

    image: str
    target: str
    sources: str
    """SHA-256 of the kernels' sources."""
    library: str
    """SHA-256 of the library."""
    compiler: str
    """Versions of the compilers; for the target ``native`` also the processor."""
    kernels: dict[str, int]
    """Number of arguments of each kernel."""


class Kernels:
    """Kernels by name; each takes and returns integers."""

    def __init__(self, manifest: Manifest, addresses: Mapping[str, int], owner: object) -> None:
        self.manifest = manifest
        # Machine code lives as long as its owner.
        self._owner = owner
        self._kernels = {name: _Kernel(addresses[name], count) for name, count in manifest.kernels.items()}

    def __getattr__(self, name: str) -> _Kernel:
        try:
            return self._kernels[name]
        except KeyError:
            raise AttributeError(f"no kernel {name} found") from None


class _Kernel:
    """One kernel with numba's calling convention: result and error by reference, then the arguments."""

    __slots__ = ("_function",)

    def __init__(self, address: int, arguments: int) -> None:
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * arguments
        )  # releases the GIL
        self._function = kind(address)

    def __call__(self, *arguments: int) -> int:
        result = ctypes.c_int64()
        error = ctypes.c_void_p()
        status = self._function(ctypes.addressof(result), ctypes.addressof(error), *arguments)
        assert status == 0, "kernels raise nothing"
        return result.value


@cache
def sources_digest() -> str:
    """Return the SHA-256 of the sources that machine code depends on."""
    digest = hashlib.sha256()
    for source in sorted(path for path in _HERE.glob("*.py") if path.name not in NOT_COMPILED):
        content = source.read_bytes()
        digest.update(f"{source.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def library_path(directory: Path, stem: str, target: str) -> Path:
    """Return the path of a library; its manifest is beside it, with the suffix ``.json``."""
    return directory / (f"{stem}.o" if target == NATIVE else f"{stem}.so")


# --- writing -------------------------------------------------------------------------------------------------------


def save(path: Path, manifest: Manifest, code: bytes) -> None:
    """Write a library and its manifest, each at once: a process may have mapped a file of the same name."""
    _replace(path, code)
    _replace(path.with_suffix(".json"), (json.dumps(asdict(manifest), indent=1) + "\n").encode())


def _replace(path: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        file.write(content)
        # Others may run what root has compiled for them.
        os.fchmod(file.fileno(), 0o644)
    Path(file.name).replace(path)


# --- loading -------------------------------------------------------------------------------------------------------


class UnusableFile(Exception):
    """A file must not be used; the message says why."""


def load(path: Path, *, cached: bool) -> Kernels | None:
    """Load a library if it is what its manifest says, and was compiled from the sources of this package.

    Args:
        path: The library.
        cached: It is in a cache directory, which others may be able to write to.

    Returns:
        None if there is no such library, or it is not usable; the latter is logged.
    """
    try:
        manifest = _read_manifest(path, cached=cached)
        if manifest is None:
            return None
        return _open(path, manifest, _read_code(path, manifest, cached=cached))
    except FileNotFoundError:
        return None
    except (OSError, UnusableFile) as error:
        _log.warning("kernels are not loaded from %s: %s", path, error)
        return None


def read_manifest(path: Path) -> Manifest | None:
    """Return the manifest of a library of a cache directory, if both are there and current."""
    try:
        return _read_manifest(path, cached=True) if path.exists() else None
    except (OSError, UnusableFile):
        return None


def _read_manifest(path: Path, *, cached: bool) -> Manifest | None:
    try:
        manifest = Manifest(**json.loads(_read(path.with_suffix(".json"), cached=cached)))
    except (ValueError, TypeError) as error:
        raise UnusableFile(f"its manifest is damaged: {error}") from None
    if manifest.sources != sources_digest():
        return None
    if manifest.target == NATIVE:
        from afterglow.format._kernels.build import native_processor  # noqa: PLC0415 - needs llvmlite

        if not manifest.compiler.endswith(native_processor()):
            return None
    return manifest


def _read_code(path: Path, manifest: Manifest, *, cached: bool) -> bytes:
    code = _read(path, cached=cached)
    if hashlib.sha256(code).hexdigest() != manifest.library:
        raise UnusableFile("its bytes are not those that were compiled")
    return code


def _read(path: Path, *, cached: bool) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_NOFOLLOW if cached else 0)), "rb") as file:
        if cached:
            check_owner(path.parent.stat())
            check_owner(os.fstat(file.fileno()))
        return file.read()


def check_owner(status: os.stat_result) -> None:
    """Check that only this user or root can change a file or directory.

    Raises:
        UnusableFile: Another user can.
    """
    if status.st_uid not in {0, os.geteuid()}:
        raise UnusableFile(f"it belongs to another user: {status.st_uid}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnusableFile(f"others may write to it: mode {stat.S_IMODE(status.st_mode):o}")


def _open(path: Path, manifest: Manifest, code: bytes) -> Kernels:
    if manifest.target == NATIVE:
        from afterglow.format._kernels.build import load_native  # noqa: PLC0415 - needs llvmlite

        owner, addresses = load_native(code, manifest.kernels)
        return Kernels(manifest, addresses, owner)
    library = ctypes.CDLL(str(path))
    found = {name: ctypes.cast(library[name], ctypes.c_void_p).value or 0 for name in manifest.kernels}
    return Kernels(manifest, found, library)
