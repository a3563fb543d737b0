"""Files of machine code: which are loaded, and which are never executed."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from afterglow.errors import MissingDependency, NotSupported
from afterglow.format._kernels import library, native, targets

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not targets.host_targets(), reason="this machine has no target with a shared library")


@pytest.fixture
def built() -> Path:
    """The library of this machine's kernels; compiled by now."""
    native.kernels()
    paths = [native.cached_path(directory, "kernels", best()) for directory in native.cache_directories()]
    return next(path for path in paths if path.exists())


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    """A copy of it, in a directory of its own that only this user can write to."""
    directory = tmp_path / "kernels"
    directory.mkdir(mode=0o700)
    for file in (built, built.with_suffix(".json")):
        shutil.copy(file, directory)
    return directory / built.name


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the libraries whose code is loaded."""
    found: list[str] = []
    load = ctypes.CDLL

    def record(path: str) -> Any:
        found.append(path)
        return load(path)

    monkeypatch.setattr(ctypes, "CDLL", record)
    return found


def best() -> str:
    return native.target_names()[0]


def change_manifest(path: Path, **values: object) -> None:
    file = path.with_suffix(".json")
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


# --- verification --------------------------------------------------------------------------------------------------


def test_an_intact_library_is_loaded(copy: Path, executed: list[str]) -> None:
    found = library.load(copy, cached=True)
    assert found is not None
    assert executed == [str(copy)]
    assert found.manifest.kernels.keys() >= {"parse_entries", "fill_rows"}


def test_a_damaged_library_is_never_executed(copy: Path, executed: list[str], caplog: pytest.LogCaptureFixture) -> None:
    data = copy.read_bytes()
    middle = len(data) // 2
    for broken in (
        b"",
        data[:100],
        data[:-1],
        data + b"x",
        data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        b"X" + data[1:],
    ):
        copy.unlink()
        copy.write_bytes(broken)
        caplog.clear()
        assert library.load(copy, cached=True) is None
        assert library.load(copy, cached=False) is None
        assert f"kernels are not loaded from {copy}: its bytes are not those that were compiled" in caplog.text
    assert executed == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"image": "kernels"}', "null"])
def test_a_damaged_manifest_executes_nothing(copy: Path, executed: list[str], text: str) -> None:
    copy.with_suffix(".json").write_text(text)
    assert library.load(copy, cached=True) is None
    assert executed == []


def test_a_library_without_its_manifest_and_a_manifest_without_library_are_ignored(
    copy: Path, executed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    content = copy.with_suffix(".json").read_text()
    copy.with_suffix(".json").unlink()
    assert library.load(copy, cached=True) is None
    copy.with_suffix(".json").write_text(content)
    copy.unlink()
    assert library.load(copy, cached=True) is None
    assert (executed, caplog.text) == ([], "")


def test_a_library_of_other_sources_is_never_executed(copy: Path, executed: list[str]) -> None:
    change_manifest(copy, sources="0" * 64)
    assert library.load(copy, cached=True) is None
    assert library.load(copy, cached=False) is None
    assert executed == []


def test_the_digest_covers_every_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    monkeypatch.setattr(library, "_HERE", tmp_path)
    for name in ("a.py", "b.py"):
        for content in ("", "x = 1\n", "x = 2\n"):
            (tmp_path / name).write_text(content)
            found.add(library.sources_digest.__wrapped__())
    assert len(found) == 6


def test_machine_code_does_not_depend_on_sources_outside_the_digest() -> None:
    code = (
        "import sys\n"
        "from afterglow.format._kernels import build\n"
        "sources = [name for image in build._SOURCES.values() for name in image]\n"
        "for name in sources: __import__(f'{build.__package__}.{name}')\n"
        "print(*(name for name in sys.modules if name.startswith('afterglow')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    package = "afterglow.format._kernels"
    inside = {name.removeprefix(f"{package}.") for name in done.stdout.split() if name.startswith(f"{package}.")}
    # Nor on packages that the environment of a wheel's build does not have.
    outside = {name for name in done.stdout.split() if not name.startswith(package)}
    assert {"build", "checksum", "linker", "rows", "targets", "typed_rows"} <= inside
    assert {f"{name}.py" for name in inside}.isdisjoint(library.NOT_COMPILED)
    assert outside == {"afterglow", "afterglow.errors", "afterglow.format"}


# --- owners --------------------------------------------------------------------------------------------------------


def as_status(mode: int, owner: int) -> os.stat_result:
    return os.stat_result((mode, 0, 0, 1, owner, 0, 0, 0, 0, 0))


@pytest.mark.parametrize("owner", [0, 1000])
def test_files_of_this_user_and_of_root_are_accepted(monkeypatch: pytest.MonkeyPatch, owner: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    library.check_owner(as_status(0o100644, owner))


@pytest.mark.parametrize(
    ("user", "owner", "mode", "said"),
    [
        (1000, 1001, 0o100644, "it belongs to another user: 1001"),
        (0, 1000, 0o100600, "it belongs to another user: 1000"),
        (1000, 1000, 0o100664, "others may write to it: mode 664"),
        (1000, 0, 0o100646, "others may write to it: mode 646"),
        (1000, 0, 0o041777, "others may write to it: mode 1777"),
    ],
)
def test_files_that_another_user_can_change_are_not(
    monkeypatch: pytest.MonkeyPatch, user: int, owner: int, mode: int, said: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(library.UnusableFile, match=re.escape(said)):
        library.check_owner(as_status(mode, owner))


def make_foreign(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file belong to another user than the one that this process runs as."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)


@pytest.mark.parametrize("part", ["library", "manifest", "directory"])
def test_a_file_of_another_user_in_a_cache_is_never_executed(
    copy: Path, executed: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    chosen = {"library": copy, "manifest": copy.with_suffix(".json"), "directory": copy.parent}[part]
    make_foreign(chosen, monkeypatch)
    assert library.load(copy, cached=True) is None
    assert executed == []
    assert "it belongs to another user" in caplog.text


@pytest.mark.parametrize("part", ["library", "manifest", "directory"])
def test_a_file_that_others_may_write_to_is_never_executed(copy: Path, executed: list[str], part: str) -> None:
    chosen = {"library": copy, "manifest": copy.with_suffix(".json"), "directory": copy.parent}[part]
    chosen.chmod(chosen.stat().st_mode | 0o020)
    assert library.load(copy, cached=True) is None
    assert executed == []


def test_a_link_in_a_cache_is_not_followed(copy: Path, executed: list[str]) -> None:
    elsewhere = copy.with_name("elsewhere.so")
    copy.rename(elsewhere)
    copy.symlink_to(elsewhere)
    assert library.load(copy, cached=True) is None
    assert executed == []


def test_the_cache_is_that_of_the_user_or_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AFTERGLOW_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    beside = Path(native.__file__).parent / "__pycache__"
    assert list(native.cache_directories()) == [beside, Path("/home/me/.cache/afterglow/kernels")]
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert list(native.cache_directories()) == [beside, Path("/xdg/afterglow/kernels")]
    monkeypatch.setenv("AFTERGLOW_CACHE", "/chosen")
    assert list(native.cache_directories()) == [beside, Path("/chosen/kernels")]


def test_a_user_without_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for variable in ("AFTERGLOW_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", refuse)
    assert list(native.cache_directories()) == [Path(native.__file__).parent / "__pycache__"]


def test_a_cache_directory_of_another_user_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    foreign, own = tmp_path / "foreign", tmp_path / "own"
    foreign.mkdir(mode=0o777)
    foreign.chmod(0o777)
    monkeypatch.setattr(native, "cache_directories", lambda: iter([foreign, own]))
    assert native.writable_cache() == own
    assert own.stat().st_mode & 0o777 == 0o700
    assert caplog.text == ""


# --- choice --------------------------------------------------------------------------------------------------------


class Compiler:
    """In place of the process that compiles: it copies a library, and records what it was asked for."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.asked: list[list[str]] = []

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        del options
        self.asked.append(command[4:-1])
        path = Path(command[-1])
        shutil.copy(self.source, path)
        shutil.copy(self.source.with_suffix(".json"), path.with_suffix(".json"))
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two empty cache directories, the only ones."""
    found = [tmp_path / "beside", tmp_path / "user"]
    monkeypatch.setattr(native, "cache_directories", lambda: iter(found))
    monkeypatch.setattr(native, "SHIPPED", tmp_path / "lib")
    return found


@pytest.fixture
def compiler(built: Path, monkeypatch: pytest.MonkeyPatch, caches: list[Path]) -> Compiler:
    found = Compiler(built)
    assert caches
    monkeypatch.setattr(subprocess, "run", found)
    return found


def test_kernels_are_compiled_once_with_a_line_that_says_so(
    compiler: Compiler, caches: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert native._find("kernels").manifest.image == "kernels"
    assert capfd.readouterr().err == f"afterglow: compiling kernels for {best()}, once on this machine: about 20 s\n"
    native._find("kernels")
    assert capfd.readouterr().err == ""
    assert compiler.asked == [["compile", "kernels", best()]]
    assert native.cached_path(caches[0], "kernels", best()).exists()


def test_a_damaged_cache_file_is_compiled_again(compiler: Compiler, caches: list[Path], executed: list[str]) -> None:
    native._find("kernels")
    path = native.cached_path(caches[0], "kernels", best())
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(b"\x7fELF" + bytes(1000))
    executed.clear()
    assert native._find("kernels")
    assert len(compiler.asked) == 2
    assert path.read_bytes() == content
    assert executed == [str(path)]


def test_kernels_are_compiled_into_a_temporary_directory_if_no_other_is_writable(
    compiler: Compiler, caches: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executed: list[str]
) -> None:
    for directory in caches:
        directory.write_text("a file where the directory would be")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    assert native._find("kernels").manifest.image == "kernels"
    assert len(compiler.asked) == 1
    assert executed[0].startswith(str(scratch))
    assert list(scratch.iterdir()) == []


def test_shipped_libraries_come_first_and_the_best_of_them(
    compiler: Compiler, built: Path, monkeypatch: pytest.MonkeyPatch, executed: list[str]
) -> None:
    names = ["better", best()]
    monkeypatch.setattr(native, "target_names", lambda: names)
    native.SHIPPED.mkdir()
    for name in reversed(names):
        path = native.SHIPPED / f"kernels-{name}.so"
        shutil.copy(built, path)
        shutil.copy(built.with_suffix(".json"), path.with_suffix(".json"))
        native._find("kernels")
        assert executed[-1] == str(path)
    assert compiler.asked == []


def test_a_damaged_shipped_library_is_replaced_by_a_compiled_one(
    compiler: Compiler, built: Path, executed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    native.SHIPPED.mkdir()
    path = native.SHIPPED / f"kernels-{best()}.so"
    path.write_bytes(built.read_bytes()[:-1])
    shutil.copy(built.with_suffix(".json"), path.with_suffix(".json"))
    assert native._find("kernels")
    assert len(compiler.asked) == 1
    assert str(path) not in executed
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_without_machine_code_and_without_numba_the_error_names_the_extra(
    caches: list[Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert caches
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(
        MissingDependency, match=r"no compiled kernels are installed.*numba.*pulsar-afterglow\[compile\]"
    ):
        native._find("kernels")
    assert capfd.readouterr().err == ""


def test_a_failed_compilation_says_what_the_compiler_said(caches: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        del options
        return subprocess.CompletedProcess(command, 1, "", "ImportError: no such thing\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(RuntimeError, match=r"compilation of kernels failed: kernels for .*; ImportError: no such"):
        native.compile_library("kernels", best(), caches[0] / "x.so", quiet=True)


def test_a_library_that_cannot_be_mapped_names_the_setting(
    compiler: Compiler, caches: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that is mounted noexec."""
    assert compiler
    assert caches

    def refuse(path: str) -> Any:
        raise OSError(f"{path}: failed to map segment from shared object")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with pytest.raises(NotSupported, match="set AFTERGLOW_CACHE"):
        native._find("kernels")


def test_only_the_newest_cache_files_are_kept(built: Path, tmp_path: Path) -> None:
    for number in range(7):
        for file in (built, built.with_suffix(".json")):
            made = tmp_path / f"kernels-x-{number}{file.suffix}"
            shutil.copy(file, made)
            os.utime(made, (number, number))
    (tmp_path / "typed-x-0.json").touch()
    native._prune(tmp_path, "kernels")
    kept = {f"kernels-x-{number}{suffix}" for number in range(3, 7) for suffix in (".so", ".json")}
    assert {path.name for path in tmp_path.iterdir()} == kept | {"typed-x-0.json"}


# --- targets -------------------------------------------------------------------------------------------------------

V2 = "fpu cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
V3 = f"{V2} abm avx avx2 bmi1 bmi2 f16c fma movbe avx512f"


def cpuinfo(*flags: str) -> str:
    return "".join(
        f"processor\t: {i}\nvendor_id\t: x\nflags\t\t: {text}\nbugs\t\t: y\n\n" for i, text in enumerate(flags)
    )


@pytest.fixture
def x86(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A machine with x86-64 processors, of which the test says what Linux reports."""
    reported = {"cpuinfo": ""}
    monkeypatch.delenv("AFTERGLOW_KERNELS", raising=False)
    monkeypatch.setattr(targets, "host_machine", lambda: "x86_64")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: reported["cpuinfo"])
    yield reported
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([V3], ["x86-64-v3", "x86-64-v2"]),
        ([V3, V3], ["x86-64-v3", "x86-64-v2"]),
        ([V3, V2], ["x86-64-v2"]),
        ([V2], ["x86-64-v2"]),
        *(([V3.replace(f" {flag} ", " ")], ["x86-64-v2"]) for flag in ("avx2", "bmi1", "bmi2", "fma", "f16c", "abm")),
        ([V3.replace(" movbe", "")], ["x86-64-v2"]),
        ([V2.replace(" sse4_2", "")], ["native"]),
        ([], ["native"]),
    ],
)
def test_a_target_is_chosen_only_if_every_processor_has_its_instructions(
    x86: dict[str, str], flags: list[str], expected: list[str]
) -> None:
    x86["cpuinfo"] = cpuinfo(*flags)
    assert native.target_names() == expected


def test_without_proc_the_oldest_target_is_chosen(x86: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert x86

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError("/proc/cpuinfo")

    monkeypatch.setattr(Path, "read_text", refuse)
    assert native.target_names() == ["x86-64-v2"]


@pytest.mark.parametrize("hwcap", [0, 0xFF, 0x7F, 0x80])
def test_aarch64_needs_the_instructions_for_checksums(monkeypatch: pytest.MonkeyPatch, hwcap: int) -> None:
    libc = SimpleNamespace(getauxval=lambda key: hwcap if key == 16 else 0)
    monkeypatch.delenv("AFTERGLOW_KERNELS", raising=False)
    monkeypatch.setattr(targets, "host_machine", lambda: "aarch64")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: libc)
    assert native.target_names() == (["aarch64"] if hwcap & 0x80 else ["native"])


def test_another_system_compiles_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AFTERGLOW_KERNELS", raising=False)
    monkeypatch.setattr("sys.platform", "darwin")
    assert native.target_names() == ["native"]


def test_a_target_can_be_chosen(x86: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    x86["cpuinfo"] = cpuinfo(V2)
    for name in ("x86-64-v2", "native"):
        monkeypatch.setenv("AFTERGLOW_KERNELS", name)
        assert native.target_names() == [name]
    for name in ("x86-64-v3", "aarch64", "z80"):
        monkeypatch.setenv("AFTERGLOW_KERNELS", name)
        with pytest.raises(NotSupported, match=f"cannot run .*: {name}; choose from x86-64-v2, native"):
            native.target_names()


def test_this_machine_prepares_what_a_process_would_compile(built: Path) -> None:
    assert built.name == f"kernels-{best()}-{library.sources_digest()[:16]}.so"
    manifest = library.read_manifest(built)
    assert manifest is not None
    assert (manifest.target, manifest.sources) == (best(), library.sources_digest())
    assert replace(manifest, compiler="") != manifest
