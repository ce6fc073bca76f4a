"""Device code as the recorder sees it: the kernels of a PTX text and their parameters."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from meshweave.runtime.gpu.memory import DeviceMemory
from meshweave.runtime.gpu.races import Ranges

Size = tuple[int, int, int]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel. kind: its type in PTX ("u64", "f32", "b16"); count: how many of
    that: two "b8" are how LLVM passes an f16.
    """

    kind: str
    is_pointer: bool
    count: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes that are passed."""
        return int(self.kind[1:]) // 8 * self.count

    def text(self, data: bytes) -> str:
        """A number as it is passed."""
        code = {"f32": "<f", "f64": "<d"}.get(self.kind)
        if code is not None:
            return f"{struct.unpack(code, data)[0]:g}"
        return str(int.from_bytes(data, "little", signed=self.kind[0] == "s"))


class Kernels(Protocol):
    """What runs kernels."""

    def module(self, ptx: str) -> Any:
        """Read device code. MeshweaveError when it cannot be read."""

    def entries(self, module: Any) -> dict[str, tuple[Parameter, ...]]:
        """Its kernels."""

    def launch(
        self, module: Any, entry: str, grid: Size, block: Size, shared: int,
        parameters: Sequence[bytes], rank: int, memory: DeviceMemory,
    ) -> tuple[Ranges, Ranges]:  # fmt: skip
        """Run one on a rank's memory: the bytes that it has read and written."""


_ENTRY = re.compile(r"\.entry\s+([\w$.]+)\s*\(([^)]*)\)")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z]\d+)\s+(\.ptr\b)?[^,\[]*(?:\[(\d+)\])?"
)


def entries(ptx: str) -> dict[str, tuple[Parameter, ...]]:
    """The kernels of a PTX text and their parameters. Only parameters marked `.ptr` are pointers."""
    return {
        name: tuple(
            Parameter(kind, bool(mark), int(count or 1))
            for kind, mark, count in _PARAMETER.findall(listed)
        )
        for name, listed in _ENTRY.findall(ptx)
    }
