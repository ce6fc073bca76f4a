"""Give a rank more cores than one: threads that wait in compiled code for pieces of its kernels.

lowering/cpu/collectives/library/cores.mlir is that code.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import numpy as np

from meshweave.abi import CoresBlock
from meshweave.errors import MeshweaveError
from meshweave.runtime.loader import LoadedCode
from meshweave.runtime.memory import Values, aligned

MOST = 32  # cores of a rank: no kernel has more pieces
_SPINS, _SPINS_CROWDED = 2000, 1  # looks before a wait yields: with a core per thread, and without
_YIELDS = 50  # before it sleeps
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Return how many cores this process may use: those it is bound to, or fewer where its group's quota is smaller."""
    bound = len(os.sched_getaffinity(0))
    count = getattr(os, "process_cpu_count", lambda: bound)() or bound  # Python 3.13's can be set
    return max(1, min(bound, count, _quota(bound)))


def _quota(most: int) -> int:
    """Return the cores that the control group of this process may keep busy, at most `most`."""
    try:
        quota, period = _QUOTA.read_text().split()
        return min(most, -(-int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return most


def checked_cores(wanted: int | None) -> int | None:
    """Return what an engine was asked for. Raises MeshweaveError unless that is a number of cores, or None."""
    if wanted is not None and (not isinstance(wanted, int) or not 1 <= wanted <= MOST):
        raise MeshweaveError(f"cores={wanted!r}: a rank has from 1 to {MOST} cores, or None")
    return wanted


def cores_of(wanted: int | None, ranks: int) -> int:
    """Return the cores of a rank, of so many that share the machine: those asked for, else an equal part of all."""
    return wanted or min(MOST, max(1, usable_cores() // ranks))


class Helpers:
    """Hold the other cores of one rank of a program. They work for it once `start` was called."""

    def __init__(self, code: LoadedCode, cores: int, nbytes: int, crowded: bool) -> None:
        """Set up without threads.

        cores: of the rank, its own included; nbytes: of memory that each further one needs; crowded: all ranks have
        more cores than there are.
        """
        self._code, self.count = code, cores - 1 if "mw_help" in code else 0
        self._block = aligned(CoresBlock.BYTES).view(np.int64)
        self._crowded, self._nbytes = crowded, nbytes
        self.reset()

    def reset(self) -> None:
        """Be without threads: those there were have left, or stayed in the process that this one was forked from."""
        self._block[:] = 0
        self._block[CoresBlock.SPINS // 8] = _SPINS_CROWDED if self._crowded else _SPINS
        self._block[CoresBlock.YIELDS // 8] = _YIELDS

    @property
    def address(self) -> int:
        """Return the address of the block that the rank shares its work through."""
        return int(self._block.ctypes.data)

    def start(self, name: str) -> None:
        """Start the threads. Where the system starts no more, there are fewer."""
        if not self.count:
            return
        code, block = self._code, self._block  # kept for as long as a thread is in the function
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(code.address("mw_help"))

        def help_(memory: Values, _kept: object = (code, block)) -> None:
            function(block.ctypes.data, memory.ctypes.data)

        for number in range(self.count):
            try:
                memory = aligned(self._nbytes)
                threading.Thread(
                    target=help_, args=(memory,), name=f"{name}-core-{number + 1}", daemon=True
                ).start()
            except (RuntimeError, MemoryError, MeshweaveError):
                return
            self._block[CoresBlock.HELPERS // 8] += 1

    def stop(self) -> None:
        """Let the threads leave. The rank must not be running."""
        if self._block[CoresBlock.HELPERS // 8]:
            self._block[CoresBlock.HELPERS // 8] = 0
            dismiss = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._code.address("mw_dismiss"))
            dismiss(self.address)
