"""Describe a device kernel, and the chip that it is made for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from meshweave.device import CHIPS
from meshweave.errors import UsageError
from meshweave.hints.fast_paths import ROUNDED
from meshweave.lowering.gpu.writer import GLOBAL, DeviceWriter
from meshweave.lowering.nests.bind import LoopNest


@dataclass(frozen=True)
class Target:
    """Say what kernels are made for.

    tf32: products of f32 may round their factors to tf32. disabled: families and libraries that are
    not to be used ("cublaslt", "gemm_mma", "rows").
    """

    chip: str = "sm_90"
    tf32: bool = False
    disabled: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.chip not in CHIPS:
            raise UsageError(f'no chip "{self.chip}"; there are {", ".join(CHIPS)}')

    def rounds(self, dtype: str) -> bool:
        """Tell whether products of that type round their factors to tf32."""
        wanted = dtype == "f32" and self.tf32 and "gemm_tf32" not in self.disabled
        return wanted and CHIPS[self.chip].tensor_cores

    def within(self, nests: Iterable[LoopNest]) -> Target:
        """Return the target of one kernel that does these nests: without what any of them may not take."""
        words = frozenset[str]().union(*(nest.switches for nest in nests))
        if not words:
            return self
        off = {word[1:] for word in words if word[0] == "-"}
        return replace(self, tf32=self.tf32 or ROUNDED in words, disabled=self.disabled | off)


@dataclass(frozen=True)
class DeviceKernel:
    """Hold what a family makes of a unit.

    entry:  name of the kernel: family, sizes and types, for whoever reads a profile.
    text:   body of a gpu.module: a `gpu.func @entry`, and the globals it uses.
    shared_bytes: dynamic shared memory of a launch.
    parameters: "ptr" for each of the unit's places, then the types of its scalars.
    numerics: class as of `fast_paths`: what may differ from plain loops in order.
    """

    entry: str
    text: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    parameters: tuple[str, ...]
    family: str
    numerics: str

    @staticmethod
    def of(
        writer: DeviceWriter, blocks: int, family: str, numerics: str, shared_bytes: int = 0
    ) -> DeviceKernel:
        """Return what has been written, to be launched on a row of blocks."""
        types = tuple(["ptr" if p.type == GLOBAL else p.type for p in writer.parameters])
        grid, block = (blocks, 1, 1), (writer.threads, 1, 1)
        return DeviceKernel(
            writer.entry, writer.text(), grid, block, shared_bytes, types, family, numerics
        )
