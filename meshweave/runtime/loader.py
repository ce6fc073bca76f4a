"""Load x86-64 ELF objects into this process: no compiler, no linker, no file.

The objects of a bundle use the large code model, so their code refers to everything by 64-bit
addresses and several objects can be laid out anywhere, together in one mapping. Symbols are
resolved among the objects first, then in the libraries given. Memory is written first and then made
executable or read-only, never writable and executable at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import struct
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from meshweave.errors import MeshweaveError

PAGE = mmap.PAGESIZE
_LARGEST = 1 << 36  # bytes of code and data of one program
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_MACHINE_X86_64, _RELOCATABLE = 62, 1
_SYMTAB, _RELA, _NOBITS, _REL = 2, 4, 8, 9  # section types
_WRITE, _ALLOC, _EXECUTE, _TLS = 1, 2, 4, 0x400  # section flags
_ABSOLUTE, _COMMON = 0xFFF1, 0xFFF2  # special section numbers of symbols
_GLOBAL, _WEAK = 1, 2
_FUNCTION = 2  # type of symbols
# Relocation types: (bytes, relative to the place, signed or unsigned range).
_RELOCATIONS = {
    1: (8, False, "q"),
    24: (8, True, "q"),
    2: (4, True, "i"),
    4: (4, True, "i"),
    10: (4, False, "I"),
    11: (4, False, "i"),
}
_READ_ONLY, _READ_WRITE, _READ_EXECUTE = 1, 3, 5  # mprotect
_ORDER = (_READ_EXECUTE, _READ_ONLY, _READ_WRITE)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class _ElfSection(NamedTuple):
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


class _ElfSymbol(NamedTuple):
    name: str
    binding: int
    section: int
    value: int
    size: int
    is_function: bool


class LoadedFunction(NamedTuple):
    """Hold a function in memory: its name, where it begins, and its bytes."""

    name: str
    address: int
    size: int


@dataclass
class _ElfObject:
    """Hold one parsed object; `places` gives the address of each loaded section."""

    index: int
    data: bytes
    sections: list[_ElfSection]
    symbols: list[_ElfSymbol]
    places: dict[int, int] = field(default_factory=dict)

    def loaded(self) -> list[int]:
        """Return the numbers of the sections that go to memory.

        Unwinding tables stay out: no exception passes through our code.
        """
        return [
            number
            for number, section in enumerate(self.sections)
            if section.flags & _ALLOC
            and section.size
            and not section.name.startswith((".eh_frame", ".note"))
        ]


class LoadedCode:
    """Keep code in memory for as long as this object lives."""

    def __init__(
        self, memory: mmap.mmap, symbols: dict[str, int], functions: Sequence[LoadedFunction] = ()
    ) -> None:
        self._memory = memory  # unmapped with the last reference to this object
        self._symbols = symbols
        self.functions = tuple(functions)
        _LOADED.add(self)

    def address(self, symbol: str) -> int:
        """Return the address of a symbol that the objects define. Raises MeshweaveError when none does."""
        if symbol not in self._symbols:
            raise MeshweaveError(f"the bundle's code defines no symbol {symbol}")
        return self._symbols[symbol]

    def __contains__(self, symbol: str) -> bool:
        return symbol in self._symbols


_LOADED = weakref.WeakSet[LoadedCode]()


def loaded_functions() -> list[LoadedFunction]:
    """Return the functions of all code that is in memory now, by address."""
    return sorted((f for code in _LOADED for f in code.functions), key=lambda f: f.address)


def load(
    objects: Sequence[bytes],
    externals: Mapping[str, int] | None = None,
    libraries: Sequence[ctypes.CDLL] = (),
) -> LoadedCode:
    """Load relocatable objects together. Symbols resolve among them first, then in `externals`, then in `libraries`.

    externals: addresses of further symbols by name. When several objects define a symbol, the first one counts.

    Raises MeshweaveError for an object that is not x86-64 relocatable ELF, is damaged or uses an unknown feature, and
    one
    that lists all symbols that are defined nowhere.
    """
    parsed = []
    for index, data in enumerate(objects):
        with _reading(index):
            parsed.append(_parse(index, bytes(data)))
    memory, base, bounds = _place(parsed)
    defined = _definitions(parsed)
    resolved = _resolve(parsed, defined, dict(externals or {}), libraries)
    for item in parsed:
        with _reading(item.index):
            _relocate(item, resolved, memory, base)
    for protection, start, end in bounds:
        if end > start and _libc.mprotect(base + start, end - start, protection):
            raise MeshweaveError(
                f"the system refuses executable memory (errno {ctypes.get_errno()})"
            )
    return LoadedCode(memory, defined, _functions(parsed))


@contextlib.contextmanager
def _reading(index: int) -> Iterator[None]:
    """Raise MeshweaveError for an object whose contents contradict the format."""
    try:
        yield
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise MeshweaveError(f"object {index}: damaged ELF file ({error})") from None


def _parse(index: int, data: bytes) -> _ElfObject:
    """Read the section and symbol tables of one object."""
    if data[:4] != b"\x7fELF":
        raise MeshweaveError(f"object {index}: not an ELF file")
    ident, kind, machine, *_, table, _flags, _hs, _ps, _pn, entry, count, names = (
        _HEADER.unpack_from(data)
    )
    if ident[4] != 2 or ident[5] != 1 or machine != _MACHINE_X86_64:
        raise MeshweaveError(
            f"object {index}: not for x86-64 (ELF class {ident[4]}, machine {machine})"
        )
    if kind != _RELOCATABLE or entry != _SECTION.size:
        raise MeshweaveError(f"object {index}: not a relocatable object (ELF type {kind})")
    raw = [_SECTION.unpack_from(data, table + number * entry) for number in range(count)]
    texts = data[raw[names][4] : raw[names][4] + raw[names][5]]
    sections = []
    for name, section_kind, flags, _address, offset, size, link, info, align, _entry in raw:
        if section_kind != _NOBITS and offset + size > len(data):
            raise MeshweaveError(
                f"object {index}: cut short: section {_string(texts, name)} ends beyond the file"
            )
        if flags & _TLS:
            raise MeshweaveError(f"object {index}: thread-local variables are not supported")
        if align & (align - 1) or align > PAGE:
            raise ValueError(f"alignment {align}")
        sections.append(
            _ElfSection(
                _string(texts, name), section_kind, flags, offset, size, link, info, max(align, 1)
            )
        )
    return _ElfObject(index, data, sections, _symbols(data, sections))


def _symbols(data: bytes, sections: list[_ElfSection]) -> list[_ElfSymbol]:
    """Read the symbol table of an object and check its section numbers."""
    tables = [section for section in sections if section.kind == _SYMTAB]
    if len(tables) != 1:
        raise ValueError(f"{len(tables)} symbol tables")
    strings = sections[tables[0].link]
    texts = data[strings.offset : strings.offset + strings.size]
    symbols = []
    for place in range(tables[0].offset, tables[0].offset + tables[0].size, _SYMBOL.size):
        name, info, _other, section, value, size = _SYMBOL.unpack_from(data, place)
        if section == _COMMON or (section >= len(sections) and section != _ABSOLUTE):
            raise ValueError(f"symbol {_string(texts, name)} in section {section}")
        function = info & 15 == _FUNCTION
        symbols.append(_ElfSymbol(_string(texts, name), info >> 4, section, value, size, function))
    return symbols


def _string(texts: bytes, start: int) -> str:
    return texts[start : texts.index(b"\0", start)].decode()


def _place(parsed: list[_ElfObject]) -> tuple[mmap.mmap, int, list[tuple[int, int, int]]]:
    """Map memory and copy all loaded sections into it, those of one protection together.

    Returns the mapping, its address, and (protection, first byte, last byte + 1) of each kind,
    page-aligned.
    """
    end, bounds, spots = 0, [], []
    for protection in _ORDER:
        start = end
        for item in parsed:
            for number in item.loaded():
                section = item.sections[number]
                if _protection(section) != protection:
                    continue
                end = -(-end // section.align) * section.align
                spots.append((item, number, end))
                end += section.size
        end = -(-end // PAGE) * PAGE
        bounds.append((protection, start, end))
    if end > _LARGEST:
        raise MeshweaveError(f"the objects need {end} bytes of memory: they are damaged")
    memory = mmap.mmap(-1, max(end, PAGE))
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for item, number, spot in spots:
        section = item.sections[number]
        item.places[number] = base + spot
        if section.kind != _NOBITS:
            memory[spot : spot + section.size] = item.data[
                section.offset : section.offset + section.size
            ]
    return memory, base, bounds


def _protection(section: _ElfSection) -> int:
    if section.flags & _EXECUTE:
        return _READ_EXECUTE
    return _READ_WRITE if section.flags & _WRITE else _READ_ONLY


def _definitions(parsed: list[_ElfObject]) -> dict[str, int]:
    """Map global symbols that the objects define to addresses; strong ones before weak, then the first."""
    defined: dict[str, int] = {}
    for wanted in (_GLOBAL, _WEAK):
        for item in parsed:
            for symbol in item.symbols:
                if symbol.binding == wanted and symbol.section and symbol.name:
                    address = _value(item, symbol)
                    if address is not None:
                        defined.setdefault(symbol.name, address)
    return defined


def _functions(parsed: list[_ElfObject]) -> list[LoadedFunction]:
    """Return the functions that the objects define, local ones too."""
    return [
        LoadedFunction(symbol.name, address, symbol.size)
        for item in parsed
        for symbol in item.symbols
        if symbol.is_function and symbol.section and symbol.size
        if (address := _value(item, symbol)) is not None
    ]


def _value(item: _ElfObject, symbol: _ElfSymbol) -> int | None:
    """Return the address of a symbol defined in this object; None in a section that is not loaded."""
    if symbol.section == _ABSOLUTE:
        return symbol.value
    place = item.places.get(symbol.section)
    if place is None:  # an empty section has no place: its symbols (if any) are never read through
        return None
    return place + symbol.value


def _resolve(
    parsed: list[_ElfObject],
    defined: dict[str, int],
    externals: dict[str, int],
    libraries: Sequence[ctypes.CDLL],
) -> dict[str, int]:
    """Map every global symbol that the objects refer to to its address."""
    resolved: dict[str, int] = {}
    missing: list[str] = []
    for item in parsed:
        for symbol in item.symbols:
            name = symbol.name
            if symbol.binding not in (_GLOBAL, _WEAK) or not name or name in resolved:
                continue
            address = defined.get(name) or externals.get(name) or _in_libraries(name, libraries)
            if address is None and symbol.binding == _GLOBAL and name not in missing:
                missing.append(name)
            resolved[name] = address or 0
    if missing:
        raise MeshweaveError(
            f"the bundle's code needs symbols that no library here defines: {', '.join(missing)}"
        )
    return resolved


def _in_libraries(name: str, libraries: Sequence[ctypes.CDLL]) -> int | None:
    for library in libraries:
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        except AttributeError:
            continue
    return None


def _relocate(item: _ElfObject, resolved: dict[str, int], memory: mmap.mmap, base: int) -> None:
    """Write the addresses that the sections of one object refer to."""
    for section in item.sections:
        target = item.places.get(section.info) if section.kind in (_RELA, _REL) else None
        if target is None:
            continue
        if section.kind == _REL:
            raise MeshweaveError(
                f"object {item.index}: relocations without addends are not supported"
            )
        limit = item.sections[section.info].size
        for place in range(section.offset, section.offset + section.size, _RELOCATION.size):
            offset, info, addend = _RELOCATION.unpack_from(item.data, place)
            symbol, kind = item.symbols[info >> 32], info & 0xFFFFFFFF
            if kind not in _RELOCATIONS:
                raise MeshweaveError(
                    f"object {item.index}: relocation type {kind} is not supported"
                )
            nbytes, relative, code = _RELOCATIONS[kind]
            if offset + nbytes > limit:
                raise ValueError(f"relocation at {offset:#x} of {limit:#x}")
            if symbol.binding in (_GLOBAL, _WEAK):
                address = resolved[symbol.name]
            else:
                address = _value(item, symbol) or 0
            value = address + addend - (target + offset if relative else 0)
            if nbytes == 8:
                word = struct.pack("<Q", value & 0xFFFFFFFFFFFFFFFF)
            else:
                word = _short(item, symbol, value, code)
            spot = target + offset - base
            memory[spot : spot + nbytes] = word


def _short(item: _ElfObject, symbol: _ElfSymbol, value: int, code: str) -> bytes:
    """Pack a reference of 32 bits. Raises MeshweaveError when its target is too far away."""
    try:
        return struct.pack("<" + code, value)
    except struct.error:
        raise MeshweaveError(
            f"object {item.index}: {symbol.name or 'a section'} is too far away for a reference of "
            "32 bits: compile with the large code model"
        ) from None
