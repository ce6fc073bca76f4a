"""Describe device code as the recorder sees it: the kernels of a PTX text and their parameters."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from meshweave.simulator.driver.memory import DeviceMemory
from meshweave.simulator.driver.races import Ranges

Size = tuple[int, int, int]


@dataclass(frozen=True)
class KernelParameter:
    """Describe a parameter of a kernel.

    kind: its type in PTX ("u64", "f32", "b16"). count: how many elements of that type; LLVM passes an f16 as two
    "b8".
    """

    kind: str
    is_pointer: bool
    count: int = 1

    @property
    def nbytes(self) -> int:
        """Return how many bytes are passed."""
        return int(self.kind[1:]) // 8 * self.count

    def text(self, data: bytes) -> str:
        """Format a number that is passed."""
        code = {"f32": "<f", "f64": "<d"}.get(self.kind)
        if code is not None:
            return f"{struct.unpack(code, data)[0]:g}"
        return str(int.from_bytes(data, "little", signed=self.kind[0] == "s"))


class KernelRunner(Protocol):
    """Run kernels for the recorder; `Code` is what the runner makes of a PTX text."""

    def module(self, ptx: str) -> Any:
        """Read device code. Raises MeshweaveError when it cannot be read."""

    def entries(self, module: Any) -> dict[str, tuple[KernelParameter, ...]]:
        """Return the parameters of each kernel, by name."""

    def launch(
        self, module: Any, entry: str, grid: Size, block: Size, shared: int,
        parameters: Sequence[bytes], rank: int, memory: DeviceMemory,
    ) -> tuple[Ranges, Ranges]:  # fmt: skip
        """Run a kernel on a rank's memory, and return the ranges of bytes that it read and wrote."""


_ENTRY = re.compile(r"\.entry\s+([\w$.]+)\s*\(([^)]*)\)")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z]\d+)\s+(\.ptr\b)?[^,\[]*(?:\[(\d+)\])?"
)


def entries(ptx: str) -> dict[str, tuple[KernelParameter, ...]]:
    """Parse the kernels of a PTX text and their parameters. Only parameters marked `.ptr` are pointers."""
    return {
        name: tuple(
            KernelParameter(kind, bool(mark), int(count or 1))
            for kind, mark, count in _PARAMETER.findall(listed)
        )
        for name, listed in _ENTRY.findall(ptx)
    }
