"""Between PyTorch and the ranks: the buffers of a program, tensors into them and out of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshweave.bundle import Port, numpy_dtype
from meshweave.errors import MeshweaveError
from meshweave.frontends.torch_export import Exported, torch_package
from meshweave.frontends.torch_layouts import is_dtensor
from meshweave.layout import Layout, Mesh
from meshweave.runtime.array import Array, collect, wide
from meshweave.runtime.dispatch import pieces, plain
from meshweave.runtime.program import buffer


class Ports:
    """The buffers of a program: the parameters lie in them for good, inputs are copied in, results out."""

    def __init__(
        self, executable: Any, exported: Exported, parameters: Mapping[str, Array]
    ) -> None:
        mesh, manifest = executable.mesh, executable.manifest
        columns = [
            parameters[name].shards if name in parameters else _zeros(port, mesh)
            for name, port in zip(exported.names, manifest.inputs, strict=True)
        ]
        rows = [[column[rank] for column in columns] for rank in range(mesh.nranks)]
        self.call = executable.bind(rows)
        self._executable = executable
        self._inputs = {
            index: _Port(manifest.inputs[index], mesh, [row[index] for row in self.call.inputs])
            for index in exported.inputs
            if index is not None
        }
        self._outputs = [
            _Port(port, mesh, [row[index] for row in self.call.outputs])
            for index, port in enumerate(manifest.outputs)
        ]

    @property
    def alive(self) -> bool:
        """Whether the ranks that it was bound on still run."""
        return bool(getattr(self.call, "alive", True))

    def put(self, index: int, value: Any) -> bool:
        """Copy an input from a tensor that fits as it is. False for any other value."""
        return self._inputs[index].put(value)

    def put_array(self, index: int, array: Array) -> None:
        """Copy an input from the shards of an Array that lies right."""
        for target, shard in zip(self._inputs[index].column, array.shards, strict=True):
            target[...] = shard

    def arrays(self) -> list[Array]:
        """The results as Arrays."""
        copies = [[value.copy() for value in row] for row in self.call.outputs]
        return collect(self._executable, copies)

    def tensors(self) -> list[Any]:
        """The results as torch tensors."""
        if all(port.pieces is not None for port in self._outputs):
            return [port.tensor() for port in self._outputs]
        return [to_torch(array) for array in self.arrays()]


class _Port:
    """The buffers of one input or result on all ranks; `pieces`: (buffer, place in the global tensor), where plain
    copies serve.
    """

    def __init__(self, port: Port, mesh: Mesh, column: list[np.ndarray]) -> None:
        self.column, self.shape = column, tuple(port.global_shape)
        self.dtype = numpy_dtype(port.dtype)
        self.pieces: list[Any] | None = None
        if plain(Layout.parse(port.layout)):
            self.pieces = pieces(port, mesh, column)
        self._first = [] if self.pieces is None else _first_holders(self.pieces)
        self._tensor, self._torch = torch_package().Tensor, torch_package()
        self._is_bf16 = port.dtype == "bf16"
        self._kind = self._torch.bfloat16 if self._is_bf16 else None
        if self._kind is None and self.pieces is not None:
            self._kind = self._torch.from_numpy(column[0]).dtype

    def put(self, value: Any) -> bool:
        """Copy a tensor in. False where it needs more than that."""
        if self.pieces is None or type(value) is not self._tensor:
            return False
        if value.dtype is not self._kind or value.shape != self.shape or value.device.type != "cpu":
            return False
        array = _bits(value) if self._is_bf16 else value.detach().numpy()
        for target, source in self.pieces:
            target[...] = array[source]
        return True

    def tensor(self) -> Any:
        """The global value."""
        whole = np.empty(self.shape, self.dtype)
        for held, place in self._first:
            whole[place] = held
        if self._is_bf16:
            return self._torch.from_numpy(whole.view(np.int16)).view(self._kind)
        return self._torch.from_numpy(whole)


def _bits(value: Any) -> np.ndarray:
    """The 16-bit patterns of a bf16 tensor, in its memory."""
    return np.asarray(value.detach().view(torch_package().int16).numpy()).view(np.uint16)


def _first_holders(every: Sequence[Any]) -> list[Any]:
    """One piece of each part of a tensor, though several ranks hold it."""
    found: dict[str, Any] = {}
    for held, place in every:
        found.setdefault(repr(place), (held, place))
    return list(found.values())


def _zeros(port: Port, mesh: Mesh) -> list[np.ndarray]:
    """Buffers for an input; padding holds whatever it holds, but no garbage that traps."""
    made = [buffer(port) for _ in range(mesh.nranks)]
    for value in made:
        value.fill(0)
    return made


def placed(value: Any, port: Port, mesh: Mesh) -> Array:
    """A value as an Array where the program takes it. MeshweaveError for another shape or dtype."""
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


def from_tensor(value: Any) -> np.ndarray:
    """A torch tensor (or anything with `__array__`) as a NumPy array; bf16 as its bits, DTensors whole."""
    torch = torch_package()
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    whole = value.full_tensor() if is_dtensor(value) else value
    whole = whole.detach().cpu().contiguous()
    if whole.dtype == torch.bfloat16:
        return _bits(whole)
    return np.asarray(whole.numpy())


def to_torch(array: Array) -> Any:
    """The global value of an Array as a torch tensor."""
    torch = torch_package()
    value = torch.from_numpy(np.ascontiguousarray(array.numpy()).reshape(array.shape))
    return value.to(torch.bfloat16) if array.dtype == "bf16" else value
