"""Try a wheel where nothing else is installed: ``python scripts/check_wheel.py dist/NAME.whl``.

It goes into an empty environment with what it depends on, in the locked versions, and without extras. There the package
is imported, the command answers, and a command that needs an extra says how to get it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from afterglow.errors import DISTRIBUTION

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Check the wheel that the command line names.

    Raises:
        SystemExit: It is not as it should be.
    """
    (wheel,) = sys.argv[1:]
    uv = str(Path(sys.executable).with_name("uv"))
    with tempfile.TemporaryDirectory(prefix="afterglow-wheel-") as scratch:
        venv = Path(scratch) / "venv"
        run(uv, "venv", "--quiet", "--python", sys.executable, str(venv))
        locked = str(ROOT / "requirements.lock")
        python = str(venv / "bin" / "python")
        run(uv, "pip", "install", "--quiet", "--python", python, "--constraints", locked, wheel)
        code = f"import afterglow, importlib.metadata as m; print(afterglow.__version__, m.version('{DISTRIBUTION}'))"
        version, packaged = run(python, "-c", code).split()
        expect(version == packaged, f"afterglow.__version__ is {version}, the wheel is {packaged}")
        command = str(venv / "bin" / "afterglow")
        expect(run(command, "--version") == f"afterglow {version}\n", "afterglow --version differs")
        expect("serve" in run(command, "--help"), "afterglow --help lists no commands")
        run(python, "-c", "import importlib.util as u; assert u.find_spec('pyspark_afterglow')")
        said = run(command, "serve", "--home", str(Path(scratch) / "home"), status=1)
        expect(f"{DISTRIBUTION}[serve]" in said, f"serve without its extra does not name it: {said}")
    print(f"{wheel} is good: {DISTRIBUTION} {version}")


def run(*command: str, status: int = 0) -> str:
    """What a command prints, run outside of the clone."""
    done = subprocess.run(
        command, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=600
    )
    expect(done.returncode == status, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def expect(met: object, problem: str) -> None:
    """Raise SystemExit with the problem unless the condition is met."""
    if not met:
        raise SystemExit(problem)


if __name__ == "__main__":
    main()
