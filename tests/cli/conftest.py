"""The command line in this process, a server in another, and an admin API with canned answers."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.serving import serving

from afterglow.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.serving import Served


@dataclass(frozen=True)
class Outcome:
    code: int
    stdout: str
    stderr: str

    @property
    def rows(self) -> list[Any]:
        return [json.loads(line) for line in self.stdout.splitlines()]


class Cli:
    """Runs commands of ``afterglow``."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *args: str) -> Outcome:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(args))
        printed = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, printed.out, printed.err)

    def do(self, *args: str) -> str:
        """Return the output of a command that must succeed."""
        outcome = self.run(*args)
        assert (outcome.code, outcome.stderr) == (0, "")
        return outcome.stdout

    def rows(self, *args: str) -> list[Any]:
        """Return the JSON lines of a command that must succeed."""
        outcome = self.run(*args, "--json")
        assert (outcome.code, outcome.stderr) == (0, "")
        return outcome.rows

    def refused(self, code: int, *args: str) -> str:
        """Return the error line of a command that must fail without output."""
        outcome = self.run(*args)
        assert (outcome.code, outcome.stdout) == (code, ""), outcome
        assert outcome.stderr.startswith("afterglow: ")
        assert outcome.stderr.count("\n") == 1
        return outcome.stderr


@dataclass
class Canned:
    """An admin API with canned answers for each call; the last answer is repeated."""

    url: str = ""
    answers: dict[tuple[str, str], list[tuple[int, Any]]] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of answers, by path."""
    calls: list[tuple[str, str, Any, dict[str, str]]] = field(default_factory=list)
    """Method, path, body, headers."""

    def on(self, method: str, path: str, *answers: tuple[int, Any]) -> None:
        """Set answers: a status with JSON, with bytes, or with the location of a redirect."""
        self.answers[method, f"/admin/v2/{path}"] = list(answers)

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        found = self.answers.get((method, path), [(404, {"reason": f"no answer set for {method} {path}"})])
        return found.pop(0) if len(found) > 1 else found[0]


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("AFTERGLOW_ADMIN_URL", "AFTERGLOW_TOKEN", "AFTERGLOW_CA_FILE", "AFTERGLOW_DEBUG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """Handlers and levels of the log as they were: a command sets them for the rest of its process."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = [handler for handler in root.handlers if handler in handlers]
    root.setLevel(level)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for all tests; each uses its own topics and namespaces."""
    with serving(tmp_path_factory.mktemp("home")) as server:
        yield server


@pytest.fixture
def cli_at(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Cli]:
    """The command line with an admin API as its default."""

    def make(url: str) -> Cli:
        monkeypatch.setenv("AFTERGLOW_ADMIN_URL", url)
        return Cli(capsys)

    return make


@pytest.fixture
def cli(served: Served, cli_at: Callable[[str], Cli]) -> Cli:
    """The command line with the server as its default."""
    return cli_at(served.admin_url)


@pytest.fixture
def canned() -> Iterator[Canned]:
    canned = Canned()

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            canned.calls.append((self.command, self.path, json.loads(body) if body else None, dict(self.headers)))
            status, value = canned.answer(self.command, self.path)
            data = value if isinstance(value, bytes) else b"" if value is None else json.dumps(value).encode()
            self.send_response(status)
            for name, text in canned.headers.get(self.path, {}).items():
                self.send_header(name, text)
            if status in {307, 308}:
                self.send_header("Location", value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - the library's names

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))  # poll interval of shutdown
    thread.start()
    canned.url = f"http://127.0.0.1:{server.server_port}"
    yield canned
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def canned_cli(canned: Canned, cli_at: Callable[[str], Cli]) -> Cli:
    """The command line with the canned admin API as its default."""
    return cli_at(canned.url)
