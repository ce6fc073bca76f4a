"""Do for one rank of a program what every engine needs: buffers, the table that `step` reads, errors of a call."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshweave.abi import ALIGNMENT, HOST_CALL, PYTHON, rounded
from meshweave.bundle import Bundle, Manifest, Port, numpy_dtype, slots
from meshweave.errors import MeshweaveError
from meshweave.runtime.host import HostCalls
from meshweave.runtime.libraries import libraries
from meshweave.runtime.loader import LoadedCode, load
from meshweave.runtime.memory import Values, aligned, aligned_array
from meshweave.runtime.processors import check_processor

Memory = mmap.mmap | memoryview | npt.NDArray[np.uint8]
StepFunction = Callable[[int], int]
"""Call a step with the address of its table; the interpreter lock is free while it runs."""


def buffer(port: Port) -> Values:
    """Allocate the array of one rank for a port: aligned, not initialised."""
    return aligned_array(port.local_shape, numpy_dtype(port.dtype))


def load_code(bundle: Bundle) -> tuple[LoadedCode, StepFunction]:
    """Load a bundle's objects; return the code and its entry. Raises MeshweaveError when they cannot be loaded here."""
    check_processor(bundle.manifest.features)
    names = bundle.manifest.libraries
    host = HostCalls() if PYTHON in names else None
    externals = {HOST_CALL: host.address} if host is not None else {}
    others = libraries(tuple(name for name in names if name != PYTHON))
    code = load(bundle.objects, externals, others)
    step = entry_of(code, bundle.manifest)
    return code, step if host is None else host.heard(step)


def entry_of(code: LoadedCode, manifest: Manifest) -> StepFunction:
    """Return the entry of loaded code as a function. Raises MeshweaveError unless the manifest is that of the code."""
    if manifest.symbol not in code:
        raise MeshweaveError(
            "the bundle's manifest is not the one that its code was compiled for: compile the program again"
        )
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(code.address(manifest.entry))


def check_local(port: Port, index: int, what: str, rank: int, value: object) -> Values:
    """Return a rank's array for a port. Raises MeshweaveError, which names port, rank and dim, when it does not fit."""
    name = f'{what} {index} "{port.name}", rank {rank}'
    if not isinstance(value, np.ndarray):
        raise MeshweaveError(f"{name}: a NumPy array is needed, got {type(value).__name__}")
    if value.dtype != numpy_dtype(port.dtype):
        raise MeshweaveError(f"{name}: dtype {value.dtype}, {numpy_dtype(port.dtype)} is right")
    if value.shape != port.local_shape:
        local = "x".join(map(str, port.local_shape))
        check_shape(name, value.shape, port.local_shape, f" (its local shape is {local})")
    return value


def check_shape(name: str, shape: Sequence[int], right: Sequence[int], more: str = "") -> None:
    """Raise MeshweaveError, which names a value and the dim of wrong size, unless its shape is right."""
    if len(shape) != len(right):
        raise MeshweaveError(f"{name}: {len(shape)} dims, {len(right)} are right")
    for dim, (size, wanted) in enumerate(zip(shape, right, strict=True)):
        if size != wanted:
            raise MeshweaveError(f"{name}: dim {dim} has size {size}, {wanted} is right{more}")


def check_all(
    ports: Sequence[Port], what: str, nranks: int, values: Sequence[Sequence[Any]]
) -> list[list[Values]]:
    """Return the arrays of all ranks, `values[rank][index]`.

    Raises MeshweaveError, which names the one that does not fit.
    """
    check_count(nranks, what, values)
    return [check_row(ports, what, rank, row) for rank, row in enumerate(values)]


def check_count(nranks: int, what: str, values: Sequence[object]) -> None:
    """Raise MeshweaveError unless there are values for as many ranks as the program has."""
    if len(values) != nranks:
        raise MeshweaveError(f"{what}s for {len(values)} ranks, the program has {nranks}")


def check_row(ports: Sequence[Port], what: str, rank: int, row: Sequence[Any]) -> list[Values]:
    """Return the arrays of one rank. Raises MeshweaveError, which names the one that does not fit."""
    if len(row) != len(ports):
        raise MeshweaveError(f"rank {rank}: {len(row)} {what}s, the program has {len(ports)}")
    return [
        check_local(port, index, what, rank, value)
        for index, (port, value) in enumerate(zip(ports, row, strict=True))
    ]


def usable(value: Values) -> bool:
    """Tell whether compiled code may work in this array in place: it is contiguous and aligned."""
    return bool(value.flags.c_contiguous and value.ctypes.data % ALIGNMENT == 0)


def readable(value: Values) -> bool:
    """Tell whether compiled code can read this array in place: it is contiguous, its elements aligned."""
    return bool(value.flags.c_contiguous and value.flags.aligned)


def prepared(value: Values, port: Port) -> Values:
    """Return the array itself where compiled code can read it in place, else an aligned copy."""
    if readable(value):
        return value
    copy = buffer(port)
    copy[...] = value
    return copy


def bind_row(
    manifest: Manifest, rank: int, row: Sequence[Values]
) -> tuple[list[Values], list[Values]]:
    """Return the inputs of one rank, checked, and copied where code cannot read them in place; and the outputs.

    An output that takes the buffer of an input is that input; the others are new.
    """
    ports = manifest.inputs
    checked = zip(check_row(ports, "input", rank, row), ports, strict=True)
    read = [prepared(value, port) for value, port in checked]
    return read, [buffer(p) if p.takes is None else read[p.takes] for p in manifest.outputs]


def bind_rows(
    manifest: Manifest, nranks: int, rows: Sequence[Sequence[Values]]
) -> tuple[list[list[Values]], list[list[Values]]]:
    """Return inputs and new outputs of all ranks, `[rank][index]`, as `bind_row` does for each."""
    check_count(nranks, "input", rows)
    bound = [bind_row(manifest, rank, row) for rank, row in enumerate(rows)]
    return [read for read, _ in bound], [written for _, written in bound]


def place_buffers(manifest: Manifest, memory: Memory) -> tuple[list[Values], list[Values]]:
    """Lay out the inputs and outputs of one rank in a buffer of `buffer_bytes(manifest)` bytes."""
    end, arrays = 0, list[Values]()
    for port in (*manifest.inputs, *manifest.outputs):
        if port.takes is not None:
            arrays.append(arrays[port.takes])
            continue
        dtype = numpy_dtype(port.dtype)
        count = port.nbytes // dtype.itemsize
        arrays.append(np.frombuffer(memory, dtype, count, end).reshape(port.local_shape))
        end += rounded(port.nbytes)
    return arrays[: len(manifest.inputs)], arrays[len(manifest.inputs) :]


def buffer_bytes(manifest: Manifest) -> int:
    """Count the bytes of all inputs and outputs of one rank, each aligned; at least a page, which mmap needs."""
    ports = (*manifest.inputs, *manifest.outputs)
    return max(4096, sum(rounded(port.nbytes) for port in ports if port.takes is None))


class SlotTable:
    """Hold the slots of one rank: all but the pointers of inputs and outputs, which `bound` fills in."""

    def __init__(
        self,
        manifest: Manifest,
        rank: int,
        *,
        status: int,
        private: int,
        groups: Sequence[tuple[int, int]],
        exchanges: Sequence[Values],
        arena: int | None = None,
        cores: int = 0,
    ) -> None:
        """Fill in the slots.

        status, private, arena, cores: addresses (without an arena, one is allocated); groups: (handle, member index)
        of each group of the manifest; exchanges: the words of the rank's section of each exchange.
        """
        self.slots = slots(manifest)
        self.arena = aligned(0 if arena is not None else manifest.arena_bytes)
        self._early = (
            self.arena[len(self.arena) - manifest.early_bytes :] if arena is None else None
        )
        self.reset_async()
        self._base = np.zeros(self.slots.count, np.int64)
        self._base[self.slots.arena] = self.arena.ctypes.data if arena is None else arena
        self._base[self.slots.rank] = rank
        self._base[self.slots.status] = status
        self._base[self.slots.private] = private
        self._base[self.slots.cores] = cores
        for number, (handle, member) in enumerate(groups):
            self._base[self.slots.handle(number)] = handle
            self._base[self.slots.member(number)] = member
        self._exchanges = tuple(exchanges)  # kept for as long as the slots point to them
        for number, words in enumerate(self._exchanges):
            self._base[self.slots.exchange(number)] = words.ctypes.data

    def reset_async(self) -> None:
        """Reset the async counters, as in a new arena. An arena that was given must be new."""
        if self._early is not None:
            self._early.fill(0)

    def bound(self, inputs: Sequence[Values], outputs: Sequence[Values]) -> Values:
        """Return a table for these buffers. `step` takes its address; keep table and buffers while it runs."""
        table: Values = self._base.copy()
        for index, value in enumerate(inputs):
            table[self.slots.input(index)] = value.ctypes.data
        for index, value in enumerate(outputs):
            table[self.slots.output(index)] = value.ctypes.data
        return table


def fault(manifest: Manifest, rank: int, code: int, meaning: str = "") -> str:
    """Describe a `step` that returned `code` in one line: rank, op, place and the code's meaning."""
    return f"rank {rank} failed in {manifest.op(code >> 16)}: {meaning or f'code {code & 0xFFFF}'}"
