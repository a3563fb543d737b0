"""Compilation of the kernels as a program.

python -m afterglow.format._kernels                            compile for this machine what is not there yet
python -m afterglow.format._kernels compile IMAGE TARGET PATH  compile one library
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from afterglow.format._kernels import library, native


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m afterglow.format._kernels", description="Compile the kernels.")
    commands = parser.add_subparsers(dest="command")
    prepare = commands.add_parser("prepare", help="compile for this machine what is not there yet")
    prepare.add_argument("images", nargs="*", metavar="IMAGE", help=f"of {', '.join(native.IMAGES)}; by default all")
    one = commands.add_parser("compile", help="compile one library")
    one.add_argument("image", choices=native.IMAGES)
    one.add_argument("target")
    one.add_argument("path", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "compile":
        native.compile_here(arguments.image, arguments.target, arguments.path)
    else:
        prepare_images(getattr(arguments, "images", None) or list(native.IMAGES))


def prepare_images(images: list[str]) -> None:
    """Compile images for this machine, all at once, unless the same compiler has compiled these sources already."""
    target = native.target_names()[0]
    directory = native.writable_cache()
    if directory is None:
        raise SystemExit("no cache directory is writable: set AFTERGLOW_CACHE to one")
    compilers = f"numba {version('numba')}, llvmlite {version('llvmlite')}"
    missing = []
    for image in images:
        path = native.cached_path(directory, image, target)
        manifest = library.read_manifest(path)
        if manifest is None or not manifest.compiler.startswith(compilers):
            missing.append((image, path))
    if not missing:
        return
    names = " and ".join(image for image, _ in missing)
    print(f"Compiling the kernels for {target}: {names} (about 20 s, once after each change) ...", flush=True)  # noqa: T201
    start = time.monotonic()
    with ThreadPoolExecutor(len(missing)) as pool:
        made = {image: pool.submit(native.compile_library, image, target, path, quiet=True) for image, path in missing}
        for image, one in made.items():
            one.result()
            print(f"  {image}: {time.monotonic() - start:.0f} s", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
