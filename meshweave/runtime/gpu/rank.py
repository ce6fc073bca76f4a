"""Hold one rank of a gpu program: its device, loaded code, memory, streams and communicators.

It also holds the table that `step` reads. It is the same on real libraries and on the recorder.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from meshweave.abi import TraceBuffer
from meshweave.bundle import Bundle
from meshweave.device import GpuTable
from meshweave.errors import MeshweaveError, RankError
from meshweave.exchange.device import device_section
from meshweave.exchange.section import Section
from meshweave.layout import Mesh
from meshweave.runtime.exchanges import sections
from meshweave.runtime.gpu.driver import (
    Device,
    Driver,
    Library,
    allocate,
    check_chip,
    kernel_function,
    load_module,
    open_device,
)
from meshweave.runtime.gpu.groups import Communicators, agree, nccl_text, nccl_version
from meshweave.runtime.gpu.interface import (
    CAPTURE_THREAD_LOCAL,
    EVENT_NO_TIMING,
    HOST,
    SIGNATURES,
    STREAM_NON_BLOCKING,
    error_name,
    meaning,
)
from meshweave.runtime.gpu.marks import DeviceMarks
from meshweave.runtime.gpu.products import WORKSPACE_BYTES, Products
from meshweave.runtime.gpu.staging import MOST_STEPS, InFlight, Staging
from meshweave.runtime.libraries import libraries
from meshweave.runtime.limits import check_job
from meshweave.runtime.loader import load
from meshweave.runtime.memory import Values
from meshweave.runtime.processes.bootstrap import JobRank, JobStore
from meshweave.runtime.processors import check_processor
from meshweave.runtime.program import SlotTable, entry_of, fault

_HOST_BYTES = 64
_SEEN = 32  # events of a program that are looked at, at most
_OURS = ("cuda", "nccl", "cublaslt")  # libraries of a manifest whose functions `Library` has


class GpuRank:
    """Run a program on one rank. Every rank of the job makes the same calls, from one thread.

    device: what it runs on. broken: whether a run has failed, after which it can only be closed.
    captured: whether a graph of its step was made. marks: of a trace, while there is one.
    """

    def __init__(
        self, bundle: Bundle, place: JobRank, library: Library, store: JobStore, status: int,
        share: bool = False, meeting: AbstractContextManager[object] | None = None,
    ) -> None:  # fmt: skip
        """Load, and agree with all other ranks that it is the same program.

        status: address of the rank's row of the status board. share: ranks may share a GPU. meeting: entered while NCCL
        makes the communicators, which may wait for other ranks for ever.
        Raises MeshweaveError when the program cannot run here, RankError when a call fails or the
        ranks differ; nothing is left then.
        """
        self.manifest, self.rank = bundle.manifest, place.rank
        self.mesh = Mesh.parse(self.manifest.mesh)
        self.driver = Driver(library, place.rank)
        self.broken = self.captured = False
        self.marks: DeviceMarks | None = None
        self._held = ExitStack()
        try:
            self._open(bundle, place, store, share)
            with meeting or nullcontext():
                self.comms = Communicators(self.driver, self.mesh, self.manifest.groups, store)
            self.table = self._slots(status)
        except BaseException:
            self.broken = True
            self.close()
            raise

    def _open(self, bundle: Bundle, place: JobRank, store: JobStore, share: bool) -> None:
        """Load this rank's part and compare programs. A failure is told to the others, which would wait for it."""
        facts: dict[str, Any] = {"program": bundle.digest, "ranks": place.nranks}
        problem: BaseException | None = None
        try:
            check_job(self.manifest, place.nranks)
            self.device = self._device(place, share)
            self._load(bundle)
            if not share:
                facts["GPU"] = self.device.uuid
            if self.manifest.groups:
                facts["NCCL version"] = nccl_text(nccl_version(self.driver))
        except Exception as error:
            problem = error
            facts = {"error": str(error)}
        try:
            agree(store, place.rank, place.nranks, facts)
        except RankError:
            if problem is None:
                raise
        if problem is not None:
            raise problem

    def _slots(self, status: int) -> SlotTable:
        return SlotTable(
            self.manifest,
            self.rank,
            status=status,
            private=int(self._table.ctypes.data),
            groups=self.comms.members(self.manifest.groups),
            exchanges=self._exchanges,
            arena=self.arena,
        )

    def _uploaded(self, section: Section) -> Values:
        """Return the host's words of a section, whose copies go to the device."""
        made = device_section(section)
        return made.words(self._copied(made.rows.tobytes(), "the copies of an exchange"))

    def _copied(self, data: bytes, what: str) -> int:
        """Return the address of device memory that holds these bytes; 0 of none."""
        if not data:
            return 0
        address = allocate(self.driver, self._held, len(data), what)
        held = np.frombuffer(data, np.uint8)
        self.driver("cuMemcpyHtoD_v2", address, held.ctypes.data, len(data))
        return address

    def _device(self, place: JobRank, share: bool) -> Device:
        device = open_device(self.driver, place.local_rank, share)
        check_chip(self.manifest.chip, device)
        self._context = self.driver.handle("cuDevicePrimaryCtxRetain", device.number)
        self._held.callback(self.driver.code, "cuDevicePrimaryCtxRelease_v2", device.number)
        self.driver("cuCtxSetCurrent", self._context)
        return device

    def _load(self, bundle: Bundle) -> None:
        """Load everything that this rank needs by itself."""
        manifest, driver, held = self.manifest, self.driver, self._held
        library = driver.library
        check_processor(manifest.features)
        self._code = load(
            bundle.objects,
            externals={name: library.address(name) for name in HOST if self._calls(name)},
            libraries=libraries(tuple(n for n in manifest.libraries if n not in _OURS)),
        )
        self._step = entry_of(self._code, manifest)
        modules = [load_module(driver, held, each, self.device) for each in bundle.devices]
        self.functions = [
            kernel_function(
                driver, modules[info.module], info.entry, info.shared_bytes, self.device
            )
            for info in manifest.kernels
        ]
        self.streams = [
            driver.made(
                held, "cuStreamCreateWithPriority", "cuStreamDestroy_v2", STREAM_NON_BLOCKING, p
            )
            # For computing, for communication, which goes first, and more for computing.
            for p in (0, -1, *[0] * (manifest.streams - 1))
        ]
        self.events = [
            driver.made(held, "cuEventCreate", "cuEventDestroy_v2", EVENT_NO_TIMING)
            for _ in range(manifest.events)
        ]
        self._steps = InFlight(driver, held, MOST_STEPS, self._late)
        nbytes = sum(port.nbytes for port in manifest.inputs)
        self._staging = Staging(driver, held, nbytes, self._late)
        self.arena = allocate(driver, held, manifest.arena_bytes, "the arena")
        self.constants = self._copied(bundle.constants, "constants")
        self._exchanges = [self._uploaded(section) for section in sections(manifest, self.rank)]
        # Copies from pageable memory may return before the device has them, and no stream of ours waits for theirs.
        self.settle()
        self._table = self._filled()

    def _calls(self, name: str) -> bool:
        """Tell whether the program's host code may call a function.

        Libraries that the manifest does not name need not be installed.
        """
        library = SIGNATURES[name].library
        return library == "cuda" or library in self.manifest.libraries

    def _filled(self) -> npt.NDArray[np.int64]:
        """Return the table at the private slot."""
        manifest, driver, held = self.manifest, self.driver, self._held
        places = GpuTable(
            len(manifest.kernels), len(manifest.gemms), manifest.events, manifest.streams
        )
        table = np.zeros(places.count, np.int64)
        compute = [self.streams[0], *self.streams[2:]]
        table[[places.COMPUTE, places.COMM]] = self.streams[:2]
        table[places.CONSTANTS] = self.constants
        out = ctypes.c_void_p()
        driver("cuMemHostAlloc", ctypes.addressof(out), _HOST_BYTES, 0)
        held.callback(driver.code, "cuMemFreeHost", out.value)
        table[places.HOST] = out.value or 0
        if manifest.gemms:
            self._add_products(table, places)
        self._add_workspaces(table, places, len(compute))
        for place, handles in (
            (places.function, self.functions),
            (places.event, self.events),
            (places.stream, compute),
        ):
            for number, handle in enumerate(handles):
                table[place(number)] = handle
        return table

    def _add_workspaces(self, table: npt.NDArray[np.int64], places: GpuTable, streams: int) -> None:
        """Enter a workspace for each stream: for the library's products, and for parts of results."""
        library = WORKSPACE_BYTES if self.manifest.gemms else 0
        nbytes = max(library, self.manifest.scratch_bytes)
        for number in range(streams if nbytes else 0):
            space = allocate(self.driver, self._held, nbytes, "workspace")
            table[places.workspace(number)] = space
        table[places.WORKSPACE] = table[places.workspace(0)]

    def _add_products(self, table: npt.NDArray[np.int64], places: GpuTable) -> None:
        """Enter what the library's products need: a record for each product."""
        self._products = Products(self.driver, self._held, self.manifest.gemms)
        table[places.LT] = self._products.handle
        table[places.WORKSPACE_BYTES] = WORKSPACE_BYTES
        for number, record in enumerate(self._products.records):
            table[places.gemm(number)] = record.ctypes.data

    def attach(self) -> None:
        """Have the calling thread work for this rank."""
        self.driver("cuCtxSetCurrent", self._context)

    def enqueue(self, context: int) -> None:
        """Call the step with the table at an address. Raises RankError, which names what failed."""
        with self._breaking():
            self._checked(self._step(context))

    def capture(self, held: ExitStack, context: int) -> int:
        """Return the step as a graph that can be launched until `held` is closed; it is not run.

        Raises MeshweaveError for a program that waits for its device.
        """
        if not self.manifest.graph:
            raise MeshweaveError(
                "this program cannot be a graph: its host code reads numbers from the device"
            )
        driver, stream = self.driver, self.streams[0]
        self.captured = True
        with self._breaking(), ExitStack() as captured:
            driver("cuStreamBeginCapture_v2", stream, CAPTURE_THREAD_LOCAL)
            graph = ctypes.c_void_p()
            code = self._step(context)
            ended = driver.code("cuStreamEndCapture", stream, ctypes.addressof(graph))
            if graph.value:
                captured.callback(driver.code, "cuGraphDestroy", graph.value)
            self._checked(code)
            if ended:
                raise driver.error("cuStreamEndCapture", ended)
            return driver.made(held, "cuGraphInstantiateWithFlags", "cuGraphExecDestroy", graph, 0)

    def launch(self, graph: int) -> None:
        """Launch a graph."""
        with self._breaking():
            self.driver("cuGraphLaunch", graph, self.streams[0])

    def copy_in(self, address: int, value: Values) -> None:
        """Enqueue a copy of a contiguous array, through pinned memory: the array may be written afterwards."""
        if value.nbytes:
            with self._breaking(), self._marked_copy():
                self._staging.copy(address, value, self.streams[0])

    @property
    def is_free(self) -> bool:
        """Tell whether a step can be enqueued without waiting for the device."""
        self._steps.look()
        return self.manifest.graph and not self._steps.is_full

    def queued(self) -> None:
        """Note that a step has been enqueued. Waits for the oldest where very many are under way."""
        with self._breaking():
            self._steps.look()
            self._steps.add(self.streams[0])

    def come_after(self, other: GpuRank) -> None:
        """Let all that is enqueued from here on begin when the steps of another program of this rank are done."""
        if event := other._steps.last:
            with self._breaking():
                self.driver("cuStreamWaitEvent", self.streams[0], event, 0)

    def copy_out(self, value: Values, address: int) -> None:
        """Enqueue a copy to an array."""
        if value.nbytes:
            at = value.ctypes.data
            with self._marked_copy():
                self.driver("cuMemcpyDtoHAsync_v2", at, address, value.nbytes, self.streams[0])

    def copy_on(self, target: int, source: int, nbytes: int) -> None:
        """Enqueue a copy on the device."""
        if nbytes:
            self.driver("cuMemcpyDtoDAsync_v2", target, source, nbytes, self.streams[0])

    def trace(self, room: int) -> DeviceMarks:
        """Have the device mark what it does; whoever has the status board shows the marks there."""
        self.marks = DeviceMarks(self.driver, self.streams[0], room)
        return self.marks

    def untrace(self) -> DeviceMarks | None:
        """Have it mark nothing any more, once the board does not show the marks; return what was marked."""
        found, self.marks = self.marks, None
        if found is not None:
            found.read()
            found.close()
        return found

    def _marked_copy(self) -> AbstractContextManager[None]:
        """Mark a copy that is enqueued inside the `with`, in a trace."""
        if self.marks is None:
            return nullcontext()
        return self.marks.around(TraceBuffer.COPY, self.streams[0])

    def settle(self) -> None:
        """Wait for all work that this process has given the device."""
        self.driver("cuCtxSynchronize")

    def synchronize(self) -> None:
        """Wait for all streams. Raises RankError when something failed on the device."""
        with self._breaking():
            for stream in self.streams:
                if code := self.driver.code("cuStreamSynchronize", stream):
                    raise self._late(code)
        self._steps.settled()
        self._staging.settled()

    def _late(self, code: int) -> RankError:
        """Return the error of a step that was enqueued before: the driver does not tell which of its ops has failed."""
        first, last = self.manifest.ops[:1], self.manifest.ops[1:][-1:]
        where = " to ".join(str(op) for op in (*first, *last)) or "a step"
        return RankError(
            f"rank {self.rank} failed on its device, in {where}: {error_name('cuda', code)}"
        )

    def reached(self) -> int:
        """Return a number that changes as the device makes progress: how many steps are done, which events have passed.

        The events of a graph may not be queried, and do not count once there is one.
        """
        query = self.driver.code
        events = [] if self.captured else self.events[:_SEEN]
        passed = [query("cuEventQuery", event) == 0 for event in events]
        steps = self._steps.passed() % (1 << 62 - _SEEN)
        return (steps << _SEEN) + sum(1 << k for k, done in enumerate(passed) if done)

    def buffers(self, held: ExitStack, sizes: Sequence[int], what: str) -> list[int]:
        """Allocate device memory for inputs or outputs, until `held` is closed."""
        return [allocate(self.driver, held, nbytes, what) for nbytes in sizes]

    def bound(self, inputs: Sequence[int], outputs: Sequence[int]) -> Values:
        """Return a table for these buffers on the device; `enqueue` takes its address."""
        table = self.table.bound((), ())
        slots = self.table.slots
        for index, address in enumerate(inputs):
            table[slots.input(index)] = address
        for index, address in enumerate(outputs):
            table[slots.output(index)] = address
        return table

    def close(self) -> None:
        """Free everything. Communicators of a run that failed are aborted."""
        if hasattr(self, "comms"):
            self.comms.close(abort=self.broken)
        self._held.close()

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Mark the rank as broken when anything fails inside: the state of its device is then unknown."""
        if self.broken:
            raise RankError(f"rank {self.rank}: an earlier run has failed: load the program again")
        try:
            yield
        except BaseException:
            self.broken = True
            raise

    def _checked(self, code: int) -> None:
        if code:
            raise RankError(fault(self.manifest, self.rank, code, meaning(code)))
