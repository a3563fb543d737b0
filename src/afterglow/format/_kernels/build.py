"""Compilation of the kernels, once per machine and release.

numba compiles them to LLVM IR, and LLVM to machine code, which ``native`` stores on disk and loads without numba:
importing numba alone takes longer than decoding a hundred megabytes.
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
from numba import njit, types

if TYPE_CHECKING:
    from collections.abc import Callable

_SOURCES = {
    "kernels": ("frames", "entries", "expand", "rows"),
    "typed": ("typed_rows",),
}
"""Modules of the kernels of each image; an image is compiled and loaded on first use."""

_KERNELS: dict[str, tuple[Any, tuple[Any, ...]]] = {}
# Functions that kernels may call: memory functions of the C library, and LLVM intrinsics.
_ALLOWED = re.compile(r"llvm\..*|memcpy|memmove|memset")


def kernel(arguments: int) -> Callable[[Callable[..., Any]], Any]:
    """Register a function that Python may call; it takes ``arguments`` integers, mostly addresses, and returns one."""

    def mark(function: Callable[..., Any]) -> Any:
        signature = (types.int64,) * arguments
        # A kernel raises nothing and uses no Python objects: without wrappers, and with numpy's division, it does not
        # need the interpreter.
        bare: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        compiled = njit(error_model="numpy", nogil=True, **bare)(function)
        _KERNELS[function.__name__] = (compiled, signature)
        return compiled

    return mark


def compile_kernels(machine: llvm.TargetMachine, image: str) -> tuple[dict[str, tuple[str, int]], bytes]:
    """Compile the kernels of an image for a machine.

    Returns:
        For each kernel its symbol and number of arguments, and one object file with them all.
    """
    sources = [f"{__package__}.{source}" for source in _SOURCES[image]]
    for source in sources:
        importlib.import_module(source)
    symbols: dict[str, tuple[str, int]] = {}
    whole = llvm.parse_assembly("")
    for name, (function, signature) in _KERNELS.items():
        if function.py_func.__module__ not in sources:
            continue
        function.compile(types.int64(*signature))
        symbols[name] = (function.overloads[signature].fndesc.llvm_func_name, len(signature))
        whole.link_in(llvm.parse_assembly(function.inspect_llvm(signature)))
    for symbol in re.findall(r'^declare .*?@"?([^\s"(]+)', str(whole), re.MULTILINE):
        if not _ALLOWED.fullmatch(symbol):
            raise RuntimeError(f"a kernel calls {symbol}, which is not available without Python")
    return symbols, machine.emit_object(whole)
