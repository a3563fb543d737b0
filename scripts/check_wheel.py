"""Try wheels where nothing else is installed: ``python scripts/check_wheel.py dist/*.whl``.

Of every wheel the machine code is compared with its manifests and with the sources beside it. A wheel for this machine
goes into an empty environment with what it depends on, in the locked versions. There the package is imported, entries
are decoded, the command answers, and a command that needs an extra says how to get it. A platform wheel is installed
without extras, and so without a compiler; the one for all machines is tried without a compiler, and then with the
extra ``compile``.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import zipfile
from hashlib import sha256
from pathlib import Path

from afterglow.errors import DISTRIBUTION

ROOT = Path(__file__).parents[1]
LIBRARIES = "afterglow/format/_kernels/lib"

DECODE = """
import importlib.util
import sys
from afterglow.format.columns import decode_messages
from afterglow.format.frames import scan_frames
from afterglow.format._kernels import native

data = bytes.fromhex(
    "0000001d0000000000000000" "0e018129e7f10000000e0a03702d3010001880d095ffbc3168656c6c6f"
)
(messages,) = decode_messages(data, scan_frames(data, 0), 1)
assert messages.batch.column("value").to_pylist() == [b"hello"]
assert not {"numba", "llvmlite"} & set(sys.modules)
compiler = importlib.util.find_spec("numba") or importlib.util.find_spec("llvmlite")
print("DECODED", native.kernels("typed").manifest.target, "with" if compiler else "without", "a compiler")
"""
DIGEST = "from afterglow.format._kernels.library import sources_digest; print(sources_digest())"


def main() -> None:
    """Check the wheels that the command line names.

    Raises:
        SystemExit: One is not as it should be.
    """
    for wheel in map(Path, sys.argv[1:]):
        machine = wheel.stem.rpartition("-")[2]
        libraries = check_libraries(wheel)
        expect(machine == "any" or libraries, f"{wheel} has no machine code")
        if machine != "any" and not machine.endswith(platform.machine()):
            print(f"{wheel} has machine code of these sources: {', '.join(libraries)}; it is for another machine")
            continue
        with tempfile.TemporaryDirectory(prefix="afterglow-wheel-") as scratch:
            said = check_installed(wheel, Path(scratch), compiles=machine == "any")
        print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB) is good: {said}")


def check_libraries(wheel: Path) -> list[str]:
    """Compare the libraries of a wheel with their manifests; returns their names."""
    with tempfile.TemporaryDirectory(prefix="afterglow-wheel-") as scratch:
        with zipfile.ZipFile(wheel) as opened:
            opened.extractall(scratch)
        digest = run(sys.executable, "-P", "-c", DIGEST, PYTHONPATH=scratch).strip()
        manifests = sorted(Path(scratch, LIBRARIES).glob("*.json"))
        for path in manifests:
            manifest = json.loads(path.read_text())
            expect(manifest["sources"] == digest, f"{path.name} was compiled from other sources")
            code = path.with_suffix(".so").read_bytes()
            expect(manifest["library"] == sha256(code).hexdigest(), f"{path.stem}.so is not what was compiled")
        found = sorted(Path(scratch).rglob("*.so"))
        expect([path.stem for path in found] == [path.stem for path in manifests], "libraries without manifest")
    return [path.stem for path in found]


def check_installed(wheel: Path, scratch: Path, *, compiles: bool) -> str:
    """Install a wheel and use it; returns a line about it."""
    uv = str(Path(sys.executable).with_name("uv"))
    venv = scratch / "venv"
    cache = str(scratch / "cache")
    run(uv, "venv", "--quiet", "--python", sys.executable, str(venv))
    locked = str(ROOT / "requirements.lock")
    python = str(venv / "bin" / "python")
    install = [uv, "pip", "install", "--quiet", "--python", python, "--constraints", locked]
    run(*install, str(wheel))
    code = f"import afterglow, importlib.metadata as m; print(afterglow.__version__, m.version('{DISTRIBUTION}'))"
    version, packaged = run(python, "-c", code).split()
    expect(version == packaged, f"afterglow.__version__ is {version}, the wheel is {packaged}")
    command = str(venv / "bin" / "afterglow")
    expect(run(command, "--version") == f"afterglow {version}\n", "afterglow --version differs")
    expect("serve" in run(command, "--help"), "afterglow --help lists no commands")
    run(python, "-c", "import importlib.util as u; assert u.find_spec('pyspark_afterglow')")
    said = run(command, "serve", "--home", str(scratch / "home"), status=1)
    expect(f"{DISTRIBUTION}[serve]" in said, f"serve without its extra does not name it: {said}")
    if compiles:
        said = run(python, "-c", DECODE, status=1, AFTERGLOW_CACHE=cache)
        expect(f"{DISTRIBUTION}[compile]" in said, f"decoding without a compiler does not name the extra: {said}")
        run(*install, f"{wheel}[compile]")
        said = run(python, "-c", DECODE, AFTERGLOW_CACHE=cache)
        expect("compiling kernels" in said, f"compiling is not announced: {said}")
    start = time.monotonic()
    said = run(python, "-c", DECODE, AFTERGLOW_CACHE=cache)
    seconds = time.monotonic() - start
    expect(said.startswith("DECODED"), f"a second process compiles again: {said}")
    expect(said.endswith("with a compiler\n") == compiles, f"the environment is not as it should be: {said}")
    size = run("du", "-sm", str(venv)).split()[0]
    return f"{DISTRIBUTION} {version}, {size} MB installed, {said.lower().strip()} in {seconds:.2f} s"


def run(*command: str, status: int = 0, **environment: str) -> str:
    """What a command prints, run outside of the clone."""
    done = subprocess.run(
        command,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=600,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment,
    )
    expect(done.returncode == status, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def expect(met: object, problem: str) -> None:
    """Raise SystemExit with the problem unless the condition is met."""
    if not met:
        raise SystemExit(problem)


if __name__ == "__main__":
    main()
