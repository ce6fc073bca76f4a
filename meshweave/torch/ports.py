"""Copy tensors of PyTorch to and from the buffers of a program."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from meshweave.bundle import OF_A_BYTE, Port, numpy_dtype, public_dtype
from meshweave.errors import MeshweaveError
from meshweave.frontends.torch.export import Exported, torch_package
from meshweave.frontends.torch.layouts import is_dtensor
from meshweave.layout import Layout, Mesh
from meshweave.runtime.arrays.array import (
    Array,
    collect,
    collected,
    copied,
    laid_out_whole,
)
from meshweave.runtime.arrays.blocks import SMALL, parts, plain
from meshweave.runtime.arrays.elements import wide
from meshweave.runtime.engine import Executable
from meshweave.runtime.local.dispatch import COPIED, pieces
from meshweave.runtime.local.engine import LocalCall
from meshweave.runtime.memory import NOTHING, address_of, addressed_array, aligned_array
from meshweave.runtime.program import buffer, prepared, readable, usable

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    import torch
    from torch import Tensor

_torch = cache(torch_package)  # to import it takes longer than to copy a few numbers
Buffer: TypeAlias = npt.NDArray[np.generic]
_Piece: TypeAlias = tuple[Buffer, tuple[slice, ...]]
"""A piece of a rank's buffer, and its place in the global tensor."""


class Ports:
    """Hold the buffers of a program: parameters stay in them, inputs are copied in, results out."""

    def __init__(
        self,
        executable: Executable,
        mesh: Mesh,
        exported: Exported,
        parameters: Mapping[str, Array],
    ) -> None:
        manifest = executable.manifest
        columns = [
            parameters[name].shards if name in parameters else _zeros(port, mesh)
            for name, port in zip(exported.names, manifest.inputs, strict=True)
        ]
        rows = [[column[rank] for column in columns] for rank in range(mesh.nranks)]
        self.call = executable.bind(rows)
        self._local = self.call if isinstance(self.call, LocalCall) else None
        self._executable, self._names = executable, exported.names
        self._written = {i: number for number, i in exported.written.items()}
        self._direct: dict[int, Buffer | None] = {}  # inputs that the program writes where they are
        self._inputs = {
            index: _InputPort(
                manifest.inputs[index], mesh, [row[index] for row in self.call.inputs]
            )
            for index in exported.inputs
            if index is not None
        }
        self._outputs = [_ResultPort(port, mesh) for port in manifest.outputs]
        kept = self._written.values()
        large = [n for n, p in enumerate(manifest.outputs) if p.nbytes > COPIED and n not in kept]
        # Results that each call writes to new memory: the tensors that it returns lie there.
        self._fresh = [] if self._local is None else large

    @property
    def alive(self) -> bool:
        """Tell whether the ranks that it was bound on still run."""
        return bool(getattr(self.call, "alive", True))

    def run(self) -> None:
        """Run the program. Raises RankError when a rank fails or the job stalls."""
        for rank, row in enumerate(self.call.outputs):
            for number in self._fresh:
                assert self._local is not None
                row[number], address = self._outputs[number].memory()
                self._local.write(rank, number, address)
        self.call()

    def put(self, index: int, value: object) -> bool:
        """Copy an input from a tensor that fits as it is; return False for any other value.

        One that the program writes is not copied where the program can work in its memory, nor is a large one of a
        program that writes none, which might be the same.
        """
        large = self._inputs[index].column[0].nbytes >= SMALL
        if (index in self._written or (large and not self._written)) and self._worked_in(
            index, value
        ):
            return True
        return self._inputs[index].put(value)

    def _worked_in(self, index: int, value: Any) -> bool:
        """Let the program work in the memory of a tensor, if it can; else in its own."""
        if self._local is None or len(self.call.inputs) > 1:
            return False
        memory = self._inputs[index].memory(value, index in self._written)
        self._direct[index] = memory
        read = self.call.inputs[0][index] if memory is None else memory
        self._local.read(0, index, address_of(read))
        return memory is not None

    def put_array(self, index: int, array: Array) -> None:
        """Copy an input from the shards of an Array of the right layout."""
        for target, shard in zip(self._inputs[index].column, array.shards, strict=True):
            target[...] = shard

    def point(self, index: int, array: Array) -> bool:
        """Let the program read a parameter where an Array of the right layout lies, if this engine can."""
        if self._local is None or index in self._written:
            return False
        for rank, shard in enumerate(array.shards):
            value = prepared(shard, self._executable.manifest.inputs[index])
            self.call.inputs[rank][index] = value
            self._local.read(rank, index, address_of(value))
        return True

    def states(self) -> dict[str, Array]:
        """Return the parameters and buffers that the program writes, by name: Arrays in the memory that it writes."""
        made = collect(self._executable, self.call.outputs)
        return {
            self._names[index]: made[number]
            for index, number in self._written.items()
            if index not in self._inputs
        }

    def write_back(self, index: int, value: Any) -> None:
        """Copy what an input has become to the argument that it came from, unless it is there already."""
        number = self._written[index]
        if self._direct.get(index) is not None:
            torch = _torch()
            if not value.is_inference():  # torch has not seen that it was written
                torch.autograd.graph.increment_version(value)
            return
        if isinstance(value, Array):
            for shard, row in zip(value.shards, self.call.outputs, strict=True):
                shard[...] = row[number]
        elif isinstance(value, np.ndarray):
            value[...] = self._array(number).numpy()
        else:
            torch = _torch()
            assert isinstance(value, torch.Tensor)
            with torch.no_grad():
                value.copy_(self._tensor(number))

    def results(self, as_arrays: Container[int | None]) -> list[Array | Tensor]:
        """Return the results, those `as_arrays` as Arrays, the others as torch tensors."""
        found: list[Array | Tensor] = [
            self._array(number) if number in as_arrays else self._tensor(number)
            for number in range(len(self._outputs))
        ]
        for row in self.call.outputs:
            for number in self._fresh:
                row[number] = NOTHING  # what has left is not kept
        return found

    def _tensor(self, number: int) -> Tensor:
        """Return a result as a torch tensor."""
        column = [row[number] for row in self.call.outputs]
        whole = self._outputs[number].tensor(column, number in self._fresh)
        return to_torch(self._array(number)) if whole is None else whole

    def _array(self, number: int) -> Array:
        """Return a result as an Array."""
        column = [row[number] for row in self.call.outputs]
        kept = column if number in self._fresh else [copied(value) for value in column]
        return collected(self._executable, number, kept)


class _InputPort:
    """Hold the buffers of one input on all ranks.

    pieces: what each rank holds of the global tensor, or None where plain copies do not do.
    """

    def __init__(self, port: Port, mesh: Mesh, column: list[Buffer]) -> None:
        self.column, self.shape = column, tuple(port.global_shape)
        self.pieces: list[_Piece] | None = None
        if plain(Layout.parse(port.layout)):
            self.pieces = list(pieces(port, mesh, column))
        self._torch = _torch()
        self._tensors = (self._torch.Tensor, self._torch.nn.Parameter)
        self._dtype = port.dtype
        self._kind = torch_dtype(port.dtype) if self.pieces is not None else None

    def put(self, value: object) -> bool:
        """Copy a tensor in; return False where it needs more than that."""
        array = self._array(value)
        if array is None:
            return False
        for target, source in self.pieces or ():
            target[...] = array[source]
        return True

    def memory(self, value: object, written: bool) -> Buffer | None:
        """Return the memory of a tensor, if compiled code can read it, or work in it, as the whole of this input."""
        array, fits = self._array(value), usable if written else readable
        whole = array is not None and self.column[0].shape == self.shape and fits(array)
        return array if whole else None

    def _array(self, value: Any) -> Buffer | None:  # any argument of the user's
        """Return a tensor that fits as a NumPy array of its memory, None for any other value."""
        if self.pieces is None or type(value) not in self._tensors:
            return None
        if value.dtype is not self._kind or value.shape != self.shape or value.device.type != "cpu":
            return None
        if value.is_conj() or value.is_neg():  # in memory are other numbers
            return None
        return _elements(value.detach(), self._dtype)


class _ResultPort:
    """Put a result together from what the ranks hold of it."""

    def __init__(self, port: Port, mesh: Mesh) -> None:
        layout, self._shape = Layout.parse(port.layout), tuple(port.global_shape)
        self._dtype, self._kind = port.dtype, numpy_dtype(port.dtype)
        self._local, self._nbytes = tuple(port.local_shape), port.nbytes
        self._parts = parts(mesh, layout, self._shape) if plain(layout) else None
        whole = self._parts is not None and len(self._parts) == 1 and self._local == self._shape
        self._whole = whole  # whether the first rank holds all of it, without padding

    def memory(self) -> tuple[Buffer, int]:
        """Return new memory for what a rank holds, and its address."""
        return addressed_array(self._local, self._kind, self._nbytes)

    def tensor(self, column: Sequence[Buffer], fresh: bool) -> Tensor | None:
        """Return the global value; None where plain copies do not do.

        column: what each rank holds; fresh: whether that is memory that the tensor may lie in.
        """
        if self._parts is None:
            return None
        if self._whole and fresh:
            return viewed(column[0], self._dtype)
        whole = aligned_array(self._shape, self._kind)
        for part in self._parts:
            whole[part.place] = column[part.rank][part.inside]
        return viewed(whole, self._dtype)


def viewed(array: Buffer, dtype: str) -> Tensor:
    """Return a torch tensor in the memory of an array with elements of a dtype."""
    torch = _torch()
    if dtype in _NOT_NUMPYS:
        bits: Tensor = torch.from_numpy(array.view(_NOT_NUMPYS[dtype])).view(torch_dtype(dtype))
        return bits
    whole: Tensor = torch.from_numpy(array)
    return whole


_NOT_NUMPYS = {"bf16": "int16", **{name: "uint8" for name in OF_A_BYTE if name.startswith("f")}}
"""Elements that NumPy does not know, with integers in whose place torch hands them over."""


def _elements(value: Tensor, dtype: str) -> Buffer:
    """View the elements of a tensor as NumPy's, in its memory; of bf16 the 16-bit patterns."""
    if dtype not in _NOT_NUMPYS:
        return np.asarray(value.numpy())
    whole = getattr(_torch(), _NOT_NUMPYS[dtype])
    return np.asarray(value.view(whole).numpy()).view(numpy_dtype(dtype))


def _zeros(port: Port, mesh: Mesh) -> list[Buffer]:
    """Allocate the buffers of an input, filled with zeros so that padding holds nothing that traps."""
    made = [buffer(port) for _ in range(mesh.nranks)]
    for value in made:
        value.fill(0)
    return made


def placed(value: object, port: Port, mesh: Mesh) -> Array:
    """Return a value as an Array in the layout of `port`. Raises MeshweaveError for another shape or dtype."""
    layout = Layout.parse(port.layout)
    if isinstance(value, Array):
        if (value.mesh, value.layout) == (mesh, layout):
            made = value
        elif value.mesh == mesh:
            made = value.redistribute(layout)
        else:
            made = laid_out_whole(value.numpy(), mesh, layout, port.dtype)
    else:
        array = from_tensor(value)
        if tuple(array.shape) != tuple(port.global_shape):
            raise MeshweaveError(f"shape {tuple(array.shape)}, {tuple(port.global_shape)} is right")
        array = wide(array, port.dtype)
        made = laid_out_whole(array, mesh, layout, port.dtype)
    if (made.shape, made.dtype_name) != (tuple(port.global_shape), port.dtype):
        raise MeshweaveError(
            f"{made.dtype_name} {made.shape}, {port.dtype} {tuple(port.global_shape)} is right"
        )
    return made


def from_tensor(value: object) -> Buffer:
    """Return a torch tensor (or anything with `__array__`) as a NumPy array: bf16 as its bits, DTensors whole."""
    torch = _torch()
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    whole = value.full_tensor() if is_dtensor(value) else value
    whole = whole.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return _elements(whole, _not_numpys(whole.dtype))


@cache
def torch_dtype(name: str) -> torch.dtype:
    """Return torch's name of an element type."""
    torch = _torch()
    own = getattr(torch, public_dtype(name).name, None) if name in _NOT_NUMPYS else None
    return own or torch.from_numpy(np.empty(0, numpy_dtype(name))).dtype


@cache
def _not_numpys(dtype: torch.dtype) -> str:
    """Return the name of elements that NumPy does not know, "" for any other."""
    return next((name for name in _NOT_NUMPYS if torch_dtype(name) == dtype), "")


def to_torch(array: Array) -> Tensor:
    """Return the global value of an Array as a torch tensor; of one on the ranks of a job each rank gets the whole."""
    torch = _torch()
    if array.kind.rank is not None and not array.kind.is_everywhere:
        array = array.redistribute(Layout.replicated(len(array.shape)))
    whole = np.ascontiguousarray(array.numpy()).reshape(array.shape)
    if array.dtype_name == "bf16":  # as f32
        return torch.from_numpy(whole).to(torch.bfloat16)
    return viewed(whole, array.dtype_name)


def own_tensor(array: Array) -> Tensor:
    """Return the value of an Array of which nobody else knows as a tensor, in its memory where that holds all of it."""
    if array.mesh.nranks == 1 and array.kind.is_plain:
        return viewed(array.held[0].reshape(array.shape), array.dtype_name)
    return to_torch(array)
