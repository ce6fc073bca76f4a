"""Write loop nests for the cpu: scf loops, loads and stores at the outermost loop they depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from meshweave.ir.bindings import ir
from meshweave.ir.expressions import (
    CONTRACT,
    Accumulator,
    Apply,
    Constant,
    Load,
    inputs,
    needed,
    type_text,
)
from meshweave.lowering.buffers.steps import element_bytes
from meshweave.lowering.cpu import tiles
from meshweave.lowering.cpu.products.blocks import WIDTHS, parts_of
from meshweave.lowering.cpu.text import FunctionWriter
from meshweave.lowering.nests.bind import LoopNest, NestNode, Store, loops_of
from meshweave.lowering.nests.evaluate import Iteration, stored
from meshweave.lowering.nests.rows import loop_order
from meshweave.lowering.writer import Value, corrected, two_sum
from meshweave.plan.machine import vectors

SHORT = 32  # LLVM unrolls rows of so few elements before it looks for vectors, and then finds none
TINY = 8  # elements of rows that LLVM had better write out, and take several together
WRITTEN_OUT = 64  # iterations of loops at most that LLVM writes out before it looks for vectors
Counters = Mapping[int, Value]
VECTORS = {f"arith.{name}f" for name in ("add", "sub", "mul", "div", "neg")} | {"math.fma"}
RUN = 3 << 9
"""Bytes that are added in lanes: of 32-bit numbers 12 addends in each, with four vectors of 256 bits."""
_WIDTH = {"bf16": 16, "f16": 16, "f32": 32, "i32": 32, "i64": 64}  # of what is converted
FASTER = {"arith.addf", "arith.mulf"}  # reductions that may be done in another order


class NestLoops(Iteration):
    """Write one nest inside loops `rows`, which are open."""

    def __init__(self, writer: FunctionWriter, nest: LoopNest, rows: Sequence[Value]) -> None:
        inner = len(nest.sizes) - len(rows)
        super().__init__(writer.frame, nest, [*rows, *[None] * inner])
        self.writer = writer
        self.order = loop_order(nest, len(rows))
        self.staged: dict[int, Value] = {}  # load -> where its element is in a local buffer
        self.needs = loops_of(nest)
        self.wanted = needed(nest.code, nest.results)
        self.types = {store.value: type_text(nest.code[store.value]) for store in nest.stores}

    def write(self) -> None:
        """Write the nest. Reductions are in registers when a reduction loop is innermost, else in memory."""
        inner, reductions = self.order, self.nest.reductions
        turned = tiles.transposed(self.nest, inner)
        first = next((k for k, d in enumerate(inner) if d in reductions), len(inner))
        if turned is not None:
            dim, loads = turned
            others = [d for d in inner[:-1] if d != dim]
            self._loops(others, lambda: self._tiled((dim, inner[-1]), loads))
        elif not reductions:
            self._loops(inner, self._store_all)
        elif inner[-1] in reductions:
            assert all(d in reductions for d in inner[first:])
            self._loops(inner[:first], lambda: self._registers(inner[first:]))
        else:
            self._loops(inner[:first], lambda: self._memory(inner[first:]))

    def apply(self, node: Apply, operands: Sequence[Value]) -> Value:
        """Write a scalar op."""
        return self.writer.op(node.name, self.settings(node), operands, str(node.type))

    def settings(self, node: Apply) -> str:
        """Return the attributes of an op."""
        return ", ".join([f"{k} = {self._setting(node, k, attr)}" for k, attr in node.attributes])

    def _setting(self, node: Apply, key: str, attr: ir.Attribute) -> str:
        """Return an attribute's text.

        f32 and f64 sums of a reduction may be reordered.
        """
        text = str(attr)
        if key != "fastmath" or node.name not in FASTER or node.is_exact:
            return text
        reduces = any(isinstance(self.nest.code[k], Accumulator) for k in node.operands)
        if not reduces or str(node.type) not in ("f32", "f64"):
            return text
        return f"#arith.fastmath<reassoc{', contract' if CONTRACT in text else ''}>"

    # Loops.

    def end(self, dim: int) -> Value | int:
        """Return where a loop ends."""
        return self.writer.end(self.nest, dim)

    def _loops(self, dims: Sequence[int], inside: Callable[[], None]) -> None:
        """Write loops; each node is computed in the outermost loop that suffices for it."""
        self._emit()
        for dim in dims:
            self.place[dim] = self.writer.open(self.end(dim))
            self._emit()
        inside()
        for dim in reversed(dims):
            self.place[dim] = None
            self.writer.close(as_written=self._has_vectors(dim))

    def _has_vectors(self, dim: int) -> bool:
        """Tell whether a loop is one of whole vectors, which LLVM would write out element by element."""
        return dim == self.order[-1] and TINY < self.nest.sizes[dim] <= WRITTEN_OUT

    def _emit(self) -> None:
        """Compute every wanted node that the open loops suffice for."""
        opened = {d for d, counter in enumerate(self.place) if counter is not None}
        for number, node in enumerate(self.nest.code):
            if number in self.values or number not in self.wanted or isinstance(node, Accumulator):
                continue
            before = () if number in self.staged else inputs(node)
            if self.needs[number] <= opened and all(k in self.values for k in before):
                self.values[number] = self._computed(number, node)

    def _computed(self, number: int, node: NestNode) -> Value:
        if number not in self.staged:
            return self.node(node)
        kind = type_text(node)
        return self.frame.loaded(self.writer.load(self.staged[number], stored(kind)), kind)

    def _hold(self, values: Iterable[tuple[int, Value]]) -> None:
        """Give the accumulators of results their values, and compute what follows from them."""
        held = dict(values)
        for number, node in enumerate(self.nest.code):
            if isinstance(node, Accumulator) and node.number in held:
                self.values[number] = held[node.number]
        self._emit()

    def _tiled(self, dims: tuple[int, int], loads: Sequence[int]) -> None:
        """Write two loops in tiles, for which the transposed loads are copied first."""
        writer, sizes = self.writer, [self.end(d) for d in dims]
        starts, extents = [], []
        for size in sizes:
            starts.append(writer.open(size, tiles.TILE))
            extents.append(tiles.minimum(writer, starts[-1], size))
        whole = all(isinstance(n, int) and n % tiles.WIDE == 0 for n in sizes)

        def enter(*inside: Value) -> None:
            for dim, start, part in zip(dims, starts, inside):
                self.place[dim] = writer.plus(start, part)

        buffers = {n: self._stage(n, enter, extents, whole) for n in loads}
        row, column = writer.open(extents[0]), writer.open(extents[1])
        enter(row, column)
        for number, (buffer, nbytes) in buffers.items():
            self.staged[number] = tiles.element(writer, buffer, nbytes, row, column)
        self._store_all()
        writer.close(as_written=True)
        for _ in range(3):
            writer.close()

    def _stage(
        self, number: int, enter: Callable[..., None], extents: Sequence[Value], whole: bool
    ) -> tuple[Value, int]:
        """Copy the tile of one load; return the local buffer, and the bytes of an element."""
        load = self.nest.code[number]
        assert isinstance(load, Load)
        nbytes = element_bytes(load.type)
        buffer = tiles.buffer(self.writer, nbytes)

        def address(row: Value, column: Value) -> Value:
            enter(row, column)
            return self.frame.address(load.access, f"i{8 * nbytes}", self.place)

        tiles.stage(self.writer, buffer, nbytes, extents, whole, address)
        return buffer, nbytes

    # Results.

    def _store_all(self) -> None:
        """Compute and store the results; some add to what is there."""
        stores = enumerate(self.nest.stores)
        self._hold([(k, self._start(s)) for k, s in stores if s.reads or s.initial is not None])
        self._store_results()

    def _store_results(self) -> None:
        for store in self.nest.stores:
            self.store(store, self.values[store.value])

    def _start(self, store: Store) -> Value:
        """Return what a reduction starts from: its initial value, or what the buffer holds."""
        if store.initial is None:
            return self._held(store)
        return self._converted(self.values[store.initial], self.types[store.value])

    def _held(self, store: Store) -> Value:
        """Return what the place of a result holds."""
        return self._converted(self.load(store), self.types[store.value])

    def store(self, store: Store, value: Value) -> None:
        """Store a result, which may have been held in another type."""
        super().store(store, self._converted(value, str(store.type)))

    def _converted(self, value: Value, type_: str) -> Value:
        """Return a value in the type that a result is stored in, or held in."""
        if value.type == type_:
            return value
        longer = _WIDTH[type_] > _WIDTH[value.type]
        suffix = "f" if value.is_float else "si" if longer else "i"
        return self.writer.convert(f"arith.{'ext' if longer else 'trunc'}{suffix}", value, type_)

    def _registers(self, dims: Sequence[int], copies: Sequence[Counters] = ({},)) -> None:
        """Write the reduction loops, what they reduce carried from iteration to iteration.

        A long sum is right to a few units in the last place because its runs are summed each by itself, in lanes, and
        then added together with what rounding loses. copies: loops at which number, for each of the iterations that
        are done side by side.
        """
        stores = [(copy, store) for copy in copies for store in self.nest.stores]
        sums = [self._sums(k, store) for k, store in enumerate(self.nest.stores)] * len(copies)
        summed = [k for k, is_sum in enumerate(sums) if is_sum]
        outer, step, inner = self._runs(dims) if summed else ([], 1, list(dims))
        summed = summed if outer else []
        current = []
        for copy, store in stores:
            with self.at(copy):
                current.append(self._start(store))
        current += [self.writer.constant(0, current[k].type) for k in summed]
        opened: list[list[Value]] = []
        starts: dict[int, Value] = {}  # of the runs of a dim that is cut
        for dim in outer:
            cut = dim == outer[-1] and step > 1
            loop = self.writer.open_loop(0, self.end(dim), step if cut else 1, current)
            opened.append(loop.results)
            current = loop.carried
            if cut:
                starts[dim] = loop.counter
            else:
                self.place[dim] = loop.counter
                self._emit()
        totals, lost = current[: len(stores)], dict(zip(summed, current[len(stores) :]))
        values = self._run([*starts, *inner], starts, step, [
            self.writer.constant(-0.0, v.type) if k in lost else v for k, v in enumerate(totals)
        ], copies)  # fmt: skip
        for k in summed:
            values[k], lost[k] = two_sum(totals[k], values[k], lost[k])
        values = self._close([*values, *lost.values()], opened)
        for dim in dims:
            self.place[dim] = None
        lost = dict(zip(summed, values[len(stores) :]))
        for k, (copy, store) in enumerate(stores):
            with self.at(copy):
                self.store(store, corrected(values[k], lost[k]) if k in lost else values[k])

    @contextmanager
    def at(self, counters: Counters) -> Iterator[None]:
        """Have more loops at numbers, and what follows from them, for a while."""
        kept, places = self.values, list(self.place)
        self.values = dict(kept)
        for dim, counter in counters.items():
            self.place[dim] = counter
        self._emit()
        yield
        self.values, self.place = kept, places

    def _run(
        self,
        dims: Sequence[int],
        starts: Counters,
        step: int,
        current: list[Value],
        copies: Sequence[Counters],
    ) -> list[Value]:
        """Write the innermost loops, those of a run; return what they carry out."""
        opened = []
        for dim in dims:
            size, start = self.end(dim), starts.get(dim)
            end: Value | int = size
            if start is not None:
                end = self.writer.plus(start, tiles.minimum(self.writer, start, size, step))
            loop = self.writer.open_loop(start or 0, end, 1, current)
            self.place[dim], current = loop.counter, loop.carried
            opened.append(loop.results)
            if dim != dims[-1] or len(copies) > 1:
                self._emit()
        values, count = [], len(self.nest.stores)
        for k, copy in enumerate(copies):
            values += self._reduced(copy, current[k * count : (k + 1) * count])
        return self._close(values, opened)

    def _reduced(self, counters: Counters, held: Sequence[Value]) -> list[Value]:
        """Return what the results hold after an iteration, before which they hold `held`."""
        with self.at(counters):
            self._hold(enumerate(held))
            return [self.values[store.value] for store in self.nest.stores]

    def _close(self, values: list[Value], opened: Sequence[list[Value]]) -> list[Value]:
        """Close loops that hand `values` on; return the results of the outermost."""
        for results in reversed(opened):
            self.writer.close(values)
            values = results
        return values

    def _runs(self, dims: Sequence[int]) -> tuple[list[int], int, list[int]]:
        """Divide reduction loops: those over runs, the step of the last of them, the loops of a run."""
        width = max(element_bytes(s.type) for s in self.nest.stores)
        most, run, first = RUN // width, 1, len(dims)
        while first and run * self.nest.sizes[dims[first - 1]] <= most:
            first -= 1
            run *= self.nest.sizes[dims[first]]
        return list(dims[:first]), most // run, list(dims[first:])

    def _sums(self, number: int, store: Store) -> bool:
        """Tell whether a result is a sum of f32 or f64 that may be added in any order."""
        node, code = self.nest.code[store.value], self.nest.code
        uses = [
            k
            for k in self.wanted
            for at in inputs(code[k])
            if code[at] == Accumulator(number, store.type)
        ]
        return (
            isinstance(node, Apply)
            and node.name == "arith.addf"
            and str(node.type) in ("f32", "f64")
            and not node.is_exact
            and uses == [store.value]
        )

    def _memory(self, dims: Sequence[int]) -> None:
        """Write reduction loops around parallel ones: results are kept in memory in between."""
        if self.nest.started:
            self._nested([d for d in dims if d not in self.nest.reductions], self._store_starts)
        self._nested(dims, self._update)

    def _nested(self, dims: Sequence[int], inside: Callable[[], None]) -> None:
        """Write loops whose values are forgotten afterwards."""
        kept = dict(self.values)
        self._loops(dims, inside)
        self.values = kept

    def _store_starts(self) -> None:
        for store in self.nest.stores:
            if store.initial is not None:
                self.store(store, self.values[store.initial])

    def _update(self) -> None:
        self._hold([(k, self._held(store)) for k, store in enumerate(self.nest.stores)])
        self._store_results()


def short(nest: LoopNest, rows: int) -> bool:
    """Tell whether the innermost loop, inside another one, is short arithmetic on rows of one type of float."""
    if nest.reductions or len(nest.sizes) - rows < 2 or not 4 <= nest.sizes[-1] <= SHORT:
        return False
    if nest.limit(len(nest.sizes) - 1) is not None:
        return False
    types = {type_text(each) for each in nest.code} | {str(store.type) for store in nest.stores}
    return (
        len(types) == 1
        and types <= WIDTHS.keys()
        and all(map(fits_vectors, nest.code))
        and all(access.strides[-1] in (0, 1) for access in nest.accesses)
        and all(s.access.strides[-1] == 1 and s.initial is None for s in nest.stores)
    )


def fits_vectors(node: NestNode) -> bool:
    """Tell whether a node can be computed for a vector of elements."""
    if isinstance(node, Apply):
        return node.name in VECTORS
    return isinstance(node, (Load, Constant, Accumulator))


class ShortRows(NestLoops):
    """Write a nest whose rows are short: each in a few vectors, what is the same for all of it as a number."""

    def write(self) -> None:
        """Write the loops but for the innermost, in them the vectors of a row."""
        ndim = len(self.nest.sizes)
        self._loops(range(ndim - len(self.order), ndim - 1), self._row)

    def _row(self) -> None:
        kind = str(self.nest.stores[0].type)
        for at, count in parts_of(self.nest.sizes[-1], vectors().nbytes // WIDTHS[kind]):
            self.place[-1] = self.writer.number(at)
            made: dict[int, Value] = {}
            for number in sorted(self.wanted):
                made[number] = self._vector(number, made, kind, count)
            for store in self.nest.stores:
                place = self.frame.address(store.access, kind, self.place)
                self.writer.store(made[store.value], place, WIDTHS[kind])
        self.place[-1] = None

    def _vector(self, number: int, made: dict[int, Value], kind: str, count: int) -> Value:
        """Compute a node as a vector of `count` elements."""
        node, type_ = self.nest.code[number], f"vector<{count}x{kind}>"
        if number in self.values:
            return self.writer.spread(self.values[number], count)
        if isinstance(node, Apply):
            operands = [made[k] for k in node.operands]
            return self.writer.op(node.name, self.settings(node), operands, type_)
        assert isinstance(node, (Load, Accumulator))
        touch = node if isinstance(node, Load) else self.nest.stores[node.number]
        place = self.frame.address(touch.access, kind, self.place)
        return self.writer.load(place, type_, WIDTHS[kind])
