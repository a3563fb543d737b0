"""Failures are reported in one line."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.homes import ServerHome
from tests.support.ledgers import message

from afterglow.cli import app as application

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Canned, Cli


@pytest.mark.parametrize("option", ["--port", "--http-port"])
def test_a_port_in_use_is_one_line_with_the_remedy_and_exit_2(canned_cli: Cli, tmp_path: Path, option: str) -> None:
    other = {"--port": "--http-port", "--http-port": "--port"}[option]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        output = canned_cli.run("serve", "--home", str(tmp_path), option, port, other, "0")
    assert output.code == 2
    assert output.stderr.count("\n") == 1
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in output.stderr
    assert "choose another port, or 0" in output.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--set", "managedLedgerOffloadDriver=azureblob", "--set", "managedLedgerOffloadBucket=b"),
            "S3, aliyun-oss, aws-s3, filesystem; managedLedgerOffloadDriver=azureblob (broker, argument)",
        ),
        (("--set", "managedLedgerOffloadDriver=filesystem"), "needs fileSystemURI"),
        (("--tier", "gs://bucket"), "use s3:// or file://"),
        (
            (
                *("--set", "managedLedgerOffloadThresholdInSeconds=1h"),
                *("--set", "defaultRetentionTimeInMinutes=60", "--set", "defaultRetentionSizeInMB=-1"),
            ),
            "=3600 (broker, argument) is not below the retention, defaultRetentionTimeInMinutes=60 (broker, argument)",
        ),
        (("--set", "noSuchSetting=1"), "no such setting"),
        (("--set", "webServicePort=1"), "the command line sets it to two different values"),
        (("--set", "webServicePort"), "write NAME=VALUE"),
    ],
)
def test_settings_that_cannot_be_used_are_one_line_and_exit_2_before_it_is_ready(
    canned_cli: Cli, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    output = canned_cli.run("serve", "--home", str(tmp_path / "home"), "--port", "0", "--http-port", "0", *options)
    assert (output.code, output.stdout) == (2, "")
    assert output.stderr.count("\n") == 1
    assert words in output.stderr


def test_an_output_file_in_a_missing_directory_exits_2(canned_cli: Cli, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with ServerHome(home) as server:
        server.write("t", [message(b"x")])
    for output_format in ("jsonl", "parquet"):
        file = str(tmp_path / "absent" / "file")
        output = canned_cli.refused(2, "read", str(home), "t", "--format", output_format, "--output", file)
        assert "absent' does not exist; create it first" in output


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "No such file or directory", "/a/b"), "/a/b: No such file or directory"),
        (OSError("the wire is cut"), "the wire is cut"),
        (ValueError("of\nall things"), "unexpected ValueError: of all things; --debug shows the traceback"),
    ],
)
def test_an_unexpected_error_is_one_line_unless_debug_shows_the_traceback(
    canned_cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(application, "app", fail)
    assert canned_cli.refused(1, "any") == f"afterglow: {words}\n"
    monkeypatch.setenv("AFTERGLOW_DEBUG", "1")
    with pytest.raises(type(error)):
        application.main(["any"])


def test_a_closed_pipe_ends_a_list_without_an_error(
    canned: Canned, canned_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    canned.on("GET", "namespaces/public", (200, ["public/a", "public/b"]))

    class Closed:
        def write(self, _: str) -> None:
            raise BrokenPipeError

    silenced: list[bool] = []
    monkeypatch.setattr("afterglow.cli.output.silence_stdout", lambda: silenced.append(True))
    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(SystemExit) as ended:
        application.main(["namespaces", "list"])
    assert (ended.value.code, silenced) == (0, [True])
