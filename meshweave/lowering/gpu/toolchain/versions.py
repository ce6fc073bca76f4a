"""Find the parts of the device toolchain: NVIDIA's packages beside this one, else the PATH."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
from functools import cache
from pathlib import Path

from meshweave.errors import CompileError

INSTALL = "pip install 'meshweave[gpu]'"
_PACKAGES = ("llvmlite", "nvidia-nvvm", "nvidia-cuda-nvcc")


def libdevice() -> str:
    """Return the bitcode of the device's mathematics. Raises CompileError where it is not installed."""
    found = _part("nvvm/libdevice/libdevice.10.bc")
    if found is None:
        raise CompileError(f"target gpu: libdevice is not installed: {INSTALL}")
    return str(found)


def program(name: str) -> str | None:
    """Return the path of `ptxas` or `nvdisasm`; None where there is none."""
    found = _part(f"bin/{name}")
    return str(found) if found else shutil.which(name)


def has_llvm() -> bool:
    """Tell whether the LLVM that makes PTX is installed."""
    return importlib.util.find_spec("llvmlite") is not None


def need_llvm() -> None:
    """Raise CompileError where the LLVM that makes PTX is not installed."""
    if not has_llvm():
        raise CompileError(f"target gpu: llvmlite, which makes PTX, is not installed: {INSTALL}")


@cache
def versions() -> tuple[str, ...]:
    """Return the versions of all parts that make device code."""
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} -")
    return (*found, program("ptxas") or "no ptxas")


@cache
def _part(relative: str) -> Path | None:
    """Return a file of the newest of NVIDIA's packages that has it."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for found in sorted(Path(root).glob(f"*/{relative}"), reverse=True):
            return found
    return None
