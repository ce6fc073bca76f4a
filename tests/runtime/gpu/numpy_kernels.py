"""Kernels in NumPy behind PTX that has only heads. Nothing here needs a compiler."""

from __future__ import annotations

import numpy as np

from meshweave.simulator.driver.kernels import entries
from meshweave.simulator.driver.races import merged, one_range

HEAD = """.version 8.0
.target sm_80
.address_size 64
"""
ENTRY = """.visible .entry {name}(
    .param .u64 .ptr .global .align 16 {name}_param_0,
    .param .u64 .ptr .global .align 16 {name}_param_1,
    .param .u32 {name}_param_2
)
{{ ret; }}
"""
KERNELS = {"twice": lambda x: 2 * x, "plus_one": lambda x: x + 1}
PTX = HEAD + "".join(ENTRY.format(name=name) for name in KERNELS)


class NumpyKernels:
    """`entry(x, y, n)`: y = f(x) of n f32 numbers."""

    def module(self, ptx):
        return ptx

    def entries(self, module):
        return entries(module)

    def launch(self, module, entry, grid, block, shared, parameters, rank, memory):
        x, y, count = (int.from_bytes(data, "little") for data in parameters)
        read = memory.view(rank, x, 4 * count, entry).view(np.float32)
        memory.view(rank, y, 4 * count, entry).view(np.float32)[:] = KERNELS[entry](read)
        return merged(one_range(x, 4 * count)), merged(one_range(y, 4 * count))
