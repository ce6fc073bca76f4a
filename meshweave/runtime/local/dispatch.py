"""Call a program of the engine `local` quickly: buffers that stay, copies that are planned once, one foreign call.

The first call of a kind is checked in full (`runtime.arrays.array.place`); when a cache then recognises dtypes and
shapes, no further check is needed. Small arguments, whose call costs more than their bytes, are copied into the buffer
that the program's table points at for good, and small results out of one. Arrays are not copied: the table points at
their shards. Nor are larger results: each call writes them to new memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from meshweave.bundle import Manifest, Port, numpy_dtype
from meshweave.layout import Layout, Mesh
from meshweave.runtime.arrays.array import check_given_once
from meshweave.runtime.arrays.blocks import plain
from meshweave.runtime.arrays.elements import stored
from meshweave.runtime.engine import Executable
from meshweave.runtime.forks import new_lock
from meshweave.runtime.local.engine import LocalCall, LocalExecutable
from meshweave.runtime.memory import NOTHING, Values, address_of, addressed_array
from meshweave.runtime.program import buffer, prepared

LIMIT = 1 << 20  # bytes of arguments to copy: above, that costs more than the checks
COPIED = 1 << 14  # bytes of a result that is copied: above, that costs more than new memory


class Dispatch:
    """Call a program with arguments of the right dtypes and shapes: global NumPy arrays, or arrays of shards.

    The shards of an array are read where they lie, if compiled code can do that.
    """

    def __init__(
        self,
        executable: LocalExecutable,
        sharded: Sequence[bool],
        kept: Mapping[int, Any] | None = None,
    ) -> None:
        """Allocate the buffers and plan the copies; `applies` must hold.

        sharded: for each argument whether its `shards` are given, in the program's own layout. kept: those of them that
        are the same Array in all calls, by number: calls do not look at them again.
        """
        manifest, mesh, kept = executable.manifest, executable.mesh, kept or {}
        whole = [_alike(port) and not local for port, local in zip(manifest.inputs, sharded)]
        given = [
            [NOTHING if local else buffer(port) for port, local in zip(manifest.inputs, sharded)]
            for _ in range(mesh.nranks)
        ]
        for row in given:
            for index, value in enumerate(row):
                value.fill(0)  # padding: whatever it holds, no garbage that traps
                if whole[index]:
                    row[index] = given[0][index]  # the ranks read one buffer
        self._manifest = manifest
        own = [(i, p) for i, p in enumerate(manifest.outputs) if p.takes is None]
        # Outputs, and what the array of each is like.
        self._fresh = [
            (i, p.local_shape, numpy_dtype(p.dtype), p.nbytes) for i, p in own if p.nbytes > COPIED
        ]
        self._small = [i for i, p in own if p.nbytes <= COPIED]
        results = [
            [buffer(p) if i in self._small else NOTHING for i, p in enumerate(manifest.outputs)]
            for _ in range(mesh.nranks)
        ]
        self._call = LocalCall(executable, given, results)
        self._execute = executable.execute
        self._lock = new_lock()
        self._ports, self._outputs = manifest.inputs, results
        # The arguments of which buffers hold bits.
        self._bits = {index for index, port in enumerate(manifest.inputs) if port.dtype == "bf16"}
        self._copies: list[tuple[int, Values, Any]] = []  # argument, target, place in its array
        self._shards: list[int] = []  # the arguments that are shards, and not kept
        self._stay: list[Values] = []  # the shards of those that are kept, or copies
        for index, (port, local) in enumerate(zip(manifest.inputs, sharded, strict=True)):
            column = [row[index] for row in given]
            if index in kept:
                self._point_at(index, kept[index].held)
            elif local:
                self._shards.append(index)
            elif whole[index]:
                self._copies.append((index, column[0], ...))
            else:
                self._copies += [(index, *piece) for piece in pieces(port, mesh, column)]
        places = {index: place for place, index in enumerate(self._shards)}
        # Of each donated argument its number, its place among those that are shards, and the output that takes it.
        self._donated = [(i, places[i], output) for i, output in manifest.donated.items()]
        # of each such argument and rank: the id of the shard that the table points at, 0 where it is a copy or none
        self._seen = [0] * (len(self._shards) * mesh.nranks)
        self._kept: list[Any] = [None] * len(self._seen)  # references to these, and the copies

    @staticmethod
    def applies(executable: Executable, sharded: Sequence[bool]) -> bool:
        """Tell whether this engine runs the program, with little to copy, in types and layouts that copies serve."""
        if not isinstance(executable, LocalExecutable):
            return False
        manifest: Manifest = executable.manifest
        inputs = list(zip(manifest.inputs, sharded, strict=True))
        if not all(sharded[index] for index in manifest.donated):
            return False  # its copy is the result's, and another one in each call
        copied = [port.nbytes for port, local in inputs if not local]
        if executable.mesh.nranks * sum(copied) > LIMIT:
            return False
        return all(local or plain(Layout.parse(port.layout)) for port, local in inputs)

    def __call__(self, arrays: Sequence[Any]) -> list[list[Values]]:
        """Run once; return new results of each rank. Raises RankError when a rank fails or the job stalls."""
        with self._lock:
            for index, target, source in self._copies:
                value = arrays[index]
                target[...] = (stored(value, "bf16") if index in self._bits else value)[source]
            shards = [arrays[index].held for index in self._shards]
            found = _names(shards) if shards else []
            if self._donated:
                check_given_once(self._manifest, arrays)
                # What the table points at was given up before, or copied to where code can work.
                fits = found == self._seen
                for index, place, _ in self._donated:
                    shards[place] = arrays[index].given_up(fits)
                found = _names(shards)
            if found != self._seen:
                self._point(found, shards)
            rows = [row.copy() for row in self._outputs]
            for rank, row in enumerate(rows):
                for index, shape, dtype, nbytes in self._fresh:
                    row[index], address = addressed_array(shape, dtype, nbytes)
                    self._call.write(rank, index, address)
                for _, place, output in self._donated:
                    row[output] = shards[place][rank]
            self._call.held = (arrays, shards, rows)  # kept where a rank never comes back
            self._execute(self._call)
            self._call.held = None
            for row in rows:
                for index in self._small:
                    row[index] = row[index].copy()
            return rows

    def _point_at(self, index: int, shards: Sequence[Values]) -> None:
        """Let the program read an argument in these shards in all calls, or in copies where it cannot read them."""
        for rank, shard in enumerate(shards):
            value = prepared(shard, self._ports[index])
            self._call.read(rank, index, address_of(value))
            self._stay.append(value)

    def _point(self, found: Sequence[int], shards: Sequence[Sequence[Values]]) -> None:
        """Let the program read shards of arrays, or copies of those that it cannot read, where they are other ones."""
        flat = [shard for held in shards for shard in held]
        for place, (name, shard) in enumerate(zip(found, flat, strict=True)):
            if name == self._seen[place]:
                continue
            number, rank = divmod(place, len(self._outputs))
            index = self._shards[number]
            value = prepared(shard, self._ports[index])
            self._call.read(rank, index, address_of(value))
            self._seen[place] = name if value is shard else 0
            forget = partial(_forget, self._seen, place)
            self._kept[place] = weakref.ref(shard, forget) if value is shard else value


def _names(shards: Sequence[Sequence[Values]]) -> list[int]:
    """Return the ids of the shards of all arrays and ranks."""
    return [id(shard) for held in shards for shard in held]


def _forget(seen: list[int], place: int, _: object) -> None:
    """Note that a shard is no more: another one may get its id."""
    seen[place] = 0


def _alike(port: Port) -> bool:
    """Tell whether every rank holds the whole of a port."""
    return port.local_shape == port.global_shape and plain(Layout.parse(port.layout))


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
