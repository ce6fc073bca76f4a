"""Open the real libraries: the CUDA driver, NCCL and cuBLASLt, of the system or of NVIDIA's wheels."""

from __future__ import annotations

import ctypes
import glob
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from meshweave.errors import MeshweaveError
from meshweave.runtime.gpu.interface import SIGNATURES

# Of each library: the names of its file, newest first, and what to do without it.
FILES = {
    "cuda": (
        ("libcuda.so.1",),
        "engine nccl needs a GPU and its driver: there is no libcuda.so.1 on this host",
    ),
    "nccl": (
        ("libnccl.so.2",),
        "the program's collectives need NCCL, libnccl.so.2: pip install nvidia-nccl-cu13 "
        "(nvidia-nccl-cu12 for a driver of CUDA 12)",
    ),
    "cublaslt": (
        ("libcublasLt.so.13", "libcublasLt.so.12"),
        "the program's products need cuBLASLt: pip install nvidia-cublas (nvidia-cublas-cu12 for "
        "a driver of CUDA 12)",
    ),
}


class SystemLibrary:
    """Give the functions of interface.py, each looked up on first use."""

    def __init__(self, opener: Callable[[str], Any] = ctypes.CDLL) -> None:
        """Open nothing yet. opener: opens a library's file, by name or path; raises OSError when there is none."""
        self._opener = opener
        self._opened: dict[str, Any] = {}
        self.functions: Mapping[str, Callable[..., int]] = _Functions(self._function)

    def address(self, name: str) -> int:
        """Return the address of a function. Raises MeshweaveError without its library."""
        function: Any = self.functions[name]
        return int(ctypes.cast(function, ctypes.c_void_p).value or 0)

    def opened(self, library: str) -> Any:
        """Return a library by its name in interface.py. Raises MeshweaveError that says what to install."""
        if library not in self._opened:
            names, without = FILES[library]
            found = first_opened(self._opener, [*names, *in_wheels(names)])
            if found is None:
                raise MeshweaveError(without)
            self._opened[library] = found
        return self._opened[library]

    def _function(self, name: str) -> Any:
        signature = SIGNATURES[name]
        try:
            return signature.prototype()((name, self.opened(signature.library)))
        except AttributeError:
            raise MeshweaveError(
                f"the {signature.library} library on this host has no {name}: a newer one is needed"
            ) from None


class _Functions(Mapping[str, Callable[..., int]]):
    """Map names to functions, each made once."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        self._make = make
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(SIGNATURES)

    def __len__(self) -> int:
        return len(SIGNATURES)


def in_wheels(names: tuple[str, ...]) -> list[str]:
    """List the paths of a library's files in the wheels `nvidia-*`, wherever Python finds packages."""
    return [
        path
        for name in names
        for folder in sys.path
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), "nvidia", "*", "lib", name)))
    ]


def first_opened(opener: Callable[[str], Any], names: list[str]) -> Any:
    """Open the first of some files that can be opened; None where none can."""
    for name in names:
        try:
            return opener(name)
        except OSError:
            continue
    return None
