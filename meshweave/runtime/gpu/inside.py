"""Run a gpu program on processes that another launcher has started, one for each GPU: torchrun, srun, mpiexec.

The ranks find each other by what that launcher has put in the environment.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from meshweave.abi import ALIGNMENT
from meshweave.bundle import Bundle
from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime.engine import check_engine
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.flight.recorder import FlightRecorder, new_incident
from meshweave.runtime.flight.records import ELSEWHERE
from meshweave.runtime.gpu.call import RankCall
from meshweave.runtime.gpu.device_array import DeviceArray, check_foreign, is_foreign
from meshweave.runtime.gpu.driver import Library
from meshweave.runtime.gpu.libraries import SystemLibrary
from meshweave.runtime.gpu.progress import Progress
from meshweave.runtime.gpu.rank import GpuRank
from meshweave.runtime.memory import Values
from meshweave.runtime.processes.bootstrap import JobStore, discover, open_store
from meshweave.runtime.program import buffer, check_local, prepared
from meshweave.runtime.watchdog import WAITING, Watchdog
from meshweave.runtime.weights.bundled import weights_of_rank

_GRACE = 2.0  # seconds that NCCL gets to give up


class GpuProgram:
    """Run a bundle on every rank of a job; every rank makes the same calls, from one thread."""

    def __init__(
        self, bundle: Bundle, timeout: float | None = None, *, share: bool = False, graph: bool = False,
        library: Library | None = None, environ: Mapping[str, str] = os.environ,
        flight: str | None = None,
    ) -> None:  # fmt: skip
        """Load.

        timeout: seconds without progress of this rank's device after which it ends the job, 60 by default; a single
        kernel or collective must not take longer, nor may making the communicators. share, graph, flight: as for
        NcclEngine. library, environ: instead of the real ones.

        Raises MeshweaveError when the program or this process's rank does not fit, RankError when a call fails or the
        ranks differ.
        """
        check_engine(bundle.manifest, "nccl")
        place = discover(environ)
        self.manifest, self.rank = bundle.manifest, place.rank
        self._board = StatusBoard.private(place.nranks)
        for rank in range(place.nranks):
            self._board.mark(rank, ELSEWHERE)
        self._board.announce(place.rank)
        store = open_store(place)
        try:
            self._program = GpuRank(
                bundle, place, library or SystemLibrary(), store,
                self._board.address(place.rank), share,
                within(timeout or WAITING, lambda: self._unmet(place.nranks, timeout or WAITING)),
            )  # fmt: skip
            incident = self._met(store, place.nranks)
        finally:
            store.close()
        self._flight = FlightRecorder(self._board, self.manifest, flight, incident)
        self._watchdog = Watchdog(self._board, self.manifest, timeout)
        self._bound = RankCall(self._program, self._board, graph)
        self._weights = weights_of_rank(bundle, self.rank)

    def _met(self, store: JobStore, nranks: int) -> str:
        """Keep the store open until all ranks have read it; return a name for what may go wrong, the same on all."""
        if self.rank == 0:
            store.put("incident", new_incident().encode())
        incident = store.get("incident").decode()
        store.put(f"met{self.rank}", b"")
        if self.rank == 0:
            for rank in range(nranks):
                store.get(f"met{rank}")
        return incident

    def run(self, inputs: Sequence[object]) -> list[Values]:
        """Run once on this rank's local arrays; return its outputs as new NumPy arrays.

        inputs: those that the program does not have itself, of NumPy, or on its GPU: anything with DLPack or the CUDA
        array interface.

        Raises MeshweaveError for arrays that do not fit, RankError when something fails. A rank that stalls ends its
        process with status 3 and a line on stderr.
        """
        self._step(inputs)
        outputs = [buffer(port) for port in self.manifest.outputs]
        for value, address in zip(outputs, self._bound.outputs, strict=True):
            self._program.copy_out(value, address)
        self._program.synchronize()
        return outputs

    def run_on_device(self, inputs: Sequence[object]) -> list[DeviceArray]:
        """Run as `run` does, but leave the outputs on the GPU; they are valid until the next run.

        Nothing is copied of arrays that lie on the GPU, aligned to 64 bytes, nor of outputs that take the buffer of an
        input (`donate=`) and are given for it in the next run.
        """
        self._step(inputs)
        device = self._program.device.number
        return [
            DeviceArray(address, port.dtype, port.local_shape, device, self)
            for port, address in zip(self.manifest.outputs, self._bound.outputs, strict=True)
        ]

    def close(self) -> None:
        """Free what the program holds. The job goes on."""
        self._bound.close()
        self._program.close()

    def _step(self, inputs: Sequence[object]) -> None:
        program, ports = self._program, self.manifest.given
        if len(inputs) != len(ports):
            raise MeshweaveError(
                f"rank {self.rank}: {len(inputs)} inputs, the program has {len(ports)}"
            )
        program.attach()
        if any(is_foreign(value) and not isinstance(value, DeviceArray) for value in inputs):
            program.settle()  # what others still compute into them
        outputs = self._bound.outputs
        kept = [self._placed(index, value) for index, value in enumerate(inputs)]
        places = [address for address, _ in kept]
        places += [self._bound.input(k) for k in range(len(ports), len(self.manifest.inputs))]
        for address, value in zip(places[len(ports) :], self._weights):
            program.copy_in(address, value)
        try:
            with Progress(program, self._board, self._abort, self._watchdog):
                self._bound.step(places, outputs)
                self._bound.wait()
        except RankError as error:
            raise RankError(self._flight.written("failure", error.message)) from None
        del kept
        self._weights = []  # they are on the device now

    def _placed(self, index: int, value: object) -> tuple[int, Any]:
        """Return where the step reads an input, to which it may be copied, and what has to live until it is done."""
        port, bound = self.manifest.inputs[index], self._bound
        if not is_foreign(value):
            given = prepared(check_local(port, index, "input", self.rank, value), port)
            self._program.copy_in(bound.input(index), given)
            return bound.input(index), given
        found = check_foreign(port, index, self.rank, self._program.device.number, value)
        if self._is_read_in_place(index, found.address, port.nbytes):
            return found.address, found
        if found.address != bound.input(index):
            self._program.copy_on(bound.input(index), found.address, port.nbytes)
        return bound.input(index), found

    def _is_read_in_place(self, index: int, address: int, nbytes: int) -> bool:
        """Tell whether a step may read an input where it lies: it is aligned, and the step does not write it."""
        manifest = self.manifest
        if index in manifest.donated or address % ALIGNMENT:
            return False
        written = zip(self._bound.outputs, [port.nbytes for port in manifest.outputs])
        return all(at + n <= address or address + nbytes <= at for at, n in written)

    def _unmet(self, nranks: int, seconds: float) -> None:
        """End this process, whose NCCL waits for ranks that do not come."""
        print(
            f"meshweave: rank {self.rank}: NCCL did not make the communicators of {nranks} ranks within {seconds:g} s: "
            "a rank is gone, or its host is not reached (NCCL_DEBUG=INFO says more)",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        os._exit(RankError.exit_status)

    def _abort(self, line: str) -> None:
        """Say why, let NCCL give up if it will, and end this process."""
        line = self._flight.written("timeout", f"rank {self.rank}: {line}")
        print(f"meshweave: {line}", file=sys.stderr, flush=True)
        giving_up = threading.Thread(
            target=self._program.comms.close, kwargs={"abort": True}, daemon=True
        )
        giving_up.start()
        giving_up.join(_GRACE)
        os._exit(RankError.exit_status)


@contextmanager
def within(seconds: float, late: Callable[[], None]) -> Iterator[None]:
    """Call `late()`, in a thread, unless what is inside the `with` ends within so many seconds."""
    timer = threading.Timer(seconds, late)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def run_inside(
    bundle: Bundle, inputs: Sequence[object], timeout: float | None = None, share: bool = False,
    flight: str | None = None,
) -> list[Values]:  # fmt: skip
    """Run a bundle once as one rank of the job that this process belongs to; every rank makes this call.

    See GpuProgram.
    """
    program = GpuProgram(bundle, timeout, share=share, flight=flight)
    try:
        return program.run(inputs)
    finally:
        program.close()
