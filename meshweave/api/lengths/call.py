"""Call a program whose sizes each call chooses: arguments go to the start of buffers that are as large as the bounds.

Results come from there. Only the elements that there are get copied; behind them lies what earlier calls left, or zero.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from meshweave.api.lengths.memory import ArenaGrowth, arena_growth
from meshweave.api.lowered import Compiled, Lowered
from meshweave.api.program import reported
from meshweave.api.signature import check_fits
from meshweave.bundle import Port, numpy_dtype
from meshweave.errors import UsageError
from meshweave.frontends.python.program import ArgumentSpec
from meshweave.hints.fast_paths import as_choice
from meshweave.layout import Layout, Mesh
from meshweave.layout.lengths import Dim, Formula, Sizes, SizesOfDim
from meshweave.runtime.arrays.array import Array, run_arrays
from meshweave.runtime.arrays.blocks import plain
from meshweave.runtime.arrays.elements import stored
from meshweave.runtime.forks import new_lock
from meshweave.runtime.job.current import check_alone
from meshweave.runtime.local.dispatch import Dispatch, pieces
from meshweave.runtime.memory import Values
from meshweave.runtime.program import buffer

if TYPE_CHECKING:
    from meshweave.api.explain import Explanation
    from meshweave.api.program import Program

OpenShape = tuple[int | Dim, ...]
_EVEN = 16  # elements of 4 bytes in a line: of buffers of such bounds none is rounded up
_LONGEST = 1 << 18  # characters of a program that `explain` plans anew for some bounds


@dataclass(frozen=True)
class Lengths:
    """Describe what calls of a program may choose.

    dims: the sizes; memory is planned for their bounds. shapes: of the arguments, with dims; None: as in `specs`.
    results: the sizes of each dim of each result; the program has a dim for each of them. bounded: the text of the
    program for other bounds; None where there is only what is compiled.
    """

    dims: tuple[Dim, ...]
    shapes: tuple[OpenShape | None, ...]
    results: Sequence[Sequence[SizesOfDim]]
    bounded: Callable[[Sizes], str] | None = None


class LengthsCompiled(Compiled):
    """Hold a loaded program for arguments of any size up to the bounds of its dims; call it like the function."""

    def __init__(
        self,
        lowered: Lowered,
        program: Program,
        seconds: float,
        lengths: Lengths,
        rest: Hashable = None,
    ) -> None:
        """Make it ready for calls. rest: what it is compiled for but for the kinds of arguments."""
        check_alone(lowered.mesh, f"{lowered.name}: sizes that each call chooses")
        super().__init__(lowered, program, seconds)
        self.dims, self.shapes, self._bounded = lengths.dims, lengths.shapes, lengths.bounded
        self.chosen = tuple(dim.name for dim in self.dims)
        self._rest = rest
        self.is_closed = False
        self._lock = new_lock()
        self._dispatches: dict[tuple[bool, ...], tuple[Dispatch, list[Array]]] = {}
        self._buffers = [
            None
            if shape is None or not any(isinstance(s, Dim) for s in shape)
            else _Input(p, lowered.mesh)
            for shape, p in zip(self.shapes, self._ports)
        ]
        for port in program.outputs:
            if port.takes is not None and self._buffers[port.takes] is not None:
                raise UsageError(
                    f"argument {lowered.names[port.takes]}: it is donated, and has a size that each call chooses: "
                    "its buffer is as large as the bound, and stays"
                )
        self._results = [
            _Result(p, names, lowered.mesh) for p, names in zip(program.outputs, lengths.results)
        ]

    def takes(self, rest: Hashable, specs: Sequence[ArgumentSpec]) -> bool:
        """Tell whether a call is one of this program.

        Raises UsageError, naming argument and dim, where but for its sizes it would be.
        """
        mine = self.lowered.specs
        if rest != self._rest or len(specs) != len(mine):
            return False
        for given, spec, shape in zip(specs, mine, self.shapes):
            wanted: OpenShape = spec.shape if shape is None else shape
            if (given.dtype, given.weak, len(given.shape)) != (spec.dtype, spec.weak, len(wanted)):
                return False
            if any(
                n != right and not isinstance(right, Dim) for n, right in zip(given.shape, wanted)
            ):
                return False
        self.sizes([spec.shape for spec in specs])
        return True

    def sizes(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """Return the size of each dim in a call, given the shapes of its arguments.

        Raises UsageError, which names argument and dim, where one does not fit.
        """
        found: dict[str, int] = {}
        for given, spec, shape, name in zip(
            shapes, self.lowered.specs, self.shapes, self.lowered.names
        ):
            wanted: OpenShape = spec.shape if shape is None else shape
            if len(given) != len(wanted):
                raise UsageError(f"argument {name}: {len(given)} dims, {len(wanted)} are right")
            for d, (size, right) in enumerate(zip(given, wanted)):
                _check_size(f"argument {name}: dim {d}", size, right, found)
        return found

    def call(self, leaves: Sequence[Any]) -> Any:
        """Run the program on the leaves of the arguments; return what the function returns, with Arrays as leaves."""
        sizes = self.sizes([np.shape(value) for value in leaves])
        for value, spec, name in zip(leaves, self.lowered.specs, self.lowered.names):
            check_fits(value, spec, name)
        counts = [np.asarray(sizes[dim.name], np.int64) for dim in self.dims]
        held = self.captured
        with self._lock:
            values = [
                self._ready(value, spec, layout) if into is None else into.filled(value, spec, name)
                for value, spec, layout, into, name in zip(
                    *(leaves, self.lowered.specs, self._layouts, self._buffers, self.lowered.names)
                )
            ]
            rest = (*held, *counts, *self.program.weights)
            arrays = run_arrays(self._executable, [*values, *rest], len(rest))
        cuts = zip(self._results, arrays)
        return self.returned([result.cutter(sizes)(array.held) for result, array in cuts])

    def fast(
        self, args: Sequence[Any], kept: Mapping[int, Array] | None = None
    ) -> Callable[[Sequence[Any]], Any]:
        """Return a call for arguments just like these, of these sizes, that checks nothing again.

        kept: those of them that later calls have too, by number: they are not looked at again.
        """
        chosen = [into is not None for into in self._buffers]
        right = [
            isinstance(a, np.ndarray | Array) if own else self._ready(a, spec, layout) is a
            for a, own, spec, layout in zip(args, chosen, self.lowered.specs, self._layouts)
        ]
        sharded = (
            *(own or isinstance(a, Array) for a, own in zip(args, chosen)),
            *(True for _ in self.captured), *(False for _ in self.dims), *(True for _ in self.program.weights),
        )  # fmt: skip
        if not all(right) or not Dispatch.applies(self._executable, sharded):
            return self.call
        sizes = self.sizes([np.shape(a) for a in args])
        filled = [(k, f) for k, f in enumerate(self._buffers) if f is not None]
        counts = [np.asarray(sizes[dim.name], np.int64) for dim in self.dims]
        rest = (*self.captured, *counts, *self.program.weights)
        own = enumerate(rest, len(args))
        stay = {**(kept or {}), **{k: into.array for k, into in filled}}
        stay |= {k: value for k, value in own if isinstance(value, Array)}
        dispatch, held = self._dispatches.get(sharded, (None, []))
        if dispatch is None or [*map(id, held)] != [*map(id, stay.values())]:
            dispatch = Dispatch(self._executable, sharded, stay)
            self._dispatches[sharded] = dispatch, [*stay.values()]
        moves = [(k, into.moves(np.shape(args[k]))) for k, into in filled]
        cuts = [result.cutter(sizes) for result in self._results]

        def run(given: Sequence[Any]) -> Any:
            with self._lock:
                for k, places in moves:
                    value = _as_stored(given[k], self._ports[k].dtype)
                    for into, place in places:
                        into[...] = value[place]
                rows = dispatch((*given, *rest))
            if len(rows) == 1:
                return self.returned([cut((one,)) for cut, one in zip(cuts, rows[0])])
            return self.returned([cut([r[k] for r in rows]) for k, cut in enumerate(cuts)])

        return run if all(into.is_plain for _, into in filled) else self.call

    def title(self) -> str:
        """Return what tables about the program are called, with the sizes that calls may choose."""
        ends = ", ".join(f"{dim.name} up to {dim.max}" for dim in self.dims)
        return f"{super().title()}, {ends}"

    def explain(self) -> Explanation:
        """Draw tables about the program for the bounds, then say what arguments and results take of any size."""
        shapes = [
            tuple([s.name if isinstance(s, Dim) else s for s in shape or spec.shape])
            for shape, spec in zip(self.shapes, self.lowered.specs)
        ]
        results = [result.shape for result in self._results]
        ports = [*self._ports[: len(shapes)], *self.program.outputs]
        total = Formula(0)
        for port, shape in zip(ports, [*shapes, *results], strict=True):
            nbytes = Formula(numpy_dtype(port.dtype).itemsize if port.takes is None else 0)
            total = total.plus(reduce(Formula.times, map(_formula, shape), nbytes))
        said = [f"arguments and results, whole: {total} bytes"]
        if self._bounded is not None and len(self.lowered.program.text) > _LONGEST:
            said.append("everything between: arena_growth() says how it grows, and plans it anew")
        elif (growth := self.arena_growth()) is not None:
            said.append(f"everything between, on a rank: {growth}")
        return super().explain().extended("\n".join([*said, ""]))

    def arena_growth(self) -> ArenaGrowth | None:
        """Return how the memory between arguments and results grows with the bounds; None where that is not known.

        The program is planned anew for some smaller bounds.
        """
        bounded, lowered, mesh = self._bounded, self.lowered, self.program.mesh
        if bounded is None:
            return None

        def nbytes(bounds: Sizes) -> int:
            decided = reported(
                *(bounded(bounds), lowered.name, mesh if mesh.axes else None, lowered.engine),
                kernels=as_choice(lowered.kernels),
                verify=False,
            )
            return decided.arena_bytes

        return arena_growth(self.dims, nbytes, _EVEN * mesh.nranks)

    def close(self) -> None:
        """Release threads, processes and memory."""
        self.is_closed = True
        super().close()


def _check_size(who: str, size: int, right: int | Dim, found: dict[str, int]) -> None:
    """Note the size of a dim. Raises UsageError, after `who`, for one that is not right."""
    if not isinstance(right, Dim):
        if size != right:
            raise UsageError(f"{who} has size {size}, {right} is right")
        return
    if size not in right.sizes:
        raise UsageError(f"{who} has size {size}, {right.name} may be {right.min} to {right.max}")
    if found.setdefault(right.name, size) != size:
        raise UsageError(f"{who} has size {size}, {right.name} is {found[right.name]} in this call")


class _Input:
    """Keep the buffers of an argument, as large as the bounds."""

    def __init__(self, port: Port, mesh: Mesh) -> None:
        self._port, self._mesh, self._layout = port, mesh, Layout.parse(port.layout)
        self.is_plain = plain(self._layout)

    @cached_property
    def array(self) -> Array:
        """Return the buffers as an Array."""
        shards = [buffer(self._port) for _ in range(self._mesh.nranks)]
        for shard in shards:
            shard.fill(0)
        return Array(shards, self._mesh, self._layout, self._port.global_shape, self._port.dtype)

    def moves(self, shape: Sequence[int]) -> list[tuple[Values, tuple[slice, ...]]]:
        """Return the parts of the buffers that an argument of this shape goes to, and where each comes from."""
        found = []
        for into, place in pieces(self._port, self._mesh, self.array.held):
            whole = tuple([slice(0, n) for n in into.shape])
            begins = [s.start for s in (whole if place is ... else place)]
            counts = [max(0, min(n, size - at)) for n, size, at in zip(into.shape, shape, begins)]
            if 0 not in counts:
                source = tuple([slice(at, at + n) for at, n in zip(begins, counts)])
                found.append((into[tuple([slice(0, n) for n in counts])], source))
        return found

    def filled(self, value: Any, spec: ArgumentSpec, name: str) -> Array:
        """Put the elements of an argument into the buffers; return them as an Array."""
        given = _as_stored(value, self._port.dtype)
        if given.dtype != spec.dtype.numpy:
            raise UsageError(f"argument {name}: dtype {given.dtype}, {spec.dtype.numpy} is right")
        if not self.is_plain:
            whole = np.zeros(self._port.global_shape, given.dtype)
            whole[tuple(map(slice, given.shape))] = given
            return Array.from_numpy(
                whole, mesh=self._mesh, layout=self._layout, dtype=self._port.dtype
            )
        for into, place in self.moves(given.shape):
            into[...] = given[place]
        return self.array


class _Result:
    """Take the elements of a result that there are out of one as large as the bounds."""

    def __init__(self, port: Port, dims: Sequence[SizesOfDim], mesh: Mesh) -> None:
        """dims: the sizes of each dim; the port has a dim for each of them."""
        self._port, self._mesh, self._layout = port, mesh, Layout.parse(port.layout)
        self._dims = dims

    @property
    def shape(self) -> tuple[int | str | Formula, ...]:
        """Return the shape of the port, with names in the place of sizes that a call chooses."""
        return tuple([size for sizes in self._dims for size in sizes])

    def cutter(self, sizes: Sizes) -> Callable[[Sequence[Values]], Array]:
        """Return what makes the result of a call of these sizes from what the ranks hold."""
        port, shape = self._port, tuple([_number(size, sizes) for size in self.shape])
        chosen = [d for d, size in enumerate(self.shape) if not isinstance(size, int)]
        alone = shape != port.global_shape and not self._layout.partial
        inside = tuple([slice(shape[d]) if d in chosen else slice(None) for d in range(len(shape))])
        if any(len(own) != 1 for own in self._dims):
            merged = tuple([prod([_number(s, sizes) for s in own]) for own in self._dims])
            return lambda shards: self._merged(shards, inside, merged)
        if not alone or any(self._layout.axes_of(d) for d in chosen) or not plain(self._layout):
            return lambda shards: self._cut(shards, shape)
        local = self._layout.allocation_shape(self._mesh, shape)
        shards = [np.empty(local, numpy_dtype(port.dtype))] * self._mesh.nranks
        like = Array(shards, self._mesh, self._layout, shape, port.dtype)
        return lambda shards: like.holding([np.ascontiguousarray(s[inside]) for s in shards])

    def _array(self, shards: Sequence[Values]) -> Array:
        port = self._port
        return Array(shards, self._mesh, self._layout, port.global_shape, port.dtype)

    def _cut(self, shards: Sequence[Values], shape: tuple[int, ...]) -> Array:
        port, array = self._port, self._array(shards)
        if shape == port.global_shape:
            return array.alone()
        if not plain(self._layout):
            whole = array.numpy()[tuple(map(slice, shape))]
        else:
            whole = np.empty(shape, numpy_dtype(port.dtype))
            for part, place in pieces(port, self._mesh, shards):
                into = whole if place is ... else whole[place]
                into[...] = part[tuple(map(slice, into.shape))]
        return Array.from_numpy(whole, mesh=self._mesh, layout=self._layout, dtype=port.dtype)

    def _merged(
        self, shards: Sequence[Values], inside: tuple[slice, ...], shape: tuple[int, ...]
    ) -> Array:
        """Return a result of which a dim is a product of sizes, laid out as its major sizes are."""
        whole = np.ascontiguousarray(self._array(shards).numpy()[inside]).reshape(shape)
        ends = np.cumsum([len(own) for own in self._dims])
        dims = [self._layout.dims[end - len(own)] for end, own in zip(ends, self._dims)]
        layout = Layout(tuple(dims))
        return Array.from_numpy(whole, mesh=self._mesh, layout=layout, dtype=self._port.dtype)


def _as_stored(value: Any, dtype: str) -> Values:
    """Return an argument as buffers hold it, of bf16 the bits; one of another dtype as it is."""
    if isinstance(value, Array) and value.kind.is_plain:
        return value.held[0]
    given = value if isinstance(value, np.ndarray) else np.asarray(value)
    return stored(given, dtype) if dtype == "bf16" else given


def _number(size: str | int | Formula, sizes: Sizes) -> int:
    return _formula(size).at(sizes)


def _formula(size: str | int | Formula) -> Formula:
    """Return a size as a formula."""
    if isinstance(size, Formula):
        return size
    return Formula.product(1, [size]) if isinstance(size, str) else Formula(size)
