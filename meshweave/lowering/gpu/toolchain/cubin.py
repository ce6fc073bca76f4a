"""Read from a cubin, an ELF file, what its kernels take of a multiprocessor."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from meshweave.device import Chip

# Name, type, flags, address, offset, size, link, info, alignment, entry size.
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_REGISTERS, _FRAME = 0x2F, 0x11  # EIATTR_REGCOUNT, EIATTR_FRAME_SIZE: symbol and number
_SIZED = 4  # an attribute that is followed by its size


@dataclass(frozen=True)
class KernelTakes:
    """Say what a kernel takes: registers and bytes of stack of a thread, bytes of shared memory that it declares."""

    registers: int
    shared_bytes: int
    stack_bytes: int


def kernels_of(cubin: bytes, chip: Chip) -> dict[str, KernelTakes]:
    """Return what each kernel of a cubin takes, by its entry. chip: that it is for."""
    reserved = chip.reserved_bytes if chip.capability >= (9, 0) else 0  # is in the section, there
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [_SECTION.unpack_from(cubin, table + k * size) for k in range(count)]
    by_name = {_text(cubin, sections[names][4] + each[0]): each for each in sections}
    symbols = by_name[".symtab"]
    texts = sections[symbols[6]][4]
    numbers: dict[tuple[int, str], int] = {}
    for attribute, symbol, value in _attributes(_data(cubin, by_name.get(".nv.info"))):
        (text, *_) = _SYMBOL.unpack_from(cubin, symbols[4] + symbol * _SYMBOL.size)
        numbers[attribute, _text(cubin, texts + text)] = value
    found = {}
    for name in by_name:
        if name.startswith(".text."):
            entry = name.removeprefix(".text.")
            shared = by_name.get(f".nv.shared.{entry}")
            declared = shared[5] - reserved if shared else 0
            stack = numbers.get((_FRAME, entry), 0)
            found[entry] = KernelTakes(numbers[_REGISTERS, entry], declared, stack)
    return found


def _attributes(data: bytes) -> list[tuple[int, int, int]]:
    """Return the attributes that are of a symbol and a number: kind, symbol, number."""
    found, at = [], 0
    while at + 4 <= len(data):
        form, kind, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _SIZED:
            if size == 8:
                found.append((kind, *struct.unpack_from("<II", data, at)))
            at += size
    return found


def _data(cubin: bytes, section: tuple[int, ...] | None) -> bytes:
    return b"" if section is None else cubin[section[4] : section[4] + section[5]]


def _text(cubin: bytes, at: int) -> str:
    return cubin[at : cubin.index(b"\0", at)].decode()
