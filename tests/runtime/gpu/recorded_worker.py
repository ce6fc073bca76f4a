"""A rank of engine nccl whose libraries are the recorder, with devices for all ranks: a program
without collectives runs in it as on GPUs. `python -m runtime.gpu.recorded_worker SOCKET SHARE`.
"""

from __future__ import annotations

import os
import sys
import time

from runtime.gpu.numpy_kernels import NumpyKernels

from meshweave.errors import RankError
from meshweave.runtime.gpu import worker
from meshweave.simulator.driver.move import move
from meshweave.simulator.driver.recorder import InjectedFailure, Recorder
from meshweave.simulator.driver.replay import Scheduler


class Kernels(NumpyKernels):
    """What a test wants of a rank: MESHWEAVE_TEST says `sleep 1`, `exit 1`, `fail 1` (of rank 1), or `NAME 1` where the
    kernel of that name is to fail.
    """

    def launch(self, module, entry, grid, block, shared, parameters, rank, memory):
        what, _, which = os.environ.get("MESHWEAVE_TEST", "").partition(" ")
        if which == str(rank):
            if what == entry or what == "fail":
                raise RankError("a kernel of a test fails")
            if what in ("sleep", "exit"):
                time.sleep(1000) if what == "sleep" else os._exit(9)
        return super().launch(module, entry, grid, block, shared, parameters, rank, memory)


def failures():
    """MESHWEAVE_TEST_FAIL is `rank call code function`."""
    words = os.environ.get("MESHWEAVE_TEST_FAIL", "").split()
    return [InjectedFailure(*map(int, words[:3]), words[3])] if words else []


def recorded(devices):
    """The stand-in of this process."""
    made = Recorder(devices, Kernels(), Scheduler(move), failures=failures())
    made.set_current(int(os.environ["MESHWEAVE_RANK"]))
    return made


if __name__ == "__main__":
    worker.main(sys.argv[1], sys.argv[2] == "1", recorded(int(os.environ["MESHWEAVE_SIZE"])))
