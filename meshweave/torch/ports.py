"""Copy tensors of PyTorch to and from the buffers of a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from meshweave.bundle import Port, numpy_dtype
from meshweave.errors import MeshweaveError
from meshweave.frontends.torch.export import Exported, torch_package
from meshweave.frontends.torch.layouts import is_dtensor
from meshweave.layout import Layout, Mesh
from meshweave.runtime.arrays.array import Array, collect, wide
from meshweave.runtime.engine import Executable
from meshweave.runtime.local.dispatch import pieces, plain
from meshweave.runtime.program import buffer

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch import Tensor

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
        self._executable = executable
        self._inputs = {
            index: _TensorPort(
                manifest.inputs[index], mesh, [row[index] for row in self.call.inputs]
            )
            for index in exported.inputs
            if index is not None
        }
        self._outputs = [
            _TensorPort(port, mesh, [row[index] for row in self.call.outputs])
            for index, port in enumerate(manifest.outputs)
        ]

    @property
    def alive(self) -> bool:
        """Tell whether the ranks that it was bound on still run."""
        return bool(getattr(self.call, "alive", True))

    def put(self, index: int, value: object) -> bool:
        """Copy an input from a tensor that fits as it is; return False for any other value."""
        return self._inputs[index].put(value)

    def put_array(self, index: int, array: Array) -> None:
        """Copy an input from the shards of an Array of the right layout."""
        for target, shard in zip(self._inputs[index].column, array.shards, strict=True):
            target[...] = shard

    def arrays(self) -> list[Array]:
        """Return the results as Arrays."""
        copies = [[value.copy() for value in row] for row in self.call.outputs]
        return collect(self._executable, copies)

    def tensors(self) -> list[Tensor]:
        """Return the results as torch tensors."""
        if all(port.pieces is not None for port in self._outputs):
            return [port.tensor() for port in self._outputs]
        return [to_torch(array) for array in self.arrays()]


class _TensorPort:
    """Hold the buffers of one input or result on all ranks.

    pieces: what each rank holds of the global tensor, or None where plain copies do not do.
    """

    def __init__(self, port: Port, mesh: Mesh, column: list[Buffer]) -> None:
        self.column, self.shape = column, tuple(port.global_shape)
        self.dtype = numpy_dtype(port.dtype)
        self.pieces: list[_Piece] | None = None
        if plain(Layout.parse(port.layout)):
            self.pieces = list(pieces(port, mesh, column))
        held = reversed(self.pieces or [])  # of each part, that of the first rank that holds it
        self._first = list({repr(place): (values, place) for values, place in held}.values())
        self._tensor, self._torch = torch_package().Tensor, torch_package()
        self._is_bf16 = port.dtype == "bf16"
        self._kind = self._torch.bfloat16 if self._is_bf16 else None
        if self._kind is None and self.pieces is not None:
            self._kind = self._torch.from_numpy(column[0]).dtype

    def put(self, value: Any) -> bool:  # any argument of the user's
        """Copy a tensor in; return False where it needs more than that."""
        if self.pieces is None or type(value) is not self._tensor:
            return False
        if value.dtype is not self._kind or value.shape != self.shape or value.device.type != "cpu":
            return False
        array = _bits(value) if self._is_bf16 else value.detach().numpy()
        for target, source in self.pieces:
            target[...] = array[source]
        return True

    def tensor(self) -> Tensor:
        """Return the global value."""
        whole = np.empty(self.shape, self.dtype)
        for held, place in self._first:
            whole[place] = held
        if self._is_bf16:
            return self._torch.from_numpy(whole.view(np.int16)).view(self._kind)
        return self._torch.from_numpy(whole)


def _bits(value: Tensor) -> Buffer:
    """View the 16-bit patterns of a bf16 tensor, in its memory."""
    return np.asarray(value.detach().view(torch_package().int16).numpy()).view(np.uint16)


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
            made = Array.from_numpy(value.numpy(), mesh=mesh, layout=layout, dtype=port.dtype)
    else:
        array = from_tensor(value)
        if tuple(array.shape) != tuple(port.global_shape):
            raise MeshweaveError(f"shape {tuple(array.shape)}, {tuple(port.global_shape)} is right")
        array = wide(array, port.dtype)
        made = Array.from_numpy(array, mesh=mesh, layout=layout, dtype=port.dtype)
    if (made.shape, made.dtype) != (tuple(port.global_shape), port.dtype):
        raise MeshweaveError(
            f"{made.dtype} {made.shape}, {port.dtype} {tuple(port.global_shape)} is right"
        )
    return made


def from_tensor(value: object) -> Buffer:
    """Return a torch tensor (or anything with `__array__`) as a NumPy array: bf16 as its bits, DTensors whole."""
    torch = torch_package()
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    whole = value.full_tensor() if is_dtensor(value) else value
    whole = whole.detach().cpu().contiguous()
    if whole.dtype == torch.bfloat16:
        return _bits(whole)
    return np.asarray(whole.numpy())


def to_torch(array: Array) -> Tensor:
    """Return the global value of an Array as a torch tensor."""
    torch = torch_package()
    value = torch.from_numpy(np.ascontiguousarray(array.numpy()).reshape(array.shape))
    return value.to(torch.bfloat16) if array.dtype == "bf16" else value
