"""Make this process a rank of the job that its launcher has started, and end with the others: `mw.init`.

MPI carries what ranks compute together; where the launcher serves MPI (mpiexec, `srun --mpi=..`) it starts that too,
else (torchrun, plain `srun`, variables) the job's store does (pmi.py). All control goes by small messages that every
rank sends at the same place of its program, so that ranks which do different things are told.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import hashlib
import os
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from meshweave import errors
from meshweave.abi import StatusRow
from meshweave.bundle import Manifest
from meshweave.errors import MeshweaveError, RankError, UsageError
from meshweave.runtime.flight.diagnosis import named
from meshweave.runtime.flight.dump import flight_folder
from meshweave.runtime.flight.processes import DEAD
from meshweave.runtime.flight.recorder import FlightRecorder, new_incident
from meshweave.runtime.flight.records import LEFT, TOLD
from meshweave.runtime.job import current
from meshweave.runtime.job.lifeline import Lifeline, reach
from meshweave.runtime.job.pmi import Served, host_name
from meshweave.runtime.libraries import mpi as mpi_library
from meshweave.runtime.mpi.inside import host_board
from meshweave.runtime.mpi.watcher import alive_pipe, start_watcher
from meshweave.runtime.processes.bootstrap import discover, open_store
from meshweave.runtime.processes.shared_files import mpi_memory, remove
from meshweave.runtime.processes.store import TcpStore
from meshweave.runtime.processes.variables import launcher_variables

if TYPE_CHECKING:  # importing mpi4py initialises MPI, unless it is told not to
    from mpi4py.MPI import Request

TIMEOUT = 600.0  # seconds that ranks wait for one that has not come to a call
_SERVES_MPI = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")  # the variables of launchers of MPI
_ON_ONE_HOST = {"UCX_TLS": "self,sm", "FI_TCP_IFACE": "lo", "FI_SOCKETS_IFACE": "lo"}
# Looks for an answer before it sleeps, and for how long, in seconds.
_POLLS, _SHORT, _LONG = 2000, 5e-5, 1e-3
_FLUSH = 0.2  # seconds for what the program has printed


def init(*, timeout: float = TIMEOUT, flight: str | os.PathLike[str] | None = None) -> None:
    """Make this process one rank of the job that its launcher has started: mpiexec, torchrun, srun, or variables.

    timeout: seconds that a call waits for a rank that does not come, before all ranks end with a line that names it.
    flight:  a folder where a job that fails leaves what each rank did last, for `meshweave doctor --dump`.

    From then on a mesh of as many ranks as the job has processes means these processes: every process makes the same
    calls, and an Array holds the own part alone. Called once, by every process, before any other use of MPI. Without a
    launcher, or with one process, nothing changes. Raises MeshweaveError where variables contradict each other or MPI
    is not installed, RankError where ranks do not come.

    >>> import meshweave as mw
    >>> mw.init()  # no launcher: this process alone
    >>> mw.size()
    1
    """
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise UsageError(f"init: timeout={timeout!r:.40}, seconds above 0 are right")
    if current.has_begun():
        return
    found = launcher_variables(os.environ)
    if found is None or found[2] == 1:
        current.enter(None)
        return
    job = Job(*found, timeout, flight_folder(flight))
    current.enter(job)
    sys.excepthook = job.raised(sys.excepthook)
    atexit.register(job.leave)


class Job:
    """Hold what this rank shares with the others."""

    def __init__(
        self, variable: str, rank: int, nranks: int, timeout: float, folder: str | None
    ) -> None:
        """Start MPI, and meet all other ranks. folder: where it is written what ranks did last."""
        self.rank, self.size, self._timeout = rank, nranks, timeout
        self._finalize = _start_mpi(variable, rank, nranks)
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        if (world.rank, world.size) != (rank, nranks):
            raise RankError(
                f"MPI says rank {world.rank} of {world.size}, the launcher says {variable}={nranks}: is mpiexec "
                "that of the MPI that mpi4py uses?"
            )
        world.Set_errhandler(MPI.ERRORS_RETURN)
        self.comm = world.Dup()
        self.host = world.Split_type(MPI.COMM_TYPE_SHARED)
        self.board, file = host_board(world, self.host)
        mesh = f"ranks={nranks}"  # they are in programs of any mesh
        nothing = Manifest(mesh, current.ENGINE, (), (), 0)
        incident = self.comm.bcast(new_incident(), 0)
        self._flight = FlightRecorder(self.board, nothing, folder, incident)
        self._dismiss = self._watched(file)
        os.close(file)
        self.hosts: tuple[str, ...] = tuple(world.allgather(host_name()))
        self.calls = 0  # meetings of all ranks so far
        self.doing = "begin"
        self._gone: dict[int, int] = {}  # ranks that have left, and the meetings that they had
        self._closers: list[Callable[[], None]] = []
        self._lifeline = self._linked()

    def _watched(self, file: int) -> Callable[[], None]:
        """Start the watcher of this host, for ranks that a launcher ends before they have said why; return its end.

        file: the open file that the board lies in.
        """
        pipes = self.host.allgather((self.rank, alive_pipe()))
        if self.host.rank:
            return lambda: None
        watcher = start_watcher(self._flight, file, dict(pipes))

        def dismiss() -> None:
            if watcher is not None:
                watcher.kill()
                watcher.wait()

        return dismiss

    def _linked(self) -> Lifeline:
        """Link this rank to rank 0, whose server listens at a port of its own, with a secret of this job."""
        token, store = secrets.token_hex(16).encode(), None
        where: Any = None
        if self.rank == 0:
            alone = len(set(self.hosts)) == 1
            hosts = ["127.0.0.1"] if alone else addresses()
            store = TcpStore(hosts[0], 0, token, serve=True)
            where = hosts, store.port, token
        hosts, port, token = self.comm.bcast(where, 0)
        store = store or reach(hosts, port, token)
        return Lifeline(self.rank, self.size, store, token, self._end, self._left)

    # What all ranks do together.

    def agree(self, what: bytes, say: Callable[[], str]) -> None:
        """Do as Member says."""
        self._meet(say)
        if self._differ([what]):
            raise RankError(self._told(say()))

    def same(self, values: Mapping[str, bytes], who: str) -> None:
        """Do as Member says."""
        self.agree(b"same", lambda: who)  # ranks that are elsewhere are told where
        names = list(values) or ["an argument"]  # another rank may give a whole array here
        differing = self._differ(list(values.values()) or [b""])
        if differing:
            raise RankError(
                f"{who}: {names[differing[0]]} is not the same on all ranks: each gives the same whole array, or "
                "mw.Array.from_local makes one of its own part"
            )

    def from_first(self, make: Callable[[], bytes], found: Callable[[], bytes | None]) -> bytes:
        """Do as Member says."""
        data, problem = b"", ""
        if self.rank == 0:
            try:
                data = make()
            except MeshweaveError as error:
                problem = repr((type(error).__name__, error.message, error.location))
        told = self._broadcast(problem.encode(), patient=True)
        if told:
            raise _error(told.decode())
        own = data if self.rank == 0 else found()
        if self._differ([b"" if own is None else hashlib.sha256(own).digest()]):
            own = self._broadcast(data)
        assert own is not None
        return own

    def to_first(self, value: object) -> list[Any]:
        """Do as Member says."""
        return list(self.comm.gather(value, 0) or ())

    def all_gather(self, value: object) -> list[Any]:
        """Do as Member says."""
        return list(self.comm.allgather(value))

    def at_end(self, close: Callable[[], None]) -> None:
        """Call this when all ranks leave, the last first."""
        self._closers.append(close)

    def _meet(self, say: Callable[[], str]) -> None:
        self.calls += 1
        self.doing = say()
        self.board.progress(self.rank, self.calls)
        for rank, calls in tuple(self._gone.items()):  # the lifeline's thread adds to it
            self._check_gone(rank, calls)

    def _differ(self, values: list[bytes]) -> list[int]:
        """Return which of these values are not the same on all ranks."""
        from mpi4py import MPI

        words = [int.from_bytes(hashlib.sha256(value).digest()[:7], "little") for value in values]
        own = np.array([len(words), *words], np.int64)[: 1 + len(words)]
        least = np.zeros(2, np.int64)
        if len(words) > 1:  # ranks may have another number of them
            counts = np.array([len(words), -len(words)], np.int64)
            self.wait(self.comm.Iallreduce(counts, least, MPI.MIN))
            if least[0] != -least[1]:
                return [0]
        own = np.array([*words, *(-word for word in words)], np.int64)
        least = np.zeros_like(own)
        self.wait(self.comm.Iallreduce(own, least, MPI.MIN))
        low, high = least[: len(words)], -least[len(words) :]
        return [int(k) for k in np.flatnonzero(low != high)]

    def _told(self, own: str) -> str:
        """Say what the ranks are about to do, where they differ."""
        said = self.comm.allgather(own)
        ranks = {text: [r for r, other in enumerate(said) if other == text] for text in said}
        if len(ranks) == 1:
            return f"the ranks call {own}, but not for the same program: give all of them the same arguments"
        parts = "; ".join(f"{named(members)}: {text}" for text, members in ranks.items())
        return f"the ranks call different programs: {parts}"

    def _broadcast(self, data: bytes, patient: bool = False) -> bytes:
        """Return the bytes of rank 0. patient: it may take any time to make them."""
        size = np.array([len(data)], np.int64)
        self.wait(self.comm.Ibcast(size, 0), patient)
        whole = (
            np.frombuffer(data, np.uint8).copy() if self.rank == 0 else np.empty(size[0], np.uint8)
        )
        if size[0]:
            self.wait(self.comm.Ibcast(whole, 0))
        return whole.tobytes()

    def wait(self, request: Request, patient: bool = False) -> None:
        """Wait for MPI, without a core of its own for long; end the job when a rank does not come in time.

        patient: there is no such time.
        """
        polls, began = 0, 0.0
        while not request.Test():
            polls += 1
            if polls < _POLLS:
                continue
            now = time.monotonic()
            began = began or now
            if now - began > self._timeout and not patient:
                self._give_up()
            time.sleep(_SHORT if now - began < 0.1 else _LONG)

    def _give_up(self) -> NoReturn:
        rows = self.board.records()
        late = [
            r.rank
            for r in rows
            if r.pid and int(self.board.rows[r.rank, StatusRow.PROGRESS]) < self.calls
        ]
        who = named(late) if late else "another rank"
        has = "have" if len(late) > 1 else "has"
        line = f"no progress for {self._timeout:g} s: {who} {has} not come to {self.doing}"
        self.fail(line)

    # How it ends.

    def fail(self, line: str) -> NoReturn:
        """Say why, end all ranks."""
        self._lifeline.fail(line)
        self._end(line)

    def _end(self, line: str) -> NoReturn:
        """Say why, and end this process."""
        line = self._noted(line)
        print(f"meshweave: {line}", file=sys.stderr, flush=True)
        self._exit(RankError.exit_status)

    def _noted(self, line: str) -> str:
        """Write what the ranks of this host did last, where this is the first of them that goes on; return the line.

        From now on the watcher is silent.
        """
        ranks = self.board.records()
        self.board.mark(self.rank, TOLD)
        here = [r.rank for r in ranks if r.pid and r.state != LEFT and not r.cannot_go_on]
        if here[:1] != [self.rank]:
            return line
        died = any(r.process == DEAD and r.cannot_go_on for r in ranks)
        return self._flight.written("death" if died else "failure", line, ranks)

    def _exit(self, status: int) -> NoReturn:
        """End this process at once: MPI would wait for the others, or for whoever is in compiled code."""
        flush = threading.Thread(target=_flush, daemon=True)
        flush.start()
        flush.join(_FLUSH)
        remove(mpi_memory("self"))
        os._exit(status)

    def _left(self, rank: int, calls: int) -> None:
        """Note that a rank leaves in order, after so many meetings."""
        if rank != self.rank:
            self._gone[rank] = calls
            self._check_gone(rank, calls)

    def _check_gone(self, rank: int, calls: int) -> None:
        if calls < self.calls:
            self.fail(
                f"rank {rank} has left the job, rank {self.rank} is about to {self.doing}: every rank makes the same "
                "calls"
            )

    def raised(self, otherwise: Callable[..., Any]) -> Callable[..., None]:
        """Return a hook for what the program does not catch: `otherwise`, and the other ranks are told."""

        def hook(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            otherwise(kind, error, trace)
            said = " ".join(str(error).split())[:300]
            line = f"rank {self.rank} raised {kind.__name__}{f': {said}' if said else ''}"
            self._noted(line)
            self._lifeline.fail(line)
            self._exit(getattr(error, "exit_status", 1))

        return hook

    def leave(self) -> None:
        """Leave in order, with all other ranks."""
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
        self._lifeline.leave(self.calls, self._close)

    def _close(self) -> None:
        for close in reversed(self._closers):
            close()
        self.board.leave(self.rank)
        self.host.Barrier()  # the watcher is to see nobody end who has not left
        self._dismiss()
        self.comm.Free()
        self.host.Free()
        self._finalize()


def _flush() -> None:
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()


def _start_mpi(variable: str, rank: int, nranks: int) -> Callable[[], None]:
    """Initialise MPI for this rank; return what finalises it."""
    try:
        import mpi4py
    except ImportError:
        raise MeshweaveError("init: a job needs MPI: pip install mpi4py mpich") from None
    if "mpi4py.MPI" in sys.modules:
        from mpi4py import MPI

        if MPI.Is_initialized():
            return lambda: None  # by the program, which also finalises it
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    own = any(name in os.environ for name in ("PMIX_RANK", "PMI_FD", "PMI_PORT", "PMI2_FD"))
    serves = variable in _SERVES_MPI or (variable.startswith("SLURM") and own)
    if serves:
        if os.environ.get("MPI_LOCALNRANKS") == str(nranks):
            _prefer_memory(nranks)
        _initialize()
        return _finalize
    place = discover(os.environ)
    store = open_store(place)
    with Served(store, rank, nranks) as served:
        if len(set(served.hosts)) == 1:
            _prefer_memory(nranks)
        _initialize()

    def finalize() -> None:
        _finalize()
        served.farewell()

    return finalize


def _prefer_memory(nranks: int) -> None:
    """Let MPI talk through memory: all ranks are on this host."""
    for name, text in _ON_ONE_HOST.items():
        os.environ.setdefault(name, text)
    if nranks > len(os.sched_getaffinity(0)):
        os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")


def _initialize() -> None:
    """Call MPI_Init_thread where other threads go on meanwhile, unlike mpi4py: one of them may have to answer it."""
    got = ctypes.c_int()
    if mpi_library().MPI_Init_thread(None, None, 3, ctypes.byref(got)):
        raise RankError("MPI cannot be initialised")


def _finalize() -> None:
    mpi_library().MPI_Finalize()


def _error(told: str) -> MeshweaveError:
    """Return an error of rank 0."""
    import ast

    kind, message, location = ast.literal_eval(told)
    made: MeshweaveError = getattr(errors, kind, RankError)(message, location)
    return made


def addresses() -> list[str]:
    """List the names by which other hosts may know this one: its addresses, and its name."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                asked = struct.pack("256s", name.encode()[:15])
                found.append(socket.inet_ntoa(fcntl.ioctl(probe.fileno(), 0x8915, asked)[20:24]))
    return [a for a in found if not a.startswith("127.")] + [socket.gethostname()]
