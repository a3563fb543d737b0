"""Compilation of the kernels for one target, in a process of its own.

numba compiles them to LLVM IR, LLVM compiles that to machine code, and ``linker`` makes a library of it, which
``native`` loads without either of them: importing numba alone takes longer than decoding a hundred megabytes.

numba optimizes for one processor per process, which is chosen before it is imported. For a machine other than this one
it only lowers the code to IR, and LLVM optimizes it again for the target.
"""

from __future__ import annotations

import importlib
import os
import re
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from afterglow.format._kernels import linker, targets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import llvmlite.binding as llvm

_SOURCES = {
    "kernels": ("frames", "entries", "expand", "rows", "sends", "messages"),
    "typed": ("typed_rows",),
}
"""Modules of the kernels of each image; an image is compiled and loaded on first use."""

_KERNELS: dict[str, tuple[Any, tuple[Any, ...]]] = {}
# Functions that kernels may call: memory functions of the C library, and LLVM intrinsics.
_ALLOWED = re.compile(r"llvm\..*|memcpy|memmove|memset")

_STEP8 = {
    "x86_64": """
declare i64 @llvm.x86.sse42.crc32.64.64(i64, i64)
define linkonce_odr i64 @{name}(i64 %crc, i64 %word) alwaysinline {{
  %next = call i64 @llvm.x86.sse42.crc32.64.64(i64 %crc, i64 %word)
  ret i64 %next
}}
""",
    "aarch64": """
declare i32 @llvm.aarch64.crc32cx(i32, i64)
define linkonce_odr i64 @{name}(i64 %crc, i64 %word) alwaysinline {{
  %narrow = trunc i64 %crc to i32
  %next = call i32 @llvm.aarch64.crc32cx(i32 %narrow, i64 %word)
  %wide = zext i32 %next to i64
  ret i64 %wide
}}
""",
}
"""The step of CRC32C by the instruction of each machine."""


class Compiled(NamedTuple):
    """Machine code of an image."""

    code: bytes
    """A shared library; for the target ``native`` an object file."""
    kernels: dict[str, int]
    """The exported kernels, each with its number of arguments."""
    compiler: str
    """Versions of the compilers; for the target ``native`` with the processor."""


def kernel(arguments: int) -> Callable[[Callable[..., Any]], Any]:
    """Register a function that Python may call; it takes ``arguments`` integers, mostly addresses, and returns one."""
    from numba import njit, types  # noqa: PLC0415 - imported after ``compile_kernels`` has chosen the processor

    def mark(function: Callable[..., Any]) -> Any:
        signature = (types.int64,) * arguments
        # A kernel raises nothing and uses no Python objects: without wrappers, and with numpy's division, it does not
        # need the interpreter.
        bare: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        compiled = njit(error_model="numpy", nogil=True, **bare)(function)
        _KERNELS[function.__name__] = (compiled, signature)
        return compiled

    return mark


def compile_kernels(image: str, name: str) -> Compiled:
    """Compile the kernels of an image; once per process, which must not have imported numba.

    Args:
        image: A key of the table of sources.
        name: The target, or ``native`` for the processor of this machine and whatever system it runs.

    Raises:
        RuntimeError: A kernel calls a function that libraries do not provide.
    """
    targets.compile_for(name)
    target = targets.compiled_target()
    crossing = target is not None and target.machine != targets.host_machine()
    _configure_numba(target, crossing=crossing)
    import llvmlite.binding as llvm  # noqa: PLC0415 - with numba, which reads its configuration now

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    symbols, counts, whole = _lower(image)
    machine = _native_machine() if target is None else _machine(target)
    if target is not None:
        if crossing or target.machine != "x86_64":
            _optimize_again(whole, target, machine)
        whole.triple = target.triple
    for symbol in re.findall(r'^declare .*?@"?([^\s"(]+)', str(whole), re.MULTILINE):
        if not _ALLOWED.fullmatch(symbol):
            raise RuntimeError(f"a kernel calls a function that is not available without Python: {symbol}")
    compiler = f"numba {version('numba')}, llvmlite {version('llvmlite')}"
    if target is None:
        for exported, symbol in symbols.items():
            whole.get_function(symbol).name = exported
        return Compiled(machine.emit_object(whole), counts, f"{compiler}, {native_processor()}")
    return Compiled(linker.link(machine.emit_object(whole), symbols), counts, compiler)


def _configure_numba(target: targets.Target | None, *, crossing: bool) -> None:
    for variable in [variable for variable in os.environ if variable.startswith("NUMBA_")]:
        del os.environ[variable]
    if target is not None:
        os.environ["NUMBA_CPU_NAME"] = "generic" if crossing else target.processor
        os.environ["NUMBA_CPU_FEATURES"] = "" if crossing else target.features
    if crossing:
        # Vectors are for the target to choose.
        os.environ["NUMBA_LOOP_VECTORIZE"] = os.environ["NUMBA_SLP_VECTORIZE"] = "0"


def _lower(image: str) -> tuple[dict[str, str], dict[str, int], llvm.ModuleRef]:
    """Compile an image to IR; returns the symbol of each kernel, its number of arguments, and the module."""
    import llvmlite.binding as llvm  # noqa: PLC0415
    from numba import types  # noqa: PLC0415

    from afterglow.format._kernels.checksum import STEP8  # noqa: PLC0415

    # Code for the host that numba emits along the way must find the function that is substituted later; it never runs.
    llvm.add_symbol(STEP8, 1)
    sources = [f"{__package__}.{source}" for source in _SOURCES[image]]
    for source in sources:
        importlib.import_module(source)
    symbols: dict[str, str] = {}
    counts: dict[str, int] = {}
    whole = llvm.parse_assembly("")
    for name, (function, signature) in _KERNELS.items():
        if function.py_func.__module__ not in sources:
            continue
        function.compile(types.int64(*signature))
        symbols[name] = function.overloads[signature].fndesc.llvm_func_name
        counts[name] = len(signature)
        whole.link_in(llvm.parse_assembly(function.inspect_llvm(signature)))
    return symbols, counts, whole


def _machine(target: targets.Target) -> llvm.TargetMachine:
    import llvmlite.binding as llvm  # noqa: PLC0415

    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.processor, features=target.features, opt=3, reloc="pic", codemodel="default"
    )


def _optimize_again(whole: llvm.ModuleRef, target: targets.Target, machine: llvm.TargetMachine) -> None:
    import llvmlite.binding as llvm  # noqa: PLC0415

    from afterglow.format._kernels.checksum import STEP8  # noqa: PLC0415

    whole.triple = target.triple
    whole.data_layout = str(machine.target_data)
    step8 = llvm.parse_assembly(_STEP8[target.machine].format(name=STEP8))
    step8.triple = target.triple
    step8.data_layout = whole.data_layout
    whole.link_in(step8)
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = tuning.slp_vectorization = True
    passes = llvm.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(whole, passes)


# --- the processor of this machine ---------------------------------------------------------------------------------


def native_processor() -> str:
    """Return the processor of this machine as LLVM names it, with its features."""
    import llvmlite.binding as llvm  # noqa: PLC0415

    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def _native_machine() -> llvm.TargetMachine:
    """Return a target machine; an engine owns and frees the one it is given."""
    import llvmlite.binding as llvm  # noqa: PLC0415

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        codemodel="jitdefault",
        jit=True,
    )


def load_native(code: bytes, names: Mapping[str, int]) -> tuple[object, dict[str, int]]:
    """Load an object file for this processor; returns the owner of its memory, and the address of each kernel."""
    import llvmlite.binding as llvm  # noqa: PLC0415

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _native_machine())
    engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine, {name: engine.get_function_address(name) for name in names}
