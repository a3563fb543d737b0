"""The commands of docs/tokens.md, in the order of the page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.pages import Page

from afterglow.cli.app import main

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Page.read(Path(__file__).parents[2] / "docs" / "tokens.md")


def outputs(capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    """Runs the commands in the current directory; yields what each printed."""
    for command in PAGE.commands:
        line, _, target = command.partition(" > ")
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(line.split()[1:])
        assert ended.value.code == 0, command
        printed = capsys.readouterr().out
        if target:
            Path(target).write_text(printed)
        yield printed


def test_the_commands_create_files_that_fit_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    certificates, key, _, shown = outputs(capsys)
    assert f"tlsCertificateFilePath={tmp_path / 'certs' / 'server.pem'}" in certificates
    assert f"tokenSecretKey={(tmp_path / 'secret.key').as_uri()}" in key
    words = [[word for word in line.split() if word.isalnum()] for line in shown.splitlines()]
    assert ["sub", "alice"] in words
    assert ["signature", "valid"] in words
