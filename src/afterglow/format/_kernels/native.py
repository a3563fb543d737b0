"""Choice of the compiled kernels: from the wheel, from a cache directory, or compiled now.

A platform wheel has libraries for its targets in ``lib``, which need nothing but the standard library. Otherwise the
best target of the machine is compiled once, which needs the extra ``compile``, and the library is kept beside the
sources or, if these are read-only, in the user's cache directory. Its name has a digest of the sources: after any
change another file is used. ``AFTERGLOW_KERNELS`` names a target in place of the best one.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from afterglow.errors import MissingDependency, NotSupported
from afterglow.format._kernels import library
from afterglow.format._kernels.targets import NATIVE, TARGETS, host_machine, host_targets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.format._kernels.library import Kernels

IMAGES: Final = ("kernels", "typed")
_HERE: Final = Path(__file__).parent
SHIPPED: Final = _HERE / "lib"
"""Directory of a platform wheel's libraries."""
_KEPT: Final = 4

_loading = threading.Lock()
_loaded: dict[str, Kernels] = {}


def kernels(image: str = "kernels") -> Kernels:
    """Return the kernels of an image; if they have to be compiled, the first call takes about twenty seconds.

    Args:
        image: ``kernels``, for entries and messages, or ``typed``, for values with a schema.

    Raises:
        MissingDependency: The installation has no machine code for this machine and no compiler.
        NotSupported: ``AFTERGLOW_KERNELS`` names a target that this machine cannot run, or no directory is left from
            which machine code may be loaded.
    """
    if image not in _loaded:
        with _loading:
            # Only once: unloading a library would free machine code that other threads are running.
            if image not in _loaded:
                _loaded[image] = _find(image)
    return _loaded[image]


def _find(image: str) -> Kernels:
    names = target_names()
    for name in names:
        found = library.load(library.library_path(SHIPPED, f"{image}-{name}", name), cached=False)
        if found is not None:
            return found
    for directory in cache_directories():
        found = library.load(cached_path(directory, image, names[0]), cached=True)
        if found is not None:
            return found
    return _compile(image, names[0])


def target_names() -> list[str]:
    """Return the targets whose code this process may load, the best first.

    Raises:
        NotSupported: ``AFTERGLOW_KERNELS`` names another one.
    """
    runnable = [target.name for target in host_targets()]
    chosen = os.environ.get("AFTERGLOW_KERNELS")
    if not chosen:
        return runnable or [NATIVE]
    if chosen not in {*runnable, NATIVE}:
        known = ", ".join([*runnable, NATIVE])
        raise NotSupported(f"this machine cannot run the kernels of AFTERGLOW_KERNELS: {chosen}; choose from {known}")
    return [chosen]


def cached_path(directory: Path, image: str, target: str) -> Path:
    """Return the path of a library in a cache directory."""
    return library.library_path(directory, f"{image}-{target}-{library.sources_digest()[:16]}", target)


def cache_directories() -> Iterator[Path]:
    """Yield the directories that compiled libraries are searched in, and written to."""
    yield _HERE / "__pycache__"
    if chosen := os.environ.get("AFTERGLOW_CACHE"):
        yield Path(chosen) / "kernels"
    elif base := os.environ.get("XDG_CACHE_HOME"):
        yield Path(base) / "afterglow" / "kernels"
    else:
        # Containers run as users that have neither HOME nor an entry in the table of users.
        with suppress(RuntimeError):
            yield Path.home() / ".cache" / "afterglow" / "kernels"


# --- compilation ---------------------------------------------------------------------------------------------------


def _compile(image: str, target: str) -> Kernels:
    directory = writable_cache()
    if directory is not None:
        with (directory / f"{image}-{target}.lock").open("w") as lock:
            # If several processes start at once, one compiles and the others wait for its file.
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = cached_path(directory, image, target)
            found = library.load(path, cached=True)
            if found is None:
                compile_library(image, target, path)
                _prune(directory, image)
                found = library.load(path, cached=True)
            if found is not None:
                return found
    with tempfile.TemporaryDirectory(prefix="afterglow-kernels-") as scratch:
        path = cached_path(Path(scratch), image, target)
        compile_library(image, target, path)
        found = library.load(path, cached=True)
    if found is None:
        raise NotSupported(
            f"kernels cannot be loaded from any directory: {path}; set AFTERGLOW_CACHE to one not mounted noexec"
        )
    return found


def compile_library(image: str, target: str, path: Path, *, quiet: bool = False) -> None:
    """Compile a library in a process of its own, with a line on standard error unless ``quiet``.

    Raises:
        MissingDependency: numba is not installed.
        RuntimeError: The compilation failed.
    """
    if importlib.util.find_spec("numba") is None:
        of = f"{sys.platform} on {host_machine()}" if target == NATIVE else target
        raise MissingDependency.of_extra(
            f"no compiled kernels are installed for this machine: {of}; numba, which compiles them, is missing",
            "compile",
        )
    if not quiet:
        sys.stderr.write(f"afterglow: compiling {image} for {target}, once on this machine: about 20 s\n")
        sys.stderr.flush()
    paths = [str(_HERE.parents[2]), *filter(None, sys.path)]
    done = subprocess.run(  # noqa: S603 - this interpreter, with arguments of this module
        [sys.executable, "-P", "-m", f"{__package__}", "compile", image, target, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"compilation of kernels failed: {image} for {target}; {done.stderr.strip()[-2000:]}")


def compile_here(image: str, target: str, path: Path) -> None:
    """Compile a library in this process, which must not have imported numba before."""
    from afterglow.format._kernels.build import compile_kernels  # noqa: PLC0415 - the one module that needs numba

    code, counts, compiler = compile_kernels(image, target)
    digest = hashlib.sha256(code).hexdigest()
    library.save(path, library.Manifest(image, target, library.sources_digest(), digest, compiler, counts), code)


def writable_cache() -> Path | None:
    """Return the first cache directory that this process can write to and will load from."""
    return next((directory for directory in cache_directories() if _is_writable(directory)), None)


def _is_writable(directory: Path) -> bool:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        library.check_owner(directory.stat())
        with tempfile.TemporaryFile(dir=directory):
            return True
    except (OSError, library.UnusableFile):
        return False


def _prune(directory: Path, image: str) -> None:
    """Keep the newest files: different machines may share a directory, and old releases leave files behind."""
    found = sorted(directory.glob(f"{image}-*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for manifest in found[_KEPT:]:
        for path in (manifest, manifest.with_suffix(".so"), manifest.with_suffix(".o")):
            path.unlink(missing_ok=True)


def ship(directory: Path, names: list[str]) -> None:
    """Compile all images for targets into a directory of a wheel, as many at once as there are cores.

    Raises:
        MissingDependency: numba is not installed.
        RuntimeError: The compilation failed.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - for builds only

    directory.mkdir(parents=True, exist_ok=True)
    assert set(names) <= set(TARGETS)
    # The images that take longest first.
    pairs = [(image, name) for image in reversed(IMAGES) for name in names]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = [
            pool.submit(
                compile_library, image, name, library.library_path(directory, f"{image}-{name}", name), quiet=True
            )
            for image, name in pairs
        ]
        for one in made:
            one.result()
