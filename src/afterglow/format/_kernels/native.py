"""Loading of the compiled kernels, from disk if this machine has compiled them before.

The file name contains a digest of the kernels' sources, the compiler's versions and the processor: after any change
another file is used. It is written beside the sources or, if these are read-only, to the user's cache directory.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import struct
import tempfile
import threading
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

_HERE = Path(__file__).parent
_HEAD = struct.Struct(">8sIII")
_MAGIC = b"AGKERN01"
_KEPT = 4


class Kernels:
    """Kernels by name; each takes and returns integers."""

    def __init__(self, symbols: dict[str, tuple[str, int]], code: bytes) -> None:
        # The engine owns the machine code: it lives as long as this object.
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
        self._engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self._kernels = {
            name: _Kernel(self._engine.get_function_address(symbol), count) for name, (symbol, count) in symbols.items()
        }

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


_loading = threading.Lock()
_loaded: dict[str, Kernels] = {}


def kernels(image: str = "kernels") -> Kernels:
    """Return the kernels of an image; the first call on a machine compiles them, which takes about twenty seconds.

    Args:
        image: ``kernels``, for entries and messages, or ``typed``, for values with a schema.
    """
    if image not in _loaded:
        with _loading:
            # Only once: replacing an engine would free machine code that other threads are running.
            if image not in _loaded:
                _loaded[image] = _find(image)
    return _loaded[image]


def _find(image: str) -> Kernels:
    name = f"{image}-{_digest()}.bin"
    for directory in _directories():
        found = _load(directory / name)
        if found is not None:
            return found
    return _compile(image, name)


def _compile(image: str, name: str) -> Kernels:
    from afterglow.format._kernels.build import compile_kernels  # noqa: PLC0415 - the one place that needs numba

    directory = next((directory for directory in _directories() if _writable(directory)), None)
    if directory is None:
        return Kernels(*compile_kernels(_machine(), image))
    with (directory / "kernels.lock").open("w") as lock:
        # If several processes start at once, one compiles and the others wait for its file.
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _load(directory / name)
        if found is None:
            symbols, code = compile_kernels(_machine(), image)
            _save(directory / name, symbols, code)
            _prune(directory, image)
            found = Kernels(symbols, code)
    return found


def _save(path: Path, symbols: dict[str, tuple[str, int]], code: bytes) -> None:
    table = json.dumps(symbols).encode()
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        file.write(_HEAD.pack(_MAGIC, len(table), len(code), crc32c(code, crc32c(table))) + table + code)
    Path(file.name).replace(path)


def _prune(directory: Path, image: str) -> None:
    """Keep the newest files: different machines may share a directory, and old releases leave files behind."""
    found = sorted(directory.glob(f"{image}-*.bin"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[_KEPT:]:
        path.unlink(missing_ok=True)


def _load(path: Path) -> Kernels | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < _HEAD.size:
        return None
    magic, table_bytes, code_bytes, checksum = _HEAD.unpack_from(data)
    table = data[_HEAD.size : _HEAD.size + table_bytes]
    code = data[_HEAD.size + table_bytes :]
    if magic != _MAGIC or len(code) != code_bytes or crc32c(code, crc32c(table)) != checksum:
        return None
    return Kernels(json.loads(table), code)


def _directories() -> Iterator[Path]:
    yield _HERE / "__pycache__"
    chosen = os.environ.get("AFTERGLOW_CACHE")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "afterglow"
    yield base / "kernels"


def _writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def _digest() -> str:
    digest = hashlib.sha256()
    for source in sorted(_HERE.glob("*.py")):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    for part in (version("numba"), version("llvmlite"), llvm.get_host_cpu_name(), _features()):
        digest.update(part.encode())
    return digest.hexdigest()[:16]


def _machine() -> Any:
    """Return a target machine; an engine owns and frees the one it is given."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=_features(), opt=3, codemodel="jitdefault", jit=True
    )


def _features() -> str:
    features: str = llvm.get_host_cpu_features().flatten()
    return features
