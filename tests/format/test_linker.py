"""The linker of kernels: what it links runs, and everything that it cannot link is refused."""

from __future__ import annotations

import ctypes
import platform
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterglow.format._kernels import linker, targets

if TYPE_CHECKING:
    from pathlib import Path

MACHINES = {"x86_64": "x86-64-v2", "aarch64": "aarch64"}

MODULE = """
target triple = "{triple}"
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare ptr @memset(ptr, i32, i64)
@table = internal constant [4 x i64] [i64 7, i64 11, i64 13, i64 17]
@bytes = internal constant [3 x i8] c"abc"

define i64 @_Zpick(i64 %i) {{
  %at = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %value = load i64, ptr %at
  %sum = call i64 @_Zinner(i64 %value)
  ret i64 %sum
}}

define i64 @_Zinner(i64 %x) noinline {{
  %y = add i64 %x, 1000
  ret i64 %y
}}

define i64 @_Zcopy(ptr %to, ptr %from, i64 %n) {{
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %n, i1 0)
  %next = getelementptr i8, ptr %to, i64 %n
  %filled = call ptr @memset(ptr %next, i32 42, i64 2)
  %at = getelementptr [3 x i8], ptr @bytes, i64 0, i64 1
  %letter = load i8, ptr %at
  %wide = zext i8 %letter to i64
  ret i64 %wide
}}

define i64 @_Zchoose(i64 %x) {{
  switch i64 %x, label %other [ i64 0, label %a  i64 1, label %b  i64 2, label %c  i64 3, label %d  i64 4, label %e ]
a:
  %ra = call i64 @_Zinner(i64 5)
  ret i64 %ra
b:
  ret i64 70
c:
  %rc = call i64 @_Zpick(i64 3)
  ret i64 %rc
d:
  %rd = mul i64 %x, 9
  ret i64 %rd
e:
  %re = call i64 @_Zinner(i64 %x)
  ret i64 %re
other:
  ret i64 -1
}}
"""
EXPORTS = {"pick": "_Zpick", "copy": "_Zcopy", "choose": "_Zchoose"}


def compiled(machine: str, text: str = MODULE, *, code_model: str = "default") -> bytes:
    """An object file of LLVM code for a machine."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = targets.TARGETS[MACHINES[machine]]
    module = llvm.parse_assembly(text.format(triple=target.triple))
    made = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.processor, features=target.features, opt=3, reloc="pic", codemodel=code_model
    )
    module.data_layout = str(made.target_data)
    return bytes(made.emit_object(module))


@pytest.mark.skipif(not targets.host_targets(), reason="this machine has no target")
def test_a_linked_library_runs(tmp_path: Path) -> None:
    path = tmp_path / "linked.so"
    path.write_bytes(linker.link(compiled(platform.machine()), EXPORTS))
    library = ctypes.CDLL(str(path))
    for name in EXPORTS:
        library[name].restype = ctypes.c_int64
    assert [library["pick"](ctypes.c_int64(i)) for i in range(4)] == [1007, 1011, 1013, 1017]
    assert [library["choose"](ctypes.c_int64(i)) for i in range(-1, 6)] == [-1, 1005, 70, 1017, 27, 1004, -1]
    target = ctypes.create_string_buffer(10)
    assert library["copy"](target, b"xyz", ctypes.c_int64(3)) == ord("b")
    assert target.raw == b"xyz**\0\0\0\0\0"
    with pytest.raises(AttributeError):
        library["_Zinner"]


@pytest.mark.parametrize("machine", MACHINES)
def test_a_library_needs_only_memory_functions_and_has_no_writable_code(machine: str) -> None:
    code = linker.link(compiled(machine), EXPORTS)
    kind, number = struct.unpack_from("<HH", code, 16)
    assert (kind, number) == (3, {"x86_64": 62, "aarch64": 183}[machine])
    # A memcpy without version would be the slow one of an old release.
    assert [code.count(name) for name in (b"memcpy\0", b"memmove\0", b"memset\0")] == [0, 1, 1]
    table, count = struct.unpack_from("<Q", code, 32)[0], struct.unpack_from("<H", code, 56)[0]
    segments = [struct.unpack_from("<IIQQQQQQ", code, table + 56 * i) for i in range(count)]
    loaded = [segment for segment in segments if segment[0] == 1]
    assert [flags for _, flags, *_ in loaded] == [4, 5, 6]
    for (_, _, offset, address, _, file_size, size, align), following in zip(loaded, [*loaded[1:], None], strict=True):
        assert offset % align == address % align
        assert file_size <= size
        assert following is None or following[3] // align > (address + size - 1) // align
    assert not any(flags & 1 for kind, flags, *_ in segments if kind == 0x6474E551), "the stack is executable"


@pytest.mark.skipif(not shutil.which("readelf"), reason="readelf is not installed")
@pytest.mark.parametrize("machine", MACHINES)
def test_readelf_finds_nothing_wrong(machine: str, tmp_path: Path) -> None:
    path = tmp_path / "linked.so"
    path.write_bytes(linker.link(compiled(machine), EXPORTS))
    done = subprocess.run(["readelf", "-aW", str(path)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "GLOBAL DEFAULT    6 pick" in done.stdout
    assert "GLOBAL DEFAULT  UND memmove" in done.stdout


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("@table = internal constant", "@table = internal global"), "a kernel has writable data"),
        (("i64 7, i64 11", "i64 ptrtoint (ptr @_Zinner to i64), i64 11"), "a kernel has writable data"),
        (("@table = internal constant", "@table = common global"), "uses data that is not constant|relocation"),
    ],
)
def test_what_kernels_do_not_have_is_refused(machine: str, change: tuple[str, str], said: str) -> None:
    text = MODULE.replace(*change)
    if "common" in change[1]:
        text = text.replace("[i64 7, i64 11, i64 13, i64 17]", "zeroinitializer")
    if "global" in change[1]:  # or LLVM would see that nothing writes to it
        text = text.replace("load i64, ptr %at", "load volatile i64, ptr %at")
        text += "define void @_Zstore(i64 %i) {{\n store i64 %i, ptr @table\n ret void\n}}\n"
    with pytest.raises(ValueError, match=said):
        linker.link(compiled(machine, text), EXPORTS)


def test_unknown_relocations_are_refused() -> None:
    with pytest.raises(ValueError, match="a kernel has an unexpected relocation: type"):
        linker.link(compiled("x86_64", code_model="large"), EXPORTS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((0, b"\0ELF"), "not a relocatable object"),
        ((16, b"\2\0"), "not a relocatable object"),
        ((18, b"\3\0"), "object for an unknown machine: ELF machine 3"),
    ],
)
def test_files_that_are_no_object_are_refused(change: tuple[int, bytes], said: str) -> None:
    code = bytearray(compiled("x86_64"))
    at, value = change
    code[at : at + len(value)] = value
    with pytest.raises(ValueError, match=said):
        linker.link(bytes(code), EXPORTS)


# --- instructions of aarch64 ---------------------------------------------------------------------------------------

ADDRESSES = st.integers(0, 2**30)


def word(code: bytearray) -> int:
    return int.from_bytes(code, "little")


@given(ADDRESSES, ADDRESSES.map(lambda n: n * 4))
def test_adrp_has_the_distance_in_pages(target: int, address: int) -> None:
    code = bytearray((0x90000010).to_bytes(4, "little"))
    linker._page(code, 0, target, address)
    assert word(code) & 0x9F00001F == 0x90000010
    pages = (word(code) >> 5 & 0x7FFFF) << 2 | word(code) >> 29 & 3
    pages -= (pages >> 20) << 21
    assert (address & ~0xFFF) + (pages << 12) == target & ~0xFFF


@given(st.integers(0, 4), ADDRESSES)
def test_loads_have_the_offset_in_the_page_in_units_of_their_size(shift: int, units: int) -> None:
    code = bytearray((0xF9400211).to_bytes(4, "little"))
    linker._page_offset(shift)(code, 0, units << shift, 0)
    assert word(code) & ~0x3FFC00 == 0xF9400211
    assert (word(code) >> 10 & 0xFFF) << shift == (units << shift) & 0xFFF


def test_a_load_that_is_not_aligned_is_refused() -> None:
    with pytest.raises(ValueError, match="a load at 0x1004 is not aligned to 8 bytes"):
        linker._page_offset(3)(bytearray(4), 0, 0x1004, 0)


@given(st.integers(-(2**25), 2**25 - 1), st.integers(2**26, 2**27))
def test_branches_have_the_distance_in_words(words: int, address: int) -> None:
    code = bytearray((0x94000000).to_bytes(4, "little"))
    linker._branch26(code, 0, 4 * (address + words), 4 * address)
    assert word(code) >> 26 == 0x94000000 >> 26
    found = word(code) & 0x3FFFFFF
    assert found - (found >> 25 << 26) == words


@pytest.mark.parametrize(("distance", "bits"), [(2**31, 32), (-(2**31) - 1, 32), (2**27, 28)])
def test_a_distance_that_does_not_fit_is_refused(distance: int, bits: int) -> None:
    with pytest.raises(ValueError, match=f"a distance of {distance} bytes does not fit into {bits} bits"):
        linker._signed(distance, bits)
