"""Linker of one object file with kernels to a shared library, for ELF on x86-64 and aarch64.

Kernels have no writable data, no thread-local data and no constructors, and call only memory functions of the C
library: what is left of linking is to assign addresses, to resolve distances, and to write the tables of the dynamic
linker. Any other section or relocation is refused. The library has three segments:

======== ========================================================================
read     ELF header, program headers, dynamic symbols and relocations, constants
execute  code, and a stub for each function of the C library
write    dynamic table and the addresses of these functions; read-only once loaded
======== ========================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_EHDR: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SHDR: Final = struct.Struct("<IIQQQQIIQQ")
_PHDR: Final = struct.Struct("<IIQQQQQQ")
_SYM: Final = struct.Struct("<IBBHQQ")
_RELA: Final = struct.Struct("<QQq")
_DYN: Final = struct.Struct("<qQ")
_WORD: Final = struct.Struct("<I")

_IDENT: Final = b"\x7fELF\x02\x01\x01"
_REL, _SHARED = 1, 3
_PROGBITS, _SYMTAB, _STRTAB, _RELOCATIONS, _HASH, _DYNAMIC, _NOBITS, _DYNSYM = 1, 2, 3, 4, 5, 6, 8, 11
_WRITE, _ALLOC, _EXECUTE = 1, 2, 4
_UNDEFINED: Final = 0
_GLOBAL_FUNCTION: Final = 0x12
_TEXT_SECTION: Final = 6
"""Number of ``.text`` in the section headers."""
_SEGMENTS: Final = 6
_PT_LOAD, _PT_DYNAMIC, _PT_STACK, _PT_RELRO = 1, 2, 0x6474E551, 0x6474E552
_TAGS: Final = {"HASH": 4, "STRTAB": 5, "SYMTAB": 6, "RELA": 7, "RELASZ": 8, "RELAENT": 9, "STRSZ": 10, "SYMENT": 11}

_SUBSTITUTES: Final = {"memcpy": "memmove"}
"""glibc gives a library without symbol versions the memcpy of its first release, which copies 10 % slower than the
current one. There is only one memmove, and it is as fast.
"""

_PAGE: Final = 0x10000
"""The largest page of either machine."""


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int
    size: int


class _Relocation(NamedTuple):
    section: int
    offset: int
    kind: int
    symbol: _Symbol
    addend: int


@dataclass(slots=True)
class _Object:
    """The parts of an object file that are linked."""

    data: bytes
    machine: int
    sections: list[_Section]
    symbols: list[_Symbol]
    kept: list[int]
    """Numbers of the sections that are loaded."""
    relocations: list[_Relocation]

    def content(self, number: int) -> bytes:
        """Return the bytes of a section."""
        section = self.sections[number]
        return self.data[section.offset : section.offset + section.size]


def _parse(data: bytes) -> _Object:
    ident, kind, machine, _, _, _, table, _, _, _, _, entry, count, _ = _EHDR.unpack_from(data)
    if not ident.startswith(_IDENT) or kind != _REL or entry != _SHDR.size:
        raise ValueError("not a relocatable object: expected ELF with 64 bits, little-endian")
    sections = [_Section(*_SHDR.unpack_from(data, table + i * entry)) for i in range(count)]
    (symtab,) = [section for section in sections if section.kind == _SYMTAB]
    texts = sections[symtab.link]
    symbols: list[_Symbol] = []
    for at in range(symtab.offset, symtab.offset + symtab.size, _SYM.size):
        name, _, _, section, value, size = _SYM.unpack_from(data, at)
        start = texts.offset + name
        symbols.append(_Symbol(data[start : data.index(b"\0", start)].decode(), section, value, size))
    kept = [i for i, section in enumerate(sections) if section.flags & _ALLOC and section.size]
    for i in kept:
        if sections[i].flags & _WRITE or sections[i].kind == _NOBITS:
            raise ValueError(f"a kernel has writable data: section {i} of {sections[i].size} bytes")
    relocations = []
    for section in sections:
        if section.kind == _RELOCATIONS and section.info in kept:
            for at in range(section.offset, section.offset + section.size, _RELA.size):
                offset, info, addend = _RELA.unpack_from(data, at)
                symbol = symbols[info >> 32]
                if symbol.section != _UNDEFINED and symbol.section not in kept:
                    raise ValueError(f"a kernel uses data that is not constant: {symbol.name}")
                relocations.append(_Relocation(section.info, offset, info & 0xFFFFFFFF, symbol, addend))
    return _Object(data, machine, sections, symbols, kept, relocations)


# --- machines ------------------------------------------------------------------------------------------------------


_Relocate = Callable[[bytearray, int, int, int], None]
"""Write the address of a target into the bytes at an offset, which have an address of their own."""


def _signed(value: int, bits: int) -> int:
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"a distance of {value} bytes does not fit into {bits} bits")
    return value & (1 << bits) - 1


def _distance32(code: bytearray, at: int, target: int, address: int) -> None:
    _WORD.pack_into(code, at, _signed(target - address, 32))


def _insert(code: bytearray, at: int, mask: int, bits: int) -> None:
    _WORD.pack_into(code, at, _WORD.unpack_from(code, at)[0] & ~mask | bits)


def _page(code: bytearray, at: int, target: int, address: int) -> None:
    pages = _signed((target >> 12) - (address >> 12), 21)
    _insert(code, at, 0x60FFFFE0, (pages & 3) << 29 | pages >> 2 << 5)


def _page_offset(shift: int) -> _Relocate:
    def relocate(code: bytearray, at: int, target: int, _address: int) -> None:
        offset = target & 0xFFF
        if offset & (1 << shift) - 1:
            raise ValueError(f"a load at {target:#x} is not aligned to {1 << shift} bytes")
        _insert(code, at, 0x3FFC00, offset >> shift << 10)

    return relocate


def _branch26(code: bytearray, at: int, target: int, address: int) -> None:
    _insert(code, at, 0x3FFFFFF, _signed(target - address, 28) >> 2)


def _stub_x86_64(address: int, slot: int) -> bytes:
    return b"\xff\x25" + struct.pack("<i", slot - (address + 6)) + b"\xcc\xcc"  # jmp *slot(%rip)


def _stub_aarch64(address: int, slot: int) -> bytes:
    code = bytearray(struct.pack("<4I", 0x90000010, 0xF9400211, 0xD61F0220, 0xD503201F))
    _page(code, 0, slot, address)  # adrp x16, slot
    _page_offset(3)(code, 4, slot, address)  # ldr x17, [x16, :lo12:slot]
    return bytes(code)  # br x17; nop


@dataclass(frozen=True, slots=True)
class _Machine:
    relocations: Mapping[int, _Relocate]
    stub: Callable[[int, int], bytes]
    stub_bytes: int
    slot_kind: int
    """Type of the dynamic relocation that writes a function's address."""


_MACHINES: Final = {
    62: _Machine({2: _distance32, 4: _distance32}, _stub_x86_64, 8, 6),
    183: _Machine(
        {
            261: _distance32,
            275: _page,
            277: _page_offset(0),
            278: _page_offset(0),
            282: _branch26,
            283: _branch26,
            284: _page_offset(1),
            285: _page_offset(2),
            286: _page_offset(3),
            299: _page_offset(4),
        },
        _stub_aarch64,
        16,
        1025,
    ),
}


# --- linking -------------------------------------------------------------------------------------------------------


class _Range(NamedTuple):
    offset: int
    address: int
    size: int


class _Item(NamedTuple):
    """A range of the file before it has an offset."""

    key: str | int
    size: int
    align: int


def _lay_out(segments: Sequence[Sequence[_Item]]) -> tuple[dict[str | int, _Range], list[_Range]]:
    """Give every item its offset and address, each segment on pages of its own; returns items and segments."""
    ranges: dict[str | int, _Range] = {}
    bounds = []
    at = 0
    for number, items in enumerate(segments):
        # Offset and address are equal modulo the page, as mapping requires, without padding the file to pages.
        shift = number * _PAGE
        at += -at % 64
        start = at
        for item in items:
            at += -at % max(item.align, 1)
            ranges[item.key] = _Range(at, at + shift, item.size)
            at += item.size
        bounds.append(_Range(start, start + shift, at - start))
    return ranges, bounds


def link(code: bytes, exports: Mapping[str, str]) -> bytes:
    """Link an object file to a shared library.

    Args:
        code: A relocatable ELF object of position-independent code.
        exports: For each name that the library exports, the symbol's name in the object.

    Raises:
        ValueError: The object has a section, a symbol or a relocation that kernels do not need.
    """
    source = _parse(code)
    machine = _MACHINES.get(source.machine)
    if machine is None:
        raise ValueError(f"object for an unknown machine: ELF machine {source.machine}; expected x86-64 or aarch64")
    return _Linker(source, machine, exports).link()


class _Linker:
    """The linking of one object."""

    def __init__(self, source: _Object, machine: _Machine, exports: Mapping[str, str]) -> None:
        self._source = source
        self._machine = machine
        self._exports = exports
        undefined = {entry.symbol.name for entry in source.relocations if entry.symbol.section == _UNDEFINED}
        self._imports = sorted({_SUBSTITUTES.get(name, name) for name in undefined})
        self._names = ["", *self._imports, *sorted(exports)]
        self._strings = "\0".join([*self._names, ""]).encode()
        constants = [_item(source, i) for i in source.kept if not source.sections[i].flags & _EXECUTE]
        code = [_item(source, i) for i in source.kept if source.sections[i].flags & _EXECUTE]
        self._ranges, self._segments = _lay_out(
            [
                [
                    _Item("headers", _EHDR.size + _SEGMENTS * _PHDR.size, 8),
                    _Item("dynsym", _SYM.size * len(self._names), 8),
                    _Item("hash", 4 * (3 + len(self._names)), 8),
                    _Item("rela", _RELA.size * len(self._imports), 8),
                    _Item("dynstr", len(self._strings), 1),
                    *constants,
                ],
                [*code, _Item("stubs", machine.stub_bytes * len(self._imports), 16)],
                [_Item("dynamic", _DYN.size * (len(_TAGS) + 1), 16), _Item("got", 8 * len(self._imports), 8)],
            ]
        )
        self._data = bytearray(self._segments[-1].offset + self._segments[-1].size)

    def link(self) -> bytes:
        """Return the bytes of the library."""
        for number in self._source.kept:
            self._put(number, self._source.content(number))
        self._import()
        self._relocate()
        self._put("dynsym", self._symbols())
        # One bucket, and a chain through all symbols: there are only a few.
        count = len(self._names)
        chain = [*range(2, count), 0] if count > 1 else []
        self._put("hash", struct.pack(f"<{3 + count}I", 1, count, min(count - 1, 1), 0, *chain))
        self._put("dynstr", self._strings)
        self._put("dynamic", self._dynamic())
        table, count = self._section_headers()
        self._put("headers", self._headers(count))
        return bytes(self._data) + table

    def _put(self, key: str | int, content: bytes) -> None:
        offset, _, size = self._ranges[key]
        assert len(content) <= size
        self._data[offset : offset + len(content)] = content

    def _address(self, symbol: _Symbol) -> int:
        return self._ranges[symbol.section].address + symbol.value

    def _stub(self, name: str) -> int:
        number = self._imports.index(_SUBSTITUTES.get(name, name))
        return self._ranges["stubs"].address + number * self._machine.stub_bytes

    def _import(self) -> None:
        """Write for each function of the C library its stub, and the relocation that fills in its address."""
        slots = [self._ranges["got"].address + 8 * number for number in range(len(self._imports))]
        stubs = [self._machine.stub(self._stub(name), slot) for name, slot in zip(self._imports, slots, strict=True)]
        self._put("stubs", b"".join(stubs))
        rows = [_RELA.pack(slot, number << 32 | self._machine.slot_kind, 0) for number, slot in enumerate(slots, 1)]
        self._put("rela", b"".join(rows))

    def _relocate(self) -> None:
        for section, offset, kind, symbol, addend in self._source.relocations:
            relocate = self._machine.relocations.get(kind)
            if relocate is None:
                raise ValueError(f"a kernel has an unexpected relocation: type {kind} to {symbol.name!r}")
            target = self._stub(symbol.name) if symbol.section == _UNDEFINED else self._address(symbol)
            inside = self._ranges[section]
            relocate(self._data, inside.offset + offset, target + addend, inside.address + offset)

    def _symbols(self) -> bytes:
        """Return the table of dynamic symbols: the imported ones, then the exported ones."""
        defined = {symbol.name: symbol for symbol in self._source.symbols if symbol.section in self._source.kept}
        table = bytearray(_SYM.size)
        text = 1
        for name in self._names[1:]:
            address, size, section = 0, 0, 0
            if name in self._exports:
                symbol = defined[self._exports[name]]
                address, size, section = self._address(symbol), symbol.size, _TEXT_SECTION
            table += _SYM.pack(text, _GLOBAL_FUNCTION, 0, section, address, size)
            text += len(name.encode()) + 1
        return bytes(table)

    def _dynamic(self) -> bytes:
        values = {
            "HASH": self._ranges["hash"].address,
            "STRTAB": self._ranges["dynstr"].address,
            "SYMTAB": self._ranges["dynsym"].address,
            "RELA": self._ranges["rela"].address,
            "RELASZ": self._ranges["rela"].size,
            "RELAENT": _RELA.size,
            "STRSZ": len(self._strings),
            "SYMENT": _SYM.size,
        }
        return b"".join(_DYN.pack(_TAGS[name], value) for name, value in values.items())

    def _headers(self, sections: int) -> bytes:
        """Return the ELF header and the program headers."""
        read, execute, write = self._segments
        # All of the third segment is read-only once the addresses are filled in: so it ends with a page.
        whole = write.address + write.size + -(write.address + write.size) % _PAGE - write.address
        dynamic = self._ranges["dynamic"]
        segments = [
            (_PT_LOAD, 4, read, read.size, _PAGE),
            (_PT_LOAD, 5, execute, execute.size, _PAGE),
            (_PT_LOAD, 6, write, whole, _PAGE),
            (_PT_DYNAMIC, 6, dynamic, dynamic.size, 8),
            (_PT_RELRO, 4, write, whole, 1),
            (_PT_STACK, 6, _Range(0, 0, 0), 0, 16),
        ]
        assert len(segments) == _SEGMENTS
        rows = [
            _PHDR.pack(kind, flags, part.offset, part.address, part.address, part.size, size, align)
            for kind, flags, part, size, align in segments
        ]
        table = len(self._data)
        sizes = (_EHDR.size, _PHDR.size, _SEGMENTS, _SHDR.size, sections, sections - 1)
        header = _EHDR.pack(_IDENT, _SHARED, self._source.machine, 1, 0, _EHDR.size, table, 0, *sizes)
        return header + b"".join(rows)

    def _section_headers(self) -> tuple[bytes, int]:
        """Return the section headers with their names, for debuggers and profilers only, and their number."""
        read, execute, _ = self._segments
        constants = self._ranges["dynstr"].offset + self._ranges["dynstr"].size
        rodata = _Range(constants, constants, read.offset + read.size - constants)
        rows = [
            (".dynsym", _DYNSYM, _ALLOC, self._ranges["dynsym"], 4, 1, _SYM.size),
            (".hash", _HASH, _ALLOC, self._ranges["hash"], 1, 0, 4),
            (".rela.dyn", _RELOCATIONS, _ALLOC, self._ranges["rela"], 1, 0, _RELA.size),
            (".dynstr", _STRTAB, _ALLOC, self._ranges["dynstr"], 0, 0, 0),
            (".rodata", _PROGBITS, _ALLOC, rodata, 0, 0, 0),
            (".text", _PROGBITS, _ALLOC | _EXECUTE, execute, 0, 0, 0),
            (".dynamic", _DYNAMIC, _ALLOC | _WRITE, self._ranges["dynamic"], 4, 0, _DYN.size),
            (".got", _PROGBITS, _ALLOC | _WRITE, self._ranges["got"], 0, 0, 8),
        ]
        names = "\0".join(["", *(row[0] for row in rows), ".shstrtab", ""]).encode()
        count = len(rows) + 2
        after = len(self._data) + count * _SHDR.size
        rows.append((".shstrtab", _STRTAB, 0, _Range(after, 0, len(names)), 0, 0, 0))
        table = bytearray(_SHDR.size)
        for name, kind, flags, part, link, info, entry in rows:
            text = names.index(f"\0{name}\0".encode()) + 1
            table += _SHDR.pack(text, kind, flags, part.address, part.offset, part.size, link, info, 8, entry)
        return bytes(table) + names, count


def _item(source: _Object, number: int) -> _Item:
    section = source.sections[number]
    return _Item(number, section.size, section.align)
