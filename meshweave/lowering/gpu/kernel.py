"""A device kernel as text, and the chip that it is for."""

from __future__ import annotations

from dataclasses import dataclass

from meshweave.device import CHIPS
from meshweave.errors import UsageError


@dataclass(frozen=True)
class Target:
    """What kernels are made for. tf32: products of f32 may round their factors to tf32. disabled:
    families and libraries that are not to be used ("cublaslt", "gemm_mma", "rows").
    """

    chip: str = "sm_90"
    tf32: bool = False
    disabled: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.chip not in CHIPS:
            raise UsageError(f'no chip "{self.chip}"; there are {", ".join(CHIPS)}')


@dataclass(frozen=True)
class DeviceKernel:
    """What a family makes of a unit.

    entry:  name of the kernel: family, sizes and types, for whoever reads a profile.
    text:   body of a gpu.module: an `llvm.func @entry` with `nvvm.kernel`, and the globals it uses.
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
