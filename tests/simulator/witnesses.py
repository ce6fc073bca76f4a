"""Kernels through the witness, beside the emulator; and kernels that are broken on purpose."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from lowering.gpu.device_runs import DeviceRun, Launch

from meshweave.device import DeviceModule
from meshweave.errors import MeshweaveError
from meshweave.lowering.gpu.kernel import DeviceKernel
from meshweave.lowering.gpu.toolchain import literals, versions
from meshweave.lowering.gpu.toolchain.ptx import device_llvm, to_ptx
from meshweave.simulator.ptx import GlobalMemory
from meshweave.simulator.witness import WitnessedKernel, missing_here, witnessed

if missing_here():
    pytest.skip(f"no {missing_here()} here", allow_module_level=True)

Results = list[np.ndarray]


@cache
def device_code(text: str) -> str:
    """LLVM IR of a kernel, as the LLVM that makes PTX reads it."""
    return literals.readable(device_llvm(text))


@cache
def compiled(code: str, chip: str) -> WitnessedKernel:
    """Device code for the host."""
    number = int(re.sub(r"\D", "", chip))
    return witnessed(code, versions.libdevice(), 10 * number)


def witness(chip: str, seed: int = 0, broken: Mapping[str, str] | None = None) -> Launch:
    """Run kernels in the witness. seed: of the order in which threads run. broken: device code by entry."""

    def launch(kernel: DeviceKernel, arguments: list[bytes], memory: GlobalMemory) -> None:
        code = (broken or {}).get(kernel.entry) or device_code(kernel.text)
        buffers = [(segment.base, len(segment.data)) for segment in memory.segments]
        compiled(code, chip).launch(
            kernel.entry, kernel.grid, kernel.block, kernel.shared_bytes, arguments, buffers, seed
        )

    return launch


def apart(found: np.ndarray, wanted: np.ndarray, kind: str) -> float:
    """The largest difference, in units of the last place of the largest element; of whole numbers, 0 or infinity.

    NaN agree with NaN, and infinities with themselves. kind: element type in MLIR; bf16 are bits.
    """
    if np.array_equal(found, wanted):
        return 0.0
    if kind == "bf16":
        found, wanted = ((x.astype(np.uint32) << 16).view(np.float32) for x in (found, wanted))
    if found.dtype.kind != "f":
        return np.inf
    bits = {"f64": 52, "f32": 23, "f16": 10, "bf16": 7}[kind]
    same = (found == wanted) | np.isnan(found) & np.isnan(wanted)
    a, b = found[~same].astype(np.float64), wanted[~same].astype(np.float64)
    if not len(a):
        return 0.0
    if not (np.isfinite(a) & np.isfinite(b)).all():
        return np.inf
    finite = wanted[np.isfinite(wanted)].astype(np.float64)
    return float(np.abs(a - b).max() / np.abs(finite).max() * 2.0**bits)


@dataclass(frozen=True)
class Broken:
    """A kernel's device code with one thing changed: how, where, and the text."""

    kind: str
    what: str
    code: str


_DROPPED = r"call void @llvm\.nvvm\.(bar\.warp|barrier|cp\.async\.(wait|commit)|wgmma\.(wait|commit|fence)|fence)"
_INDEX = r"(.* = (?:add|mul|and|shl|lshr|urem|udiv|xor)(?: \w+)* i32 \S+, )(\d+)$"
_SWAPPED = (
    r"(.* = (?:sub|fsub|fdiv|urem|udiv|shl|lshr)(?: \w+)* (?:i\d+|float|double) )(\S+), (\S+)()$"
)
_FACTORS = r"(.* = call .*@llvm\.nvvm\.mma\.[^(]*\()(\S+ \S+), (\S+ \S+)(, .*)$"


def broken(code: str) -> list[Broken]:
    """Every way to break a kernel that is known here: what orders threads left out, a wait one weaker, a number
    of an index changed, operands swapped.
    """
    found = []
    lines = code.split("\n")
    for at, line in enumerate(lines):
        if line.startswith("declare"):
            continue
        changes = {"dropped": ""} if re.search(_DROPPED, line) else {}
        if wait := re.search(r"(wait[._]group[\w.]*\(i\d+ )(\d+)", line):
            changes["weaker"] = line.replace(wait[0], f"{wait[1]}{int(wait[2]) + 1}")
        if index := re.match(_INDEX, line):
            changes["index"] = f"{index[1]}{int(index[2]) + 1}"
        if place := re.match(r"(.* = getelementptr .*, i(?:32|64) )(\d+)$", line):
            changes["place"] = f"{place[1]}{int(place[2]) + 2}"
        if swap := re.match(_SWAPPED, line) or re.match(_FACTORS, line):
            changes["swapped"] = f"{swap[1]}{swap[3]}, {swap[2]}{swap[4]}"
        for kind, new in changes.items():
            text = "\n".join([*lines[:at], new, *lines[at + 1 :]])
            found.append(Broken(kind, f"{at + 1}: {kind}: {line.strip()[:80]}", text))
    return found


def outcome_here(
    run: DeviceRun, entry: str, code: str, inputs: Results, seed: int
) -> Results | str:
    """What the witness gives, or says, of a program one of whose kernels is broken."""
    try:
        return run.run(*inputs, launch=witness(run.target.chip, seed, {entry: code}))
    except MeshweaveError as error:
        return error.message


def outcome_there(run: DeviceRun, number: int, code: str, inputs: Results) -> Results | str:
    """What the emulator does."""
    whole = run.modules
    try:
        module = DeviceModule(run.target.chip, to_ptx(code, run.target.chip))
        run.modules = [module if k == number else m for k, m in enumerate(whole)]
        return run.run(*inputs)
    except MeshweaveError as error:
        return error.message
    finally:
        run.modules = whole


def noticed(outcome: Results | str, right: Results) -> bool:
    """Tell whether a result is another one, or an error."""
    if isinstance(outcome, str):
        return True
    return not all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(outcome, right)
    )
