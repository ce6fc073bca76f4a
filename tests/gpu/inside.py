"""`python inside.py BUNDLE`: one rank of a program in this process, as other launchers start it; runs it twice."""

import os
import sys

import numpy as np

from benchmarks.gpu.device import gpus
from meshweave.bundle import Bundle
from meshweave.runtime.gpu.inside import GpuProgram
from meshweave.runtime.processes.bootstrap import discover

bundle = Bundle.read(sys.argv[1])
rank = discover(os.environ)
rng = np.random.default_rng(rank.rank)
inputs = [rng.standard_normal(p.local_shape).astype(np.float32) for p in bundle.manifest.given]
program = GpuProgram(bundle, share=rank.nranks > gpus())
try:
    first, again = (program.run(inputs)[0].tobytes() for _ in range(2))
    assert first == again
finally:
    program.close()
