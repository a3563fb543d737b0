"""The whole demo: the real command, the server, the stock client, two Sparks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from afterglow.cli import main
from afterglow.demo import run

pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

UNWANTED = ("FutureWarning", "incubator", " INFO ", "Setting default log level")


def start(*options: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "afterglow", "demo", *options],
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def processes(marker: str) -> list[int]:
    """Processes whose command line or environment holds a text: whatever a demo has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                if marker.encode() in (path / name).read_bytes():
                    found.append(int(path.name))
            except OSError:
                continue  # it has ended, or is none of ours
    return sorted(set(found))


def test_the_demo_reads_back_what_it_sent(tmp_path: Path) -> None:
    home = tmp_path / "kept"
    demo = start("--messages", "1500", "--home", str(home))
    output, errors = demo.communicate(timeout=300)
    assert demo.returncode == 0, output + errors
    assert errors == ""
    assert "\x1b" not in output
    for words in (
        "It serves stock Pulsar clients at pulsar://127.0.0.1:",
        "A stock client sent 1,500 messages",
        "A manual offload closed the last one",
        "read 1,500 messages",
        "Seek by time found the very entry",
        "All 1,500 messages came back from the tier alone",
        "ledgers    ▏1",
        "segments   ▏1█",
        f"afterglow read {home} persistent://public/default/demo-",
    ):
        assert words in output
    assert "░" not in next(line for line in output.splitlines() if line.startswith("  segments"))
    ours = " INFO afterglow."
    log = "\n".join(line for line in (home / "serve.log").read_text().splitlines() if ours not in line)
    assert not [text for text in (*UNWANTED, "Traceback") if text in output + log]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.parametrize(
    ("number", "when"), [(signal.SIGTERM, "It serves stock Pulsar clients"), (signal.SIGINT, "A stock client sent")]
)
def test_nothing_is_left_of_a_demo_that_is_interrupted(tmp_path: Path, number: signal.Signals, when: str) -> None:
    demo = start("--messages", "1500", TMPDIR=str(tmp_path))
    assert demo.stdout is not None
    assert any(when in line for line in demo.stdout)
    demo.send_signal(number)
    _, errors = demo.communicate(timeout=300)
    assert demo.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    assert "Traceback" not in errors
    assert processes(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_home_in_use_is_one_line_and_exit_1(tmp_path: Path) -> None:
    from tests.support.serving import serving

    with serving(tmp_path):
        demo = start("--messages", "10", "--home", str(tmp_path))
        _, errors = demo.communicate(timeout=300)
    assert demo.returncode == 1
    assert errors.startswith("afterglow: afterglow serve did not start: ")
    assert errors.count("\n") == 1


def test_differences_are_named_and_exit_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    differences = [f"message {number} came back changed" for number in range(12)]
    monkeypatch.setattr(run, "run_demo", lambda *_: ("t", differences))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        main(["demo"])
    assert ended.value.code == 1
    assert signal.getsignal(signal.SIGTERM) is before
    output = capsys.readouterr().out
    assert output.count("came back changed") == 10
    assert "Failed: 12 differences" in output
