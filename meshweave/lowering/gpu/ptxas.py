"""PTX to machine code, and what machine code needs: NVIDIA's assembler and disassembler."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from meshweave.device import DeviceModule
from meshweave.errors import CompileError
from meshweave.lowering.gpu.toolchain import INSTALL, program

SECONDS = 300.0  # the time that one module may take


@dataclass(frozen=True)
class Resources:
    """What a kernel takes: registers of a thread, bytes spilled (stores and loads), bytes of shared
    memory that it declares, bytes of stack.
    """

    registers: int
    spill_bytes: int
    static_shared: int
    stack: int


def assemble(ptx: str, chip: str) -> bytes | None:
    """The cubin; None where ptxas is not installed. CompileError, with what ptxas says."""
    return _assembled(ptx, chip)[0] if program("ptxas") else None


def resources(module: DeviceModule) -> dict[str, Resources]:
    """Of each entry of a module. CompileError where ptxas is not installed."""
    if program("ptxas") is None:
        raise CompileError(f"ptxas is not installed: {INSTALL}")
    log = _assembled(module.ptx, module.chip)[1]
    found: dict[str, Resources] = {}
    for part in re.split(r"Compiling entry function ", log)[1:]:
        name = part.split("'")[1]
        stack, stores, loads = _numbers(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part
        )
        (registers,) = _numbers(r"Used (\d+) registers", part)
        shared = re.search(r"(\d+) bytes smem", part)
        found[name] = Resources(registers, stores + loads, int(shared[1]) if shared else 0, stack)
    return found


def opcodes(cubin: bytes) -> Counter[str]:
    """How often each opcode (`HMMA`, without its modifiers) occurs in the code of a cubin."""
    tool = program("nvdisasm")
    if tool is None:
        raise CompileError(f"nvdisasm is not installed: {INSTALL}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        listing = _run([tool, "-c", str(path)])
    line = r"^\s*(?:/\*[0-9a-f]+\*/)?\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]+)[.\s;]"
    return Counter(re.findall(line, listing, re.MULTILINE))


def _numbers(pattern: str, text: str) -> tuple[int, ...]:
    found = re.search(pattern, text)
    assert found is not None, f"ptxas -v says nothing like {pattern}"
    return tuple(int(number) for number in found.groups())


@lru_cache(maxsize=64)
def _assembled(ptx: str, chip: str) -> tuple[bytes, str]:
    """The cubin, and what `ptxas -v` says of it."""
    tool = program("ptxas")
    assert tool is not None
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        log = _run([tool, f"-arch={chip}", "-v", str(source), "-o", str(target)])
        return target.read_bytes(), log


def _run(command: list[str]) -> str:
    """Everything that a tool prints. CompileError, with its first complaint, where it fails."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise CompileError(f"{name} did not end in {SECONDS:g} s") from None
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        said = next((line for line in lines if "error" in line or "fatal" in line), lines[:1])
        raise CompileError(f"{name}: {said or f'exit status {done.returncode}'}")
    return done.stdout + done.stderr
