"""What NVIDIA's assembler and disassembler say of machine code."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from meshweave.device import DeviceModule
from meshweave.lowering.gpu.toolchain.versions import program


@dataclass(frozen=True)
class Resources:
    """What a kernel takes: registers of a thread, bytes spilled (stores and loads), bytes of shared
    memory that it declares, and bytes of stack.
    """

    registers: int
    spill_bytes: int
    static_shared: int
    stack: int


def resources(module: DeviceModule) -> dict[str, Resources]:
    """Of each entry of a module."""
    return assembled(module)[1]


def assembled(module: DeviceModule) -> tuple[bytes, dict[str, Resources]]:
    """The machine code of a module's PTX, and what each entry takes."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(module.ptx)
        log = _printed("ptxas", f"-arch={module.chip}", "-v", source, "-o", target)
        assert "Performance Loss" not in log, log  # asynchronous products one after another
        cubin = target.read_bytes()
    found: dict[str, Resources] = {}
    for part in re.split(r"Compiling entry function ", log)[1:]:
        name = part.split("'")[1]
        stack, stores, loads = _numbers(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part
        )
        (registers,) = _numbers(r"Used (\d+) registers", part)
        shared = re.search(r"(\d+) bytes smem", part)
        found[name] = Resources(registers, stores + loads, int(shared[1]) if shared else 0, stack)
    return cubin, found


def opcodes(cubin: bytes) -> Counter[str]:
    """How often each opcode (`HMMA`, without its modifiers) is in the code of a cubin."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        listing = _printed("nvdisasm", "-c", path)
    line = r"^\s*(?:/\*[0-9a-f]+\*/)?\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]+)[.\s;]"
    return Counter(re.findall(line, listing, re.MULTILINE))


def _numbers(pattern: str, text: str) -> tuple[int, ...]:
    found = re.search(pattern, text)
    assert found is not None, f"ptxas -v says nothing like {pattern}"
    return tuple(int(number) for number in found.groups())


def _printed(tool: str, *arguments: str | Path) -> str:
    done = subprocess.run(
        [program(tool), *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return done.stdout + done.stderr
