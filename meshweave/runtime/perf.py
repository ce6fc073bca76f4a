"""Write what `perf` and gdb need to name compiled code of this process: a map of its functions, and symbols of them."""

from __future__ import annotations

import os
import struct

from meshweave.errors import UsageError
from meshweave.runtime.loader import LoadedFunction, loaded_functions

_ELF = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _STRTAB, _NOBITS = 2, 3, 8
_ALLOCATED_CODE, _EXECUTABLE_FILE, _X86_64, _GLOBAL_FUNCTION = 6, 2, 62, 0x12
_TEXT = 1  # number of the section that the functions are in


def write_perf_map(path: str | None = None) -> str:
    """Write the functions of all programs that are loaded in this process; return the path of the file.

    Beside it, with `.elf` for its ending, is a file that gdb takes the same names from: `add-symbol-file FILE`.
    path: None is /tmp/perf-PID.map, where `perf report` looks for them. Raises UsageError where it cannot be written.
    """
    target = path or f"/tmp/perf-{os.getpid()}.map"
    functions = loaded_functions()
    lines = "".join(f"{f.address:x} {f.size:x} {f.name}\n" for f in functions)
    _write(target, lines.encode())
    _write(f"{target.removesuffix('.map')}.elf", symbol_file(functions))
    return target


def symbol_file(functions: list[LoadedFunction]) -> bytes:
    """Return an ELF file with the names and addresses of functions, and none of their code."""
    names, symbols = b"\0", _SYMBOL.pack(0, 0, 0, 0, 0, 0)
    for f in functions:
        symbols += _SYMBOL.pack(len(names), _GLOBAL_FUNCTION, 0, _TEXT, f.address, f.size)
        names += f.name.encode() + b"\0"
    low = min((f.address for f in functions), default=0)
    high = max((f.address + f.size for f in functions), default=0)
    titles = b"\0.text\0.symtab\0.strtab\0.shstrtab\0"
    start = _ELF.size
    sections = [
        (0,) * 10,
        (1, _NOBITS, _ALLOCATED_CODE, low, start, high - low, 0, 0, 16, 0),
        (7, _SYMTAB, 0, 0, start, len(symbols), 3, 1, 8, _SYMBOL.size),
        (15, _STRTAB, 0, 0, start + len(symbols), len(names), 0, 0, 1, 0),
        (23, _STRTAB, 0, 0, start + len(symbols) + len(names), len(titles), 0, 0, 1, 0),
    ]
    data = symbols + names + titles
    magic = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head = _ELF.pack(
        magic, _EXECUTABLE_FILE, _X86_64, 1, 0, 0, start + len(data), 0,
        _ELF.size, 0, 0, _SECTION.size, len(sections), len(sections) - 1,
    )  # fmt: skip
    return head + data + b"".join(_SECTION.pack(*each) for each in sections)


def _write(path: str, data: bytes) -> None:
    """Write a file whose name can be guessed: a link that somebody else has put there is not followed."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(data)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
