"""One GPU, as the benchmark uses it: programs run by the product's own runtime, in this process."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu.timing import each
from meshweave.bundle import Bundle, Manifest
from meshweave.runtime.arrays.elements import narrow, wide
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.gpu.driver import Driver, allocate, open_device
from meshweave.runtime.gpu.interface import STREAM_NON_BLOCKING
from meshweave.runtime.gpu.libraries import SystemLibrary
from meshweave.runtime.gpu.rank import GpuRank
from meshweave.runtime.processes.bootstrap import JobRank, open_store
from meshweave.runtime.program import buffer, prepared

COPIED = 1 << 30  # bytes of the copy that is the floor


def gpus() -> int:
    """How many GPUs the driver finds."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


class Device:
    """The first GPU. library: what drives it, if not the real one."""

    def __init__(self, library: Any = None) -> None:
        self.library = library or SystemLibrary()
        self._driver = Driver(self.library, 0)
        self._device = open_device(self._driver, 0)
        self.name = self._device.name
        newer = "sm_90a" if self._device.capability == (9, 0) else "sm_90"
        self.chip = newer if self._device.capability >= (9, 0) else "sm_80"

    @property
    def about(self) -> dict[str, Any]:
        """What it is."""
        capability = ".".join(map(str, self._device.capability))
        return {"device": self.name, "capability": capability, "driver": self._device.driver_text}

    def copy_rate(self, repeat: int) -> float:
        """Bytes a second, read and written, of a copy on the device."""
        driver = self._driver
        with ExitStack() as held:
            context = driver.handle("cuDevicePrimaryCtxRetain", 0)
            held.callback(driver.code, "cuDevicePrimaryCtxRelease_v2", 0)
            driver("cuCtxSetCurrent", context)
            ends = [allocate(driver, held, COPIED, "a copy") for _ in range(2)]
            made = ("cuStreamCreateWithPriority", "cuStreamDestroy_v2", STREAM_NON_BLOCKING, 0)
            stream = driver.made(held, *made)

            def copies(count: int) -> None:
                for _ in range(count):
                    driver("cuMemcpyDtoDAsync_v2", ends[1], ends[0], COPIED, stream)
                driver("cuStreamSynchronize", stream)

            return 2 * COPIED / each(copies, repeat)

    def run(
        self, bundle: Bundle, inputs: Sequence[np.ndarray], repeat: int
    ) -> tuple[Times, list[np.ndarray]]:
        """Time a step, and return its results; bf16 as f32."""
        board = StatusBoard.private(1)
        place = JobRank(0, 1, 0)
        store = open_store(place)
        try:
            rank = GpuRank(bundle, place, self.library, store, board.address(0))
        finally:
            store.close()
        try:
            with ExitStack() as held:
                return _run(rank, bundle.manifest, inputs, repeat, held)
        finally:
            rank.close()


class Times(NamedTuple):
    """Seconds of a step: as a graph, without one, and until the host has enqueued it."""

    graph: float
    plain: float
    enqueued: float


def _run(
    rank: GpuRank, manifest: Manifest, inputs: Sequence[np.ndarray], repeat: int, held: ExitStack
) -> tuple[Times, list[np.ndarray]]:
    sizes = [[port.nbytes for port in ports] for ports in (manifest.inputs, manifest.outputs)]
    given, made = (rank.buffers(held, each, "the benchmark") for each in sizes)
    kept = []
    for address, value, port in zip(given, inputs, manifest.inputs, strict=True):
        kept.append(prepared(narrow(value, port.dtype), port))
        rank.copy_in(address, kept[-1])
    table = rank.bound(given, made)
    context = int(table.ctypes.data)

    def plain(count: int) -> None:
        for _ in range(count):
            rank.enqueue(context)
        rank.synchronize()

    plain(2)
    began = time.perf_counter()
    rank.enqueue(context)
    enqueued = time.perf_counter() - began
    slow = quick = each(plain, repeat)
    if manifest.graph:
        graph = rank.capture(held, context)

        def captured(count: int) -> None:
            for _ in range(count):
                rank.launch(graph)
            rank.synchronize()

        quick = each(captured, repeat)
    results = [buffer(port) for port in manifest.outputs]
    for value, address in zip(results, made, strict=True):
        rank.copy_out(value, address)
    rank.synchronize()
    found = [wide(value, port.dtype) for value, port in zip(results, manifest.outputs, strict=True)]
    return Times(quick, slow, enqueued), found
