"""An emulator of PTX in NumPy: runs the kernels that would go to a GPU, on the CPU, and checks what
they do to memory.
"""

from meshweave.emulator.fault import EmulationError
from meshweave.emulator.launch import Checks, Counts, launch
from meshweave.emulator.memory import Memory
from meshweave.emulator.parser import parse
from meshweave.emulator.program import Module
from meshweave.emulator.touched import Touched

__all__ = ["Checks", "Counts", "EmulationError", "Memory", "Module", "Touched", "launch", "parse"]
