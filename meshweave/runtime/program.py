"""What every engine does for a rank of a program: buffers, the table that `step` reads, the
call, its result.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshweave.abi import ALIGNMENT, rounded
from meshweave.bundle import Bundle, Manifest, Port, numpy_dtype, slots
from meshweave.errors import MeshweaveError
from meshweave.runtime.libraries import libraries
from meshweave.runtime.loader import LoadedCode, load

Values = npt.NDArray[Any]
Step = Any  # a ctypes function: i32 (ptr ctx); the interpreter lock is free while it runs


def aligned(nbytes: int) -> Values:
    """Uninitialised bytes that begin at a multiple of ALIGNMENT. MeshweaveError without memory."""
    try:
        whole = np.empty(nbytes + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError):
        raise MeshweaveError(f"no memory for a buffer of {nbytes} bytes") from None
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + nbytes]


def buffer(port: Port) -> Values:
    """An uninitialised, aligned allocation of one rank."""
    return aligned(port.nbytes).view(numpy_dtype(port.dtype)).reshape(port.local_shape)


def load_code(bundle: Bundle) -> tuple[LoadedCode, Step]:
    """Load a bundle's objects and find its entry. MeshweaveError when they cannot be loaded
    here.
    """
    code = load(bundle.objects, libraries=libraries(bundle.manifest.libraries))
    step = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(code.address(bundle.manifest.entry))
    return code, step


def check_local(port: Port, index: int, what: str, rank: int, value: Any) -> Values:
    """A rank's array for a port. MeshweaveError names port, rank and dim when dtype or shape
    differ.
    """
    name = f'{what} {index} "{port.name}", rank {rank}'
    if not isinstance(value, np.ndarray):
        raise MeshweaveError(f"{name}: a NumPy array is needed, got {type(value).__name__}")
    if value.dtype != numpy_dtype(port.dtype):
        raise MeshweaveError(f"{name}: dtype {value.dtype}, {numpy_dtype(port.dtype)} is right")
    if value.ndim != len(port.local_shape):
        raise MeshweaveError(f"{name}: {value.ndim} dims, {len(port.local_shape)} are right")
    for dim, (size, right) in enumerate(zip(value.shape, port.local_shape, strict=True)):
        if size != right:
            raise MeshweaveError(
                f"{name}: dim {dim} has size {size}, {right} is right (its local shape is "
                f"{'x'.join(map(str, port.local_shape))})"
            )
    return value


def check_all(
    ports: Sequence[Port], what: str, nranks: int, values: Sequence[Sequence[Any]]
) -> list[list[Values]]:
    """Check the arrays of all ranks: `values[rank][index]`. MeshweaveError names what does not
    fit.
    """
    if len(values) != nranks:
        raise MeshweaveError(f"{what}s for {len(values)} ranks, the program has {nranks}")
    return [check_row(ports, what, rank, row) for rank, row in enumerate(values)]


def check_row(ports: Sequence[Port], what: str, rank: int, row: Sequence[Any]) -> list[Values]:
    """Check the arrays of one rank. MeshweaveError names what does not fit."""
    if len(row) != len(ports):
        raise MeshweaveError(f"rank {rank}: {len(row)} {what}s, the program has {len(ports)}")
    return [
        check_local(port, index, what, rank, value)
        for index, (port, value) in enumerate(zip(ports, row, strict=True))
    ]


def usable(value: Values) -> bool:
    """Whether compiled code may work in this array as it lies: contiguous and aligned."""
    return bool(value.flags.c_contiguous and value.ctypes.data % ALIGNMENT == 0)


def prepared(value: Values, port: Port) -> Values:
    """The array itself where compiled code can read it as it lies, else an aligned copy."""
    if usable(value):
        return value
    copy = buffer(port)
    copy[...] = value
    return copy


def place_buffers(manifest: Manifest, memory: Any) -> tuple[list[Values], list[Values]]:
    """Inputs and outputs of one rank as arrays in a buffer of `buffer_bytes(manifest)` bytes."""
    end, arrays = 0, []
    for port in (*manifest.inputs, *manifest.outputs):
        dtype = numpy_dtype(port.dtype)
        count = port.nbytes // dtype.itemsize
        arrays.append(np.frombuffer(memory, dtype, count, end).reshape(port.local_shape))
        end += rounded(port.nbytes)
    return arrays[: len(manifest.inputs)], arrays[len(manifest.inputs) :]


def buffer_bytes(manifest: Manifest) -> int:
    """Bytes that all inputs and outputs of one rank take, each aligned; at least one page's
    worth for mmap.
    """
    ports = (*manifest.inputs, *manifest.outputs)
    return max(4096, sum(rounded(port.nbytes) for port in ports))


class Table:
    """The table of slots of one rank: everything but the pointers of inputs and outputs, which
    `bound` fills in.
    """

    def __init__(
        self,
        manifest: Manifest,
        rank: int,
        *,
        status: int,
        private: int,
        groups: Sequence[tuple[int, int]],
        arena: int | None = None,
    ) -> None:
        """status, private, arena: addresses (without an arena, one is made); groups: (handle,
        member index) of each group of the manifest.
        """
        self.slots = slots(manifest)
        self.arena = aligned(0 if arena is not None else manifest.arena_bytes)
        self._early = (
            self.arena[len(self.arena) - manifest.early_bytes :] if arena is None else None
        )
        self.forget_early()
        self._base = np.zeros(self.slots.count, np.int64)
        self._base[self.slots.arena] = self.arena.ctypes.data if arena is None else arena
        self._base[self.slots.rank] = rank
        self._base[self.slots.status] = status
        self._base[self.slots.private] = private
        for number, (handle, member) in enumerate(groups):
            self._base[self.slots.handle(number)] = handle
            self._base[self.slots.member(number)] = member

    def forget_early(self) -> None:
        """As if no collective had ever been started early. An arena that was given is so at first."""
        if self._early is not None:
            self._early.fill(0)

    def bound(self, inputs: Sequence[Values], outputs: Sequence[Values]) -> Values:
        """A table for these buffers. Its address is what `step` takes; keep table and buffers
        while it runs.
        """
        table: Values = self._base.copy()
        for index, value in enumerate(inputs):
            table[self.slots.input(index)] = value.ctypes.data
        for index, value in enumerate(outputs):
            table[self.slots.output(index)] = value.ctypes.data
        return table


def fault(manifest: Manifest, rank: int, code: int, meaning: str = "") -> str:
    """One line for a `step` that returned `code`: rank, op, place and the code's meaning."""
    return f"rank {rank} failed in {manifest.op(code >> 16)}: {meaning or f'code {code & 0xFFFF}'}"
