from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer

from afterglow.cli import app as application

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAVY = (
    *("afterglow.config", "afterglow.format", "afterglow.read", "afterglow.storage"),
    *("http.client", "numba", "numpy", "pulsar", "pyarrow", "pyspark"),
)


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its path."""
    application.register()
    group: Any = typer.main.get_command(application.app)
    for name, command in group.commands.items():
        below = getattr(command, "commands", None)
        if below is None:
            yield name, command
        else:
            for inner, item in below.items():
                yield f"{name} {inner}", item


@pytest.mark.parametrize(("path", "command"), list(commands()), ids=[path for path, _ in commands()])
def test_every_command_has_an_example_of_itself(path: str, command: Any) -> None:
    assert f"Example: afterglow {path}" in command.help


@pytest.mark.parametrize(
    ("path", "command"),
    [(path, command) for path, command in commands() if " " in path and not path.startswith("tokens ")],
)
def test_every_admin_command_takes_the_connection_and_json(path: str, command: Any) -> None:
    options = {name for parameter in command.params for name in parameter.opts}
    assert options >= {"--admin-url", "--token", "--ca-file", "--json"}


@pytest.mark.parametrize("group", sorted({path.split()[0] for path, _ in commands() if " " in path}))
def test_a_group_without_a_subcommand_shows_its_help_and_exits_2(
    capsys: pytest.CaptureFixture[str], group: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        application.main([group])
    shown = capsys.readouterr()
    assert (ended.value.code, shown.err) == (2, "")
    assert f"Usage: afterglow {group} [OPTIONS] COMMAND" in shown.out.splitlines()[0]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom afterglow.cli import main\n"
        "try:\n    main(['topics', '--help'])\nexcept SystemExit:\n    pass\n"
        f"print(sorted(set(sys.modules) & {set(HEAVY)!r}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert "set-offload-policies" in done.stdout
    assert done.stderr.strip() == "[]"
