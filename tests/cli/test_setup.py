"""Commands that need no server: doctor, tokens, certs, env, man; usage errors, and tables in narrow terminals."""

from __future__ import annotations

import re
import socket
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from afterglow.cli import doctor, machine
from afterglow.cli.help_format import likely
from afterglow.cli.output import Output
from afterglow.storage.doctor import StepStatus, StoreCheck

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Cli


@pytest.fixture
def local(cli_at: Callable[[str], Cli]) -> Cli:
    """The command line without a server."""
    return cli_at("http://127.0.0.1:9")


# --- help and usage errors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "longest"), [(60, 60), (120, 120), (400, 140)])
def test_help_is_as_wide_as_the_terminal_up_to_a_readable_width(
    local: Cli, monkeypatch: pytest.MonkeyPatch, columns: int, longest: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = local.do("topics", "--help").splitlines()
    assert longest - 25 < max(map(len, lines)) <= longest
    assert not [line for line in lines if line.endswith("...") and "COMMAND" not in line]


def test_a_misspelled_command_names_the_one_that_is_meant_and_no_other(local: Cli) -> None:
    assert local.refused(2, "topics", "segmnts") == "afterglow: no such command 'segmnts'; did you mean 'segments'?\n"
    assert local.refused(2, "topics", "zzz") == "afterglow: no such command 'zzz'\n"
    assert local.refused(2, "verfy", "x").endswith("did you mean 'verify'?\n")


def test_a_misspelled_option_names_the_one_that_is_meant(local: Cli) -> None:
    assert local.refused(2, "read", "--limt", "3") == "afterglow: no such option --limt; did you mean '--limit'?\n"
    assert "did you mean" not in local.refused(2, "read", "--quux")


def test_a_name_is_not_likely_only_because_it_ends_alike() -> None:
    assert likely("set-retention", ["get-retention", "remove-retention", "set-retentions"]) == ["set-retentions"]
    assert likely("peek", ["delete", "seek-all", "reset"]) == []


# --- narrow terminals -------------------------------------------------------------------------------------------------


def test_a_table_that_would_be_too_narrow_to_read_has_a_block_of_lines_for_each_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows: list[dict[str, Any]] = [{f"column{number}": "word " * 9 for number in range(6)}, {"column1": 2}]
    Output(as_json=False).rows(rows, "")
    shown = capsys.readouterr().out
    first, second = shown.split("\n\n")
    assert first.splitlines() == [f"column{number}  {('word ' * 9)}" for number in range(6)]
    assert second == "column1  2\n"
    monkeypatch.setenv("COLUMNS", "400")
    Output(as_json=False).rows(rows, "")
    assert "┃ column0" in capsys.readouterr().out


# --- doctor -----------------------------------------------------------------------------------------------------------


def check(step: str, outcome: StepStatus, detail: str = "d", cure: str = "") -> StoreCheck:
    return StoreCheck(step, outcome, 1.0, detail, cure)


def test_the_doctor_without_arguments_tests_this_machine_and_ends_with_a_verdict(
    local: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = local.run("doctor", "--home", str(tmp_path / "new"))
    for step in ("java", "spark", "disk", "port 6650", "port 8080", "clock"):
        assert step in outcome.stdout
    assert outcome.stdout.splitlines()[-1].startswith("this machine can")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(machine, "_java", lambda: (StepStatus.FAILED, "none found", "install Java 17"))
    outcome = local.run("doctor", "--home", str(tmp_path))
    assert outcome.code == 1
    assert outcome.stdout.endswith("this machine cannot be used: 1 of 6 steps failed; first install Java 17\n")


def test_a_used_port_is_a_warning_that_names_the_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(machine, "_PORTS", {port: "--port"})
        found = {each.step: each for each in machine.check_machine(tmp_path)}
    assert found[f"port {port}"].outcome is StepStatus.WARNING
    assert found[f"port {port}"].cure.endswith("give `afterglow serve` --port")


def test_a_full_disk_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_FREE_BYTES", 1 << 62)
    (disk,) = [each for each in machine.check_machine(tmp_path / "a" / "b") if each.step == "disk"]
    assert disk.outcome is StepStatus.WARNING
    assert disk.detail.endswith(f"free in {tmp_path}")


def test_the_verdict_says_what_to_do_first() -> None:
    ok, bad = check("put", StepStatus.OK), check("get", StepStatus.FAILED, cure="check the network")
    assert doctor.verdict("the tier t", [ok]) == "the tier t can be used"
    assert doctor.verdict("the tier t", [ok, bad]) == (
        "the tier t cannot be used: 1 of 2 steps failed; first check the network"
    )
    warned = check("clock", StepStatus.WARNING, cure="run chronyd")
    assert doctor.verdict("this machine", [ok, warned]) == "this machine can be used; see the warnings about clock"


def test_the_same_failure_of_several_steps_is_printed_once(
    local: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from afterglow import storage

    same = {"detail": "access denied", "cure": "check the keys"}
    checks = [check(step, StepStatus.FAILED, **same) for step in ("put", "head", "list")]
    monkeypatch.setattr(storage, "check_store", lambda _store: checks)
    shown = local.run("doctor", "--tier", tmp_path.as_uri()).stdout
    assert (shown.count("access denied"), shown.count("as above")) == (1, 2)


# --- tokens, certificates, environment, manual page -------------------------------------------------------------------


def test_a_token_that_is_created_is_shown_and_verified_by_its_key_alone(local: Cli, tmp_path: Path) -> None:
    key, other = tmp_path / "a.key", tmp_path / "b.key"
    for path in (key, other):
        local.do("tokens", "create-secret-key", "--output", str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "exists already" in local.refused(2, "tokens", "create-secret-key", "--output", str(key))
    token = local.do("tokens", "create", "--secret-key", key.as_uri(), "-s", "alice", "-e", "1h").strip()
    (row,) = local.rows("tokens", "show", token, "--secret-key", key.as_uri())
    assert (row["sub"], row["signature"]) == ("alice", "valid")
    refused = local.run("tokens", "show", token, "--secret-key", other.as_uri(), "--json")
    assert (refused.code, refused.rows[0]["signature"]) == (1, "refused")
    (row,) = local.rows("tokens", "show", token)
    assert row["signature"].startswith("not verified")
    assert "this is not a token" in local.refused(2, "tokens", "show", "swordfish")
    assert "too short" not in token
    short = tmp_path / "short.key"
    short.write_bytes(b"x")
    assert "not safe" in local.refused(2, "tokens", "create", "--secret-key", short.as_uri(), "-s", "a")


def test_certificates_are_trusted_by_their_authority_for_their_hosts(local: Cli, tmp_path: Path) -> None:
    from cryptography import x509

    at = tmp_path / "certs"
    local.do("certs", "--output", str(at), "--host", "broker.example", "--host", "10.0.0.5")
    authority, server = (x509.load_pem_x509_certificate((at / name).read_bytes()) for name in ("ca.pem", "server.pem"))
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["broker.example"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.5"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in at.iterdir()} == {0o600}
    assert "not an empty directory" in local.refused(2, "certs", "--output", str(at))


def test_the_environment_is_lines_for_a_shell(local: Cli) -> None:
    lines = local.do("env").splitlines()
    assert f"export PYSPARK_PYTHON={sys.executable}" in lines
    assert all(re.fullmatch(r"export [A-Z_]+=\S+", line) for line in lines)
    (java,) = [line.partition("=")[2] for line in lines if line.startswith("export JAVA_HOME=")]
    assert (Path(java) / "bin" / "java").exists()


def test_the_manual_page_has_every_command_and_option(local: Cli) -> None:
    page = local.do("man")
    for words in ('.SS "topics create TOPIC"', '.SS "tokens create"', r"\-\-set NAME=VALUE", r"\-\-log\-level LEVEL"):
        assert words in page
    assert not re.search(r"(?m)^'|^\.(?!TH|SH|SS|TP|PP|B )", page), "no line of the help is taken for a request"
