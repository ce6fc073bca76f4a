"""Hold one rank of the `mpi` engine in its own process: communicators, MPI handles, the loaded program.

The workers that the launcher starts use it, and programs that the user starts under an `mpiexec` of their own. mpi4py
is imported here, in window.py, inside.py, worker.py, libraries.py and job/member.py only, inside functions: importing
it initialises MPI.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshweave.abi import DTYPES, KINDS, STAGING, MpiTable, reduction_symbol, rounded
from meshweave.bundle import Bundle, Manifest
from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime.cores import Helpers, cores_of, usable_cores
from meshweave.runtime.engine import check_engine
from meshweave.runtime.exchanges import sections
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.libraries import mpi as mpi_library
from meshweave.runtime.limits import check_job
from meshweave.runtime.loader import LoadedCode
from meshweave.runtime.memory import Values
from meshweave.runtime.mpi.window import Groups, Window, control_bytes, everyone, ranks_of
from meshweave.runtime.program import SlotTable, StepFunction, load_code
from meshweave.runtime.tracing import ClockReading, Marks, read_clock
from meshweave.runtime.watched import CallWatcher

if TYPE_CHECKING:  # importing mpi4py initialises MPI
    from mpi4py.MPI import Comm

_TYPES = {
    "f64": "DOUBLE",
    "f32": "FLOAT",
    "i64": "INT64_T",
    "i32": "INT32_T",
    "i16": "INT16_T",
    "i8": "INT8_T",
    "i1": "UINT8_T",
}
_OPERATIONS = {"sum": "SUM", "max": "MAX", "min": "MIN", "prod": "PROD"}


class TracedRank:
    """Be a program of which this process has one rank, which writes marks."""

    _program: MpiRank
    heard_by: CallWatcher | None = None

    def trace(self, room: int) -> ClockReading | None:
        """Have the rank write marks, with room for so many; return what the clocks say, where they can."""
        return self._program.trace(room)

    def untrace(self) -> ClockReading | None:
        """Have the rank write no marks any more; return what the clocks say."""
        return self._program.untrace()

    def marks(self) -> Marks | None:
        """Return what the rank writes its marks to, while it does."""
        return self._program.marks


class MpiRank:
    """Hold one rank's program, loaded: call `step` with the table that `table.bound` gives."""

    def __init__(
        self,
        bundle: Bundle,
        board: StatusBoard,
        *,
        window: bool,
        foreign: bool = False,
        cores: int | None = None,
    ) -> None:
        """Load, and agree with all other ranks that it is the same program. Every rank of COMM_WORLD makes this call.

        window: use a shared window between the ranks of a host (if all ranks want to), else MPI's
        own collectives; foreign: inputs and outputs will lie in memory that this rank alone has;
        cores: of this rank, None: those that it may use, divided among the ranks of this host that may use the same.
        Raises MeshweaveError when it cannot be loaded here, RankError when the ranks have different
        programs.
        """
        from mpi4py import MPI

        self.world = MPI.COMM_WORLD
        self.manifest, self.rank = bundle.manifest, int(self.world.rank)
        check_engine(self.manifest, "mpi")
        self.mesh = check_job(self.manifest, self.world.size)
        self.code, self.step, self._exchanges = self._loaded(bundle)
        self._comms = [
            self.world.Split(self._color(axes), self.mesh.group_index(axes, self.rank))
            for axes in self.manifest.groups
        ]
        self._handles = Handles(self.code, self.manifest)
        host = self.world.Split_type(MPI.COMM_TYPE_SHARED)
        assert isinstance(host, MPI.Intracomm)  # a part of COMM_WORLD
        self._host = host
        sharing = self._host.allgather(os.sched_getaffinity(0)).count(os.sched_getaffinity(0))
        self.cores = cores_of(cores, sharing)
        crowded = self.cores * sharing > usable_cores()
        self._helpers = Helpers(self.code, self.cores, self.manifest.core_bytes, crowded)
        self._window, arena = self._allocated(window, foreign)
        comms = [word(MPI._handleof(comm)) for comm in self._comms]
        here = ranks_of(self._host, self.rank)
        self.groups = Groups(self.manifest, self.rank, comms, here, self._window)
        if self._window is not None:
            self.groups.stage(arena + self._staging_at, self._staging_bytes)
        self.marks: Marks | None = None  # while it is traced
        self.marks_at = 0  # their address
        self._board = board
        self.table = self._slots(board.address(self.rank), arena)
        self._helpers.start(f"meshweave-rank-{self.rank}")

    def trace(self, room: int, memory: Values | None = None) -> ClockReading | None:
        """Write marks, with room for so many; return what the clocks say. memory: as for Marks."""
        self.marks = Marks([self.rank], room, memory)
        self.marks_at = self.marks.address(self.rank)
        self._board.trace(self.rank, self.marks_at)
        return read_clock(self.code)

    def untrace(self) -> ClockReading | None:
        """Write no marks any more; return what the clocks say."""
        self.marks, self.marks_at = None, 0
        self._board.trace(self.rank, 0)
        return read_clock(self.code)

    def _loaded(self, bundle: Bundle) -> tuple[LoadedCode, StepFunction, list[Values]]:
        """Load the code and compare programs. A failure is told to the others: they would wait for this rank."""
        problem: MeshweaveError | None = None
        try:
            code, step = load_code(bundle)
            words = [section.words() for section in sections(self.manifest, self.rank)]
        except MeshweaveError as error:
            problem = error
        agree(self.world, bundle, problem)
        return code, step, words

    def _slots(self, status: int, arena: int) -> SlotTable:
        return SlotTable(
            self.manifest,
            self.rank,
            status=status,
            private=self._handles.address,
            groups=[
                (self.groups.address(number), self.mesh.group_index(axes, self.rank))
                for number, axes in enumerate(self.manifest.groups)
            ],
            exchanges=self._exchanges,
            arena=arena or None,
            cores=self._helpers.address,
        )

    def _allocated(self, window: bool, foreign: bool) -> tuple[Window | None, int]:
        """Allocate this host's window, if it is wanted and has room; return it and the arena's address in it."""
        use = everyone(self.world, window) and self._host.size > 1 and bool(self.manifest.groups)
        self._staging_at = rounded(self.manifest.arena_bytes)
        self._staging_bytes = 0
        if foreign and STAGING in self.code:
            ask = ctypes.CFUNCTYPE(ctypes.c_int64)(self.code.address(STAGING))
            self._staging_bytes = ask()
        if not use:
            return None, 0
        front = control_bytes(self.manifest)
        try:
            made = Window(self._host, front + self._staging_at + self._staging_bytes)
        except MemoryError:  # on all ranks of the host: MPI's own collectives need no window
            return None, 0
        return made, made.base + front

    def _color(self, axes: Sequence[str]) -> int:
        """Return a number that the members of one group share: their smallest rank."""
        return min(self.mesh.group(axes, self.rank))

    def close(self) -> None:
        """Free the communicators, operations and the window. Every rank makes this call."""
        self._helpers.stop()
        for comm in self._comms:
            comm.Free()
        self._comms = []
        if self._window is not None:
            self._window.free()
        self._host.Free()
        self._handles.close()


class Handles:
    """Hold the engine's table of MPI handles, as integers, and the MPI operations made of compiled code."""

    def __init__(self, code: LoadedCode, manifest: Manifest) -> None:
        from mpi4py import MPI

        self._library = mpi_library()
        self._words = np.zeros(MpiTable.COUNT, np.int64)
        self._status = np.zeros(32, np.int64)  # larger than the MPI_Status of any MPI
        self._made: list[ctypes.c_int64] = []
        self._words[MpiTable.STATUS] = self._status.ctypes.data
        self._words[MpiTable.IN_PLACE] = word(int(MPI.IN_PLACE))
        self._words[MpiTable.BYTE] = word(MPI._handleof(MPI.BYTE))
        for dtype in DTYPES:
            # A narrow float is two bytes to MPI; what they mean only our operations know.
            kind = getattr(MPI, _TYPES.get(dtype, "INT16_T"))
            self._words[MpiTable.datatype(dtype)] = word(MPI._handleof(kind))
            for reduction in KINDS:
                symbol = reduction_symbol(reduction, dtype)
                if symbol in code:
                    handle = self._operation(code.address(symbol))
                else:
                    handle = word(MPI._handleof(getattr(MPI, _OPERATIONS[reduction])))
                self._words[MpiTable.reduction(reduction, dtype)] = handle

    @property
    def address(self) -> int:
        """Return the address of the table."""
        return int(self._words.ctypes.data)

    def _operation(self, function: int) -> int:
        made = ctypes.c_int64()
        if self._library.MPI_Op_create(ctypes.c_void_p(function), 1, ctypes.byref(made)):
            raise MeshweaveError("MPI refuses to make an operation")
        self._made.append(made)
        return made.value

    def close(self) -> None:
        """Free the operations."""
        for made in self._made:
            self._library.MPI_Op_free(ctypes.byref(made))
        self._made = []


def agree(world: Comm, bundle: Bundle, problem: MeshweaveError | None = None) -> None:
    """Compare program, mesh and shapes of all ranks before their first collective; every rank makes this call.

    problem: why this rank cannot go on, if it cannot; it is raised here, after the others know.

    Raises RankError on every rank, which names what differs and where.
    """
    failed = np.empty(world.size, np.int64)
    world.Allgather(np.array([problem is not None], np.int64), failed)
    if problem is not None:
        raise problem
    if failed.any():
        raise RankError(f"rank {int(failed.argmax())} could not load the program")
    manifest = bundle.manifest
    parts = {
        "meshes": manifest.mesh,
        "shapes": str([(p.dtype, p.local_shape) for p in (*manifest.inputs, *manifest.outputs)]),
        "programs": bundle.digest,
    }
    own = np.frombuffer(
        b"".join(hashlib.sha256(t.encode()).digest() for t in parts.values()), np.uint8
    )
    everyone = np.empty((world.size, own.size), np.uint8)
    world.Allgather(own, everyone)
    for index, what in enumerate(parts):
        column = everyone[:, 32 * index : 32 * index + 32]
        differing = [rank for rank in range(world.size) if (column[rank] != column[0]).any()]
        if differing:
            raise RankError(
                f"ranks 0 and {differing[0]} run different {what}: load one bundle on all ranks"
            )


def word(value: int) -> int:
    """Return a handle or address as a signed 64-bit integer: mpi4py gives narrow handles with their sign extended."""
    return value - (1 << 64) if value >> 63 > 0 else value


def code_meaning(code: int) -> str:
    """Return what MPI says about a code that a collective returned."""
    from mpi4py import MPI

    try:
        return f"MPI: {MPI.Get_error_string(code & 0xFFFF)}"
    except MPI.Exception:
        return f"MPI error class {code & 0xFFFF}"
