"""The layer of benchmarks/dispatch.py inside the ranks of an MPI job: microseconds of a call, as JSON from rank 0.

mpiexec -n RANKS PYTHON -m mpi4py -m benchmarks.peers.dispatch_mpi BUNDLE REPEAT
"""

import json
import sys
import time

import numpy as np
from mpi4py import MPI

from benchmarks.peers.dispatch_torch import microseconds
from meshweave.bundle import Bundle, numpy_dtype
from meshweave.runtime.mpi.inside import InsideProgram


def main() -> None:
    """Bind, call, print."""
    bundle, repeat = Bundle.read(sys.argv[1]), int(sys.argv[2])
    program = InsideProgram(bundle)
    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal(port.local_shape).astype(numpy_dtype(port.dtype))
        for port in bundle.manifest.inputs
    ]
    call = program.bind(inputs)
    x = inputs[0].copy()

    def forward() -> np.ndarray:
        call.inputs[0][...] = x
        call()
        return call.outputs[0].copy()

    time.sleep(1.0)  # the process that watches the ranks of the host starts meanwhile
    found = microseconds(forward, repeat, 100)
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps({"layer, inside MPI ranks": found}))
    program.close()


if __name__ == "__main__":
    main()
