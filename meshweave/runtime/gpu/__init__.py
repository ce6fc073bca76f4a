"""Run gpu programs: the engine `nccl` on devices, and `emulate`, which needs none.

Everything here calls the libraries through one table of C signatures (interface.py), so that the
same code runs on the real libraries and on the recorder that stands in for them.
"""

from meshweave.runtime.gpu.device_array import DeviceArray
from meshweave.runtime.gpu.inside import GpuProgram, run_inside

__all__ = ["DeviceArray", "GpuProgram", "run_inside"]
