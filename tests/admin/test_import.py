from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("library", ["starlette", "uvicorn", "prometheus_client"])
def test_a_missing_library_is_named_with_the_install_command(library: str) -> None:
    script = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from importlib import util\n"
        f"found = util.find_spec; util.find_spec = lambda name: None if name == {library!r} else found(name)\n"
        "import afterglow.admin.app"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    asked = f"the admin API needs {library}; install the requirements of pulsar-afterglow[serve]: pip install "
    (command,) = [line.partition(asked)[2] for line in ended.stderr.splitlines() if asked in line]
    assert f"'{library.replace('_', '-')}>=" in command


def test_the_broker_does_not_need_the_web_framework() -> None:
    script = "import sys, afterglow.broker.service; assert not {'starlette', 'uvicorn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
