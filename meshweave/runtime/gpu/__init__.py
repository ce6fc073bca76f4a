"""The engine `nccl` and what it shares with `emulate`: one rank of a gpu program, its device and its communicators.

All calls of the CUDA driver, NCCL and cuBLASLt go through one table of C signatures (interface.py), so the same code
runs on the real libraries and on the simulator, which may import this room.
"""

from meshweave.runtime.gpu.device_array import DeviceArray
from meshweave.runtime.gpu.inside import GpuProgram, run_inside

__all__ = ["DeviceArray", "GpuProgram", "run_inside"]
