"""Share a window of memory between the ranks of one host, and record what each rank knows of its groups.

The ranks of a host allocate one MPI shared window together (`MPI.Win.Allocate_shared`). Each rank's
part holds a cache line for every group, the program's arena, and a staging area where operands of
collectives may lie in memory of the user. Between ranks that do not share a host, and where there
is no window, compiled code calls the MPI library: the record of each group says which.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshweave.abi import ALIGNMENT, GroupRecord
from meshweave.bundle import Manifest
from meshweave.layout import Mesh
from meshweave.runtime.memory import Values

if TYPE_CHECKING:  # importing mpi4py initialises MPI
    from mpi4py.MPI import Comm, Intracomm

VARIABLE = "MESHWEAVE_MPI_WINDOW"  # in the environment: "0" means no windows
_POPULATE_WRITE = 23  # madvise: map and touch pages, or say that there is no memory for them
# How often a wait looks before it yields the processor, and yields before it sleeps: with a core per
# rank, and without. Even with enough cores, two ranks may be on one when others use the machine.
_SPINS, _SPINS_CROWDED = 50, 20
_YIELDS, _YIELDS_CROWDED = 500, 20


def wanted(window: bool | None) -> bool:
    """Tell whether to use windows: as asked for, else as the environment says, else yes."""
    return os.environ.get(VARIABLE, "1") != "0" if window is None else window


class Window:
    """Hold shared memory of the ranks of a host: one part each, of the same size.

    bases: the address of each rank's part in this process, in the order of ranks of `host`.
    """

    def __init__(self, host: Intracomm, nbytes: int) -> None:
        """Allocate, with the bytes of this rank's part; every rank of the communicator `host` makes this call.

        Raises MemoryError, on every rank, when there is no room for all parts.
        """
        from mpi4py import MPI

        page = mmap.PAGESIZE
        self.nbytes = -(-nbytes // page) * page
        info = MPI.Info.Create({"alloc_shared_noncontig": "true"})
        self._window: Any = None
        with contextlib.suppress(MPI.Exception):
            self._window = MPI.Win.Allocate_shared(self.nbytes, 1, info, host)
        info.Free()
        if not everyone(host, self._window is not None):
            raise MemoryError("no shared window")
        self.bases = [int(self._window.Shared_query(r)[0].address) for r in range(host.size)]
        self.base = self.bases[host.rank]
        aligned = all(base % ALIGNMENT == 0 for base in self.bases)
        if not everyone(host, aligned and populated(self.base, self.nbytes)):
            self.free()
            raise MemoryError("no room in shared memory")

    def free(self) -> None:
        """Free the memory. Every rank of the host makes this call."""
        window, self._window = self._window, None
        if window is not None:
            window.Free()


def everyone(host: Comm, fine: bool) -> bool:
    """Tell whether `fine` holds on all ranks."""
    from mpi4py import MPI

    least = np.zeros(1, np.int64)
    host.Allreduce(np.array([fine], np.int64), least, MPI.MIN)
    return bool(least[0])


def ranks_of(host: Comm, rank: int) -> list[int]:
    """Gather the ranks of the processes of `host`; each gives its own."""
    ranks = np.zeros(host.size, np.int64)
    host.Allgather(np.array([rank], np.int64), ranks)
    return [int(each) for each in ranks]


def populated(base: int, nbytes: int) -> bool:
    """Touch the pages from the process that uses them most.

    Return False when there is no memory for them: a write to such a page would kill the process.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    where, size = ctypes.c_void_p(base), ctypes.c_size_t(nbytes)
    if libc.madvise(where, size, _POPULATE_WRITE) == 0:
        return True
    if ctypes.get_errno() != errno.EINVAL:
        return False
    # Linux before 5.14 cannot tell; what is free now must do for four times this part.
    free = os.statvfs("/dev/shm")
    return free.f_bavail * free.f_frsize > 4 * nbytes


class Groups:
    """Hold the records of this rank's groups; `address(number)` goes in a group's handle."""

    def __init__(
        self,
        manifest: Manifest,
        rank: int,
        comms: Sequence[int],
        here: Sequence[int],
        window: Window | None,
    ) -> None:
        """Write the records.

        comms: the communicator of each group, as an integer; here: the ranks of this host, in the window's order;
        window: None for MPI's own collectives.
        """
        mesh = Mesh.parse(manifest.mesh)
        self._members = [mesh.group(axes, rank) for axes in manifest.groups]
        self._records = [
            np.zeros(GroupRecord.nbytes(len(members)) // 8, np.int64) for members in self._members
        ]
        self._poll = np.zeros(GroupRecord.POLL_BYTES // 8, np.int64)
        crowded = len(here) > len(os.sched_getaffinity(0))
        inside = [window is not None and set(m) <= set(here) for m in self._members]
        for number, (members, record) in enumerate(zip(self._members, self._records, strict=True)):
            record[GroupRecord.SIZE // 8] = len(members)
            record[GroupRecord.COMM // 8] = comms[number]
            record[GroupRecord.SHARED // 8] = inside[number]
            record[GroupRecord.SPINS // 8] = _SPINS_CROWDED if crowded else _SPINS
            record[GroupRecord.YIELDS // 8] = _YIELDS_CROWDED if crowded else _YIELDS
            if not all(inside):
                record[GroupRecord.POLL // 8] = self._poll.ctypes.data
            if window is not None and inside[number]:
                record[GroupRecord.WINDOW_BYTES // 8] = window.nbytes
                bases = np.array([window.bases[here.index(member)] for member in members])
                _members(record, GroupRecord.MEMBER_LINE)[:] = bases + GroupRecord.LINE * number
                _members(record, GroupRecord.MEMBER_WINDOW)[:] = bases

    @property
    def shared(self) -> list[bool]:
        """Tell for each group whether its members meet in the window."""
        return [bool(record[GroupRecord.SHARED // 8]) for record in self._records]

    def address(self, number: int) -> int:
        """Return the address of a group's record."""
        return int(self._records[number].ctypes.data)

    def stage(self, base: int, nbytes: int) -> None:
        """Set the part of the own window to which operands that lie elsewhere are copied."""
        for record in self._records:
            record[GroupRecord.STAGING // 8] = base
            record[GroupRecord.STAGING_BYTES // 8] = nbytes

    def buffers(self, base: int, nbytes: int) -> None:
        """Set where inputs and outputs lie, in memory that all ranks share; the next run may have others.

        Those of rank r are in the `nbytes` bytes from `base + r * nbytes`.
        """
        for members, record in zip(self._members, self._records, strict=True):
            record[GroupRecord.BUFFERS_BYTES // 8] = nbytes
            places = np.asarray(members, np.int64) * nbytes + base
            _members(record, GroupRecord.MEMBER_BUFFERS)[:] = places


def _members(record: Values, word: int) -> Values:
    """Return a view of one word of every member in a record."""
    return record[(GroupRecord.MEMBERS + word) // 8 :: GroupRecord.MEMBER // 8]


def control_bytes(manifest: Manifest) -> int:
    """Count the bytes at the front of each rank's part of the window: a line for every group."""
    return GroupRecord.LINE * max(1, len(manifest.groups))
