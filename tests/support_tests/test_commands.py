from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.commands import CommandFailed, run, started

if TYPE_CHECKING:
    from pathlib import Path

_PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
_CHILD = "import time; pipe = open({path!r}, 'w'); time.sleep(600)"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_program_gives_its_output_and_not_its_errors() -> None:
    assert run(python("import sys; print('out'); print('err', file=sys.stderr)"), limit_s=30) == "out\n"


def test_a_program_that_fails_is_reported_with_its_output() -> None:
    with pytest.raises(CommandFailed, match=r"(?s)ended with 3.*no such thing"):
        run(python("import sys; print('no such thing', file=sys.stderr); sys.exit(3)"), limit_s=30)
    with pytest.raises(CommandFailed, match="cannot be run"):
        run(["no-such-program"], limit_s=30)


def test_a_program_that_does_not_end_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with started(python(_PARENT.format(child=_CHILD.format(path=str(pipe))))) as running:
        descriptor = os.open(pipe, os.O_RDONLY)  # waits for the child
        with pytest.raises(CommandFailed, match=r"did not end within 0\.1 s"):
            running.wait(0.1)
    assert os.read(descriptor, 1) == b""  # comes when the last writer is gone
    os.close(descriptor)
