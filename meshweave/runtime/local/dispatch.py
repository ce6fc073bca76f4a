"""Call a program of the engine `local` quickly: buffers that stay, copies that are planned once, one foreign call.

The first call of a kind is checked in full (`runtime.arrays.array.place`); when a cache then recognises dtypes and
shapes, no further check is needed. This serves small arguments, whose call costs more than their bytes: each is copied
into the buffer that the program's table points at for good, and each result out of one. Arrays are not copied: the
table points at their shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshweave.bundle import Manifest, Port, numpy_dtype
from meshweave.layout import Layout, Mesh
from meshweave.runtime.engine import Executable
from meshweave.runtime.forks import new_lock
from meshweave.runtime.local.engine import LocalExecutable
from meshweave.runtime.program import Values, buffer, usable

LIMIT = 1 << 20  # bytes to copy: above, that costs more than the checks


class Dispatch:
    """Call a program with arguments of the right dtypes and shapes: global NumPy arrays, or arrays of shards.

    The shards of an array are read where they lie, if compiled code can do that.
    """

    def __init__(self, executable: LocalExecutable, sharded: Sequence[bool]) -> None:
        """Allocate the buffers and plan the copies; `applies` must hold.

        sharded: for each argument whether its `shards` are given, in the program's own layout.
        """
        manifest, mesh = executable.manifest, executable.mesh
        whole = [_alike(port) and not local for port, local in zip(manifest.inputs, sharded)]
        given = [[buffer(port) for port in manifest.inputs] for _ in range(mesh.nranks)]
        for row in given:
            for index, value in enumerate(row):
                value.fill(0)  # padding: whatever it holds, no garbage that traps
                if whole[index]:
                    row[index] = given[0][index]  # the ranks read one buffer
        self._call = executable.bind(given)
        self._execute = executable.execute
        self._lock = new_lock()
        self._outputs = self._call.outputs
        self._copies: list[tuple[int, Values, Any]] = []  # argument, target, place in its array
        self._shards: list[tuple[int, list[Values]]] = []  # argument, own buffers
        self._held: dict[int, Any] = {}  # argument -> the shards that the program's tables point at
        for index, (port, local) in enumerate(zip(manifest.inputs, sharded, strict=True)):
            column = [row[index] for row in self._call.inputs]
            if local:
                self._shards.append((index, column))
            elif whole[index]:
                self._copies.append((index, column[0], ...))
            else:
                self._copies += [(index, *piece) for piece in pieces(port, mesh, column)]

    @staticmethod
    def applies(executable: Executable, sharded: Sequence[bool]) -> bool:
        """Tell whether this engine runs the program, with little to copy, in types and layouts that copies serve."""
        if not isinstance(executable, LocalExecutable):
            return False
        manifest: Manifest = executable.manifest
        inputs = list(zip(manifest.inputs, sharded, strict=True))
        copied = [port for port, local in inputs if not local] + list(manifest.outputs)
        if executable.mesh.nranks * sum(port.nbytes for port in copied) > LIMIT:
            return False
        return all(
            local or (port.dtype != "bf16" and plain(Layout.parse(port.layout)))
            for port, local in inputs
        )

    def __call__(self, arrays: Sequence[Any]) -> list[list[Values]]:
        """Run once; return new results of each rank. Raises RankError when a rank fails or the job stalls."""
        with self._lock:
            for index, target, source in self._copies:
                target[...] = arrays[index][source]
            for index, own in self._shards:
                shards = arrays[index].shards
                if self._held.get(index) is not shards:
                    self._point(index, own, shards)
            self._execute(self._call)
            return [[value.copy() for value in row] for row in self._outputs]

    def _point(self, index: int, own: list[Values], shards: Sequence[Values]) -> None:
        """Let the program read these shards, or copies of those that it cannot read."""
        fit = True
        for rank, shard in enumerate(shards):
            if usable(shard):
                self._call.read(rank, index, shard)
            else:
                own[rank][...] = shard
                self._call.read(rank, index, own[rank])
                fit = False
        self._held[index] = shards if fit else None


def _alike(port: Port) -> bool:
    """Tell whether every rank holds the whole of a port."""
    return port.local_shape == port.global_shape and plain(Layout.parse(port.layout))


def plain(layout: Layout) -> bool:
    """Tell whether each rank holds one block of the global array, in its order."""
    return layout.is_block and not layout.partial and layout.without_order() == layout


def pieces(port: Port, mesh: Mesh, buffers: Sequence[Values]) -> list[tuple[Values, Any]]:
    """Return for each rank the part of its buffer that holds elements, and their place in the global array."""
    assert all(value.dtype == numpy_dtype(port.dtype) for value in buffers)
    layout, found = Layout.parse(port.layout), []
    for rank, value in enumerate(buffers):
        offsets = layout.offsets(mesh, port.global_shape, rank)
        valid = layout.valid_shape(mesh, port.global_shape, rank)
        if 0 in valid:
            continue
        source = tuple(slice(o, o + n) for o, n in zip(offsets, valid, strict=True))
        whole = valid == port.global_shape
        inside: tuple[Any, ...] = (*(slice(0, n) for n in valid), ...)  # of no dims: a view too
        found.append((value[inside], ... if whole else source))
    return found
