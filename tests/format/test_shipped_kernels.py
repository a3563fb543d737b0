"""The machine code of platform wheels: it is that of the sources, it is loaded, and all targets decode the same."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.support.aarch64 import emulated

from afterglow.format._kernels import library, native, targets

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
LIBRARIES = Path("afterglow", "format", "_kernels", "lib")
MACHINES = {"x86_64": ["x86-64-v2", "x86-64-v3"], "aarch64": ["aarch64"]}
RUNNABLE = [target.name for target in targets.host_targets()]

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels by machine, and the one for any."""
    directory = tmp_path_factory.mktemp("wheels")
    for machine in (*MACHINES, "any"):
        environment = {**os.environ, "AFTERGLOW_WHEEL": machine}
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=900, env=environment)
    return {machine: next(directory.glob(f"*[_-]{machine}.whl")) for machine in (*MACHINES, "any")}


@pytest.fixture(scope="module")
def unpacked(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The content of the platform wheels by machine."""
    found = {}
    for machine in MACHINES:
        found[machine] = tmp_path_factory.mktemp(machine)
        with zipfile.ZipFile(wheels[machine]) as opened:
            opened.extractall(found[machine])
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What code for the processor of this machine decodes, compiled by LLVM without targets and without the linker."""
    cache = str(tmp_path_factory.mktemp("cache"))
    return decoded(ROOT / "src", AFTERGLOW_KERNELS="native", AFTERGLOW_CACHE=cache)


def run(program: str, package: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(map(str, (package, ROOT)))
    return subprocess.run(
        [sys.executable, str(HERE / program), *arguments],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def decoded(package: Path, **environment: str) -> dict[str, Any]:
    done = run("golden_decoder.py", package, **environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("machine", MACHINES)
def test_the_shipped_code_is_built_from_the_shipped_sources(machine: str, unpacked: dict[str, Path]) -> None:
    package = unpacked[machine] / LIBRARIES.parent
    for source in Path(library.__file__).parent.glob("*.py"):
        assert (package / source.name).read_bytes() == source.read_bytes()
    manifests = {path.stem: json.loads(path.read_text()) for path in (unpacked[machine] / LIBRARIES).glob("*.json")}
    assert manifests.keys() == {f"{image}-{name}" for image in native.IMAGES for name in MACHINES[machine]}
    for name, manifest in manifests.items():
        code = (unpacked[machine] / LIBRARIES / f"{name}.so").read_bytes()
        assert manifest["library"] == hashlib.sha256(code).hexdigest()
        assert manifest["sources"] == library.sources_digest()
        assert f"{manifest['image']}-{manifest['target']}" == name


@pytest.mark.parametrize(("machine", "said"), [(platform.machine(), "without a compiler"), ("any", "with a compiler")])
def test_a_wheel_for_this_machine_decodes_in_an_empty_environment(
    machine: str, said: str, wheels: dict[str, Path]
) -> None:
    if machine not in wheels:
        pytest.skip(f"no wheel is built for {machine}")
    check = [sys.executable, str(ROOT / "scripts" / "check_wheel.py"), str(wheels[machine])]
    done = subprocess.run(check, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


@pytest.mark.parametrize("target", RUNNABLE)
def test_every_target_decodes_the_golden_set_as_this_processor_does(
    target: str, unpacked: dict[str, Path], expected: dict[str, Any], tmp_path: Path
) -> None:
    package = unpacked[targets.TARGETS[target].machine]
    found = decoded(package, AFTERGLOW_KERNELS=target, AFTERGLOW_CACHE=str(tmp_path))
    assert expected["targets"] == ["native", "native"]
    assert found["targets"] == [target, target]
    assert found["compilers"] == []
    assert found["digests"] == expected["digests"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", RUNNABLE)
def test_no_target_touches_a_byte_outside_what_was_given(target: str, unpacked: dict[str, Path]) -> None:
    seed = os.environ.get("AFTERGLOW_FUZZ_SEED", str(random.SystemRandom().getrandbits(32)))
    seconds = os.environ.get("AFTERGLOW_FUZZ_SECONDS", "10")
    package = unpacked[targets.TARGETS[target].machine]
    done = run("columns_fuzzer.py", package, seed, seconds, AFTERGLOW_KERNELS=target)
    assert done.returncode == 0, f"seed {seed}: AFTERGLOW_FUZZ_SEED={seed} repeats it\n{done.stderr[-4000:]}"
    assert int(done.stdout.split()[0]) > 50


def test_code_for_aarch64_decodes_the_golden_set_under_emulation(
    unpacked: dict[str, Path], expected: dict[str, Any]
) -> None:
    machine = emulated()
    golden = {name: os.environ[name] for name in ("AFTERGLOW_GOLDEN",) if name in os.environ}
    done = machine.run(HERE / "golden_decoder.py", unpacked["aarch64"], **golden)
    found = json.loads(done.stdout)
    assert found["targets"] == ["aarch64", "aarch64"]
    assert found["compilers"] == []
    assert found["digests"] == expected["digests"]
