"""The fast path of a call on the engine `local`: buffers that stay, copies that are planned once, one foreign call.

A first call of a kind is checked in full (`runtime.array.place`); what a cache then recognises by dtype and shape needs
no more looking at. It is for small arguments, whose call costs more than their bytes: each is copied into the buffer
that the program's table points at for good, and each result out of one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from meshweave.bundle import Manifest, Port, numpy_dtype
from meshweave.layout import Layout, Mesh
from meshweave.runtime.local import LocalExecutable
from meshweave.runtime.program import Values, buffer

LIMIT = (
    1 << 20
)  # bytes of all buffers of all ranks: above, the copies would cost more than the checks


class Dispatch:
    """Calls of a program with arguments of the right dtypes and shapes: global NumPy arrays, or arrays of shards."""

    def __init__(self, executable: LocalExecutable, sharded: Sequence[bool]) -> None:
        """The buffers and the copies. sharded: of each argument whether it is given by its `shards`, which lie as the
        program takes them. `applies` must hold.
        """
        manifest, mesh = executable.manifest, executable.mesh
        given = [[buffer(port) for port in manifest.inputs] for _ in range(mesh.nranks)]
        for row in given:
            for value in row:
                value.fill(0)  # padding: whatever it holds, no garbage that traps
        self._call = executable.bind(given)
        self._execute = executable.execute
        self._lock = threading.Lock()
        self._outputs = self._call.outputs
        self._copies: list[
            tuple[int, Values, Any]
        ] = []  # argument, target, place in the global array
        self._shards: list[tuple[int, int, Values]] = []  # argument, rank, target
        for index, (port, local) in enumerate(zip(manifest.inputs, sharded, strict=True)):
            column = [row[index] for row in self._call.inputs]
            if local:
                self._shards += [(index, rank, value) for rank, value in enumerate(column)]
            else:
                self._copies += [(index, *piece) for piece in pieces(port, mesh, column)]

    @staticmethod
    def applies(executable: Any, sharded: Sequence[bool]) -> bool:
        """Is the program one of this engine, small, and of types and layouts that plain copies serve?"""
        if not isinstance(executable, LocalExecutable):
            return False
        manifest: Manifest = executable.manifest
        ports = (*manifest.inputs, *manifest.outputs)
        if executable.mesh.nranks * sum(port.nbytes for port in ports) > LIMIT:
            return False
        return all(
            local or (port.dtype != "bf16" and plain(Layout.parse(port.layout)))
            for port, local in zip(manifest.inputs, sharded, strict=True)
        )

    def __call__(self, arrays: Sequence[Any]) -> list[list[Values]]:
        """Run once: the results of each rank, newly made. Raises RankError when a rank fails or the job stalls."""
        with self._lock:
            for index, target, source in self._copies:
                target[...] = arrays[index][source]
            for index, rank, target in self._shards:
                target[...] = arrays[index].shards[rank]
            self._execute(self._call)
            return [[value.copy() for value in row] for row in self._outputs]


def plain(layout: Layout) -> bool:
    """Does each rank hold one block of the global array, in its order?"""
    return layout.is_block and not layout.partial and layout.without_order() == layout


def pieces(port: Port, mesh: Mesh, buffers: Sequence[Values]) -> list[tuple[Values, Any]]:
    """For each rank the part of its buffer that holds elements, and where they are in the global array."""
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
