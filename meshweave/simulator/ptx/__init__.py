"""Emulate PTX in NumPy: run the kernels of a GPU on the CPU, and check what they do to memory."""

from meshweave.simulator.ptx.access_sets import AccessSets
from meshweave.simulator.ptx.fault import EmulationError
from meshweave.simulator.ptx.grid import Checks
from meshweave.simulator.ptx.launch import launch
from meshweave.simulator.ptx.memory import GlobalMemory
from meshweave.simulator.ptx.parser import parse
from meshweave.simulator.ptx.program import PtxModule
from meshweave.simulator.ptx.traffic import Counts

__all__ = [
    "AccessSets",
    "Checks",
    "Counts",
    "EmulationError",
    "GlobalMemory",
    "PtxModule",
    "launch",
    "parse",
]
