"""`python inside.py BUNDLE`: one rank of a program in this process, as other launchers start it; runs it twice."""

import os
import sys

import ml_dtypes
import numpy as np

from benchmarks.gpu.device import gpus
from meshweave.bundle import Bundle, numpy_dtype
from meshweave.runtime.gpu.inside import GpuProgram
from meshweave.runtime.processes.bootstrap import discover

bundle = Bundle.read(sys.argv[1])
rank = discover(os.environ)
rng = np.random.default_rng(rank.rank)
BITS = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
inputs = [
    rng.standard_normal(port.local_shape).astype(BITS[port.dtype]).view(numpy_dtype(port.dtype))
    for port in bundle.manifest.given
]
program = GpuProgram(bundle, share=rank.nranks > gpus())
try:
    first, again = (program.run(inputs)[0].tobytes() for _ in range(2))
    assert first == again
finally:
    program.close()
