"""Run kernels' LLVM IR on the CPU, a fiber for each thread: a second witness beside `simulator.ptx`.

The two share no code, and tests compare them. It needs llvmlite, and imports nothing else of `simulator`.
"""

from meshweave.simulator.witness.fault import WitnessError
from meshweave.simulator.witness.launch import WitnessedKernel, missing_here, witnessed

__all__ = ["WitnessError", "WitnessedKernel", "missing_here", "witnessed"]
