"""Processors that kernels are compiled for, and those of them that match this machine.

x86-64 has two levels of its psABI: version 3 has the wide vectors that copying and scanning gain from, version 2 is in
every server since 2009. On aarch64 the CRC32 instructions are required, which are optional in ARMv8.0 only.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NATIVE: Final = "native"
"""Name of the code for the very processor that compiles it; for all machines without a target of their own."""


@dataclass(frozen=True, slots=True)
class Target:
    """A processor family, with the names that LLVM, ELF and Linux have for it."""

    name: str
    machine: str
    """As in ``platform.machine()``."""
    processor: str
    """LLVM's name; its instructions and its costs decide how loops are vectorized."""
    features: str
    flags: frozenset[str]
    """What Linux must report for a processor, or the code would end the process."""

    @property
    def triple(self) -> str:
        """LLVM's name of the platform."""
        return f"{self.machine}-unknown-linux-gnu"


_V2_FLAGS: Final = frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})
# abm is Linux's name of lzcnt.
_V3_FLAGS: Final = _V2_FLAGS | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}

TARGETS: Final = {
    target.name: target
    for target in (
        Target("x86-64-v3", "x86_64", "x86-64-v3", "", _V3_FLAGS),
        Target("x86-64-v2", "x86_64", "x86-64-v2", "", _V2_FLAGS),
        Target("aarch64", "aarch64", "generic", "+crc", frozenset({"crc32"})),
    )
}
"""The better ones first."""

_AT_HWCAP: Final = 16
_HWCAP_CRC32: Final = 1 << 7


def host_targets() -> list[Target]:
    """Return the targets whose code this machine can run, the best first."""
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return []
    machine = host_machine()
    return [target for target in TARGETS.values() if target.machine == machine and target.flags <= _flags(machine)]


def _flags(machine: str) -> frozenset[str]:
    if machine == "aarch64":
        # Emulators answer this for the emulated processor, and show /proc/cpuinfo of the host.
        capabilities = ctypes.CDLL(None).getauxval
        capabilities.restype = ctypes.c_ulong
        capabilities.argtypes = [ctypes.c_ulong]
        return frozenset({"crc32"}) if capabilities(_AT_HWCAP) & _HWCAP_CRC32 else frozenset()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return _V2_FLAGS
    return parse_flags(text)


def parse_flags(cpuinfo: str) -> frozenset[str]:
    """Return the flags that every processor in the text of ``/proc/cpuinfo`` has."""
    found = [set(line.partition(":")[2].split()) for line in cpuinfo.splitlines() if line.startswith("flags")]
    return frozenset(set.intersection(*found)) if found else frozenset()


# --- the target of this process -------------------------------------------------------------------------------------

_compiled: Target | None = None


def compile_for(name: str) -> None:
    """Set the target that this process compiles kernels for, before their modules are imported."""
    global _compiled  # noqa: PLW0603 - a process compiles for one target, and kernels take no arguments for it
    _compiled = TARGETS.get(name)


def compiled_target() -> Target | None:
    """Return the target that this process compiles kernels for; None is the machine itself."""
    return _compiled


def host_machine() -> str:
    """Return the machine's name as Linux has it."""
    return {"AMD64": "x86_64"}.get(platform.machine(), platform.machine())
