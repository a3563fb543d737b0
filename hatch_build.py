"""Build hook that adds machine code of the kernels to platform wheels.

``AFTERGLOW_WHEEL`` chooses the wheel: a machine of ``MACHINES``, for a wheel of Linux on that machine, or ``any`` for
one that compiles the kernels on first use. By default the wheel is for the machine that builds it. LLVM compiles for
other machines too, so that all wheels can be built on one.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MACHINES = {"x86_64": ["x86-64-v3", "x86-64-v2"], "aarch64": ["aarch64"]}
"""The targets of each wheel. Their libraries use no symbol that glibc 2.17 does not have."""


class KernelsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the kernels for the targets of a wheel, and sets its tag."""

    _scratch: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """Return the packages that the build of this wheel needs."""
        return self.metadata.core.optional_dependencies["compile"] if self._machine() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the package is installed from its sources."""
        machine = self._machine()
        if version == "editable" or machine is None:
            return
        self.app.display_info(f"Compiling the kernels for {', '.join(MACHINES[machine])} ...")
        sys.path.insert(0, str(Path(self.root) / "src"))
        native = importlib.import_module("afterglow.format._kernels.native")
        self._scratch = tempfile.TemporaryDirectory(prefix="afterglow-wheel-")
        libraries = Path(self._scratch.name)
        native.ship(libraries, MACHINES[machine])
        inside = native.SHIPPED.relative_to(Path(self.root) / "src")
        for file in sorted(libraries.iterdir()):
            build_data["force_include"][str(file)] = str(inside / file.name)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_17_{machine}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the compiled files, which are in the wheel."""
        del version, build_data, artifact_path
        if self._scratch is not None:
            self._scratch.cleanup()

    @staticmethod
    def _machine() -> str | None:
        """Return the machine of the wheel; None for a wheel for all machines."""
        chosen = os.environ.get("AFTERGLOW_WHEEL") or (platform.machine() if sys.platform == "linux" else "any")
        if chosen in MACHINES:
            return chosen
        if chosen != "any" and "AFTERGLOW_WHEEL" in os.environ:
            raise ValueError(f"unknown machine in AFTERGLOW_WHEEL: {chosen}; choose from {', '.join(MACHINES)}, any")
        return None
