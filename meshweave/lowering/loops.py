"""Loop nests as MLIR text: a function on bare pointers, scf loops, loads and stores at the
outermost loop they depend on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from meshweave.lowering import tiles
from meshweave.lowering.bind import Access, Nest, Store
from meshweave.lowering.blocks import WIDTHS, blocks_of, blocks_text, parts_of, spread
from meshweave.lowering.kernels import Node
from meshweave.lowering.payload import CONTRACT, EXACT
from meshweave.lowering.rows import Unit
from meshweave.lowering.steps import element_bytes
from meshweave.lowering.text import Text
from meshweave.machine import vectors

SHORT = 32  # LLVM unrolls rows of so many elements before it looks for vectors, and then finds none
VECTORS = {f"arith.{name}f" for name in ("add", "sub", "mul", "div", "neg")} | {"math.fma"}
FASTER = {"arith.addf", "arith.mulf"}  # reductions that may be done in another order


def unit_text(name: str, unit: Unit) -> str:
    """The function `name` that does what the unit does."""
    product = blocks_of(unit.nests[0]) if len(unit.nests) == 1 else None
    if product is not None:
        return blocks_text(name, unit, product)
    text = Text()
    rows = [text.open(size) for size in unit.nests[0].sizes[: unit.rows]]
    for nest in unit.nests:
        (ShortRows if short(nest, unit.rows) else NestText)(text, nest, rows).write()
    text.close(len(rows))
    return text.function(name, unit)


class NestText:
    """Writes one nest inside loops `rows` that are open already."""

    def __init__(self, text: Text, nest: Nest, rows: list[str]) -> None:
        self.text, self.nest = text, nest
        self.ivs: dict[int, str] = dict(enumerate(rows))
        self.order = loop_order(nest, len(rows))
        self.values: dict[int, str] = {}
        self.accumulators: dict[int, str] = {}
        self.staged: dict[int, tuple[str, str, str]] = {}  # load -> local buffer, row, column
        self.needs = self._needs()
        self.wanted = _wanted(nest)

    def write(self) -> None:
        """Write the nest: reductions in registers when a reduction loop is innermost, else in
        memory.
        """
        inner, reductions = self.order, self.nest.reductions
        turned = tiles.transposed(self.nest, inner)
        if turned is not None:
            others = [d for d in inner[:-1] if d != turned[0]]
            self._loops(others, lambda: self._tiled(inner[-1], *turned))
        elif not reductions:
            self._loops(inner, self._store_all)
        elif inner[-1] in reductions:
            first = next(k for k, d in enumerate(inner) if d in reductions)
            assert all(d in reductions for d in inner[first:])
            self._loops(inner[:first], lambda: self._registers(inner[first:]))
        else:
            first = next(k for k, d in enumerate(inner) if d in reductions)
            self._loops(inner[:first], lambda: self._memory(inner[first:]))

    def _needs(self) -> list[frozenset[int]]:
        """Of each node the loops it depends on."""
        needs: list[frozenset[int]] = []
        for node in self.nest.code:
            if node[0] in ("load", "index"):
                strides = node[1].strides if node[0] == "load" else node[2]
                needs.append(frozenset(d for d, s in enumerate(strides) if s))
            else:
                needs.append(frozenset().union(*(needs[k] for k in _inputs(node))))
        return needs

    def _loops(self, dims: list[int], inside: Any) -> None:
        self._emit()
        for dim in dims:
            self.ivs[dim] = self.text.open(self.nest.sizes[dim])
            self._emit()
        inside()
        for dim in dims:
            self._close(dim)
            self.text.close()

    def _close(self, dim: int) -> None:
        """Forget the values of the innermost loop."""
        del self.ivs[dim]

    def _emit(self) -> None:
        """Compute every wanted node that the open loops suffice for."""
        for number, node in enumerate(self.nest.code):
            if number in self.values or number not in self.wanted:
                continue
            if node[0] == "acc" and node[1] not in self.accumulators:
                continue
            if self.needs[number] <= self.ivs.keys() and all(
                k in self.values for k in _inputs(node)
            ):
                self.values[number] = (
                    self._node(node)
                    if number not in self.staged
                    else (self._load_staged(number, node))
                )

    def _tiled(self, inner: int, dim: int, loads: list[int]) -> None:
        """Loops `dim` and `inner` in tiles, for which the transposed loads are copied first."""
        text, sizes = self.text, self.nest.sizes
        starts, extents = {}, {}
        for d in (dim, inner):
            starts[d] = text.open(sizes[d], tiles.TILE)
            extents[d] = tiles.minimum(text, starts[d], sizes[d])
        whole = sizes[dim] % tiles.WIDE == 0 and sizes[inner] % tiles.WIDE == 0
        buffers = {n: self._stage(n, dim, inner, starts, extents, whole) for n in loads}
        rows = {}
        for d in (dim, inner):
            rows[d] = text.open(extents[d])
            self.ivs[d] = text.let(f"arith.addi {starts[d]}, {rows[d]} overflow<nsw> : i64")
        self.staged = {n: (b, rows[dim], rows[inner]) for n, b in buffers.items()}
        self._store_all()
        text.close(4)
        for d in (dim, inner):
            self._close(d)

    def _stage(
        self, number: int, dim: int, inner: int, starts: Any, extents: Any, whole: bool
    ) -> str:
        """Copy the tile of one load to a local buffer."""
        text, (_, access, type_) = self.text, self.nest.code[number]
        nbytes = element_bytes(type_)
        local = tiles.buffer(text, nbytes)

        def address(place: dict[int, str]) -> str:
            for d, part in zip((dim, inner), (place[0], place[1])):
                self.ivs[d] = text.let(f"arith.addi {starts[d]}, {part} overflow<nsw> : i64")
            return self._address(access, f"i{8 * nbytes}")

        tiles.stage(text, local, nbytes, (extents[dim], extents[inner]), whole, address)
        for d in (dim, inner):
            self._close(d)
        return local

    def _load_staged(self, number: int, node: Node) -> str:
        local, row, column = self.staged[number]
        nbytes = element_bytes(node[2])
        return self._load_from(
            lambda kind: tiles.element(self.text, local, nbytes, row, column), str(node[2])
        )

    def _store_all(self) -> None:
        stores = enumerate(self.nest.stores)
        started = [k for k, s in stores if s.reads or s.initial is not None]
        self.accumulators = {k: self._start(self.nest.stores[k]) for k in started}
        self._emit()
        for store in self.nest.stores:
            self._store(store, self.values[store.value])

    def _start(self, store: Store) -> str:
        """What a reduction starts from: its initial value, or what the buffer holds."""
        if store.initial is not None:
            return self.values[store.initial]
        return self._load(store.access, store.type)

    def _registers(self, dims: list[int]) -> None:
        """The reduction loops, what they reduce carried from iteration to iteration."""
        text, types = self.text, [str(s.type) for s in self.nest.stores]
        current = [self._start(s) for s in self.nest.stores]
        opened = []
        for dim in dims:
            self.ivs[dim], current, results = text.open_carrying(
                self.nest.sizes[dim], current, types
            )
            opened.append(results)
            if dim != dims[-1]:
                self._emit()
        self.accumulators = dict(enumerate(current))
        self._emit()
        yielded = [self.values[s.value] for s in self.nest.stores]
        for dim, results in zip(reversed(dims), reversed(opened)):
            text.close_carrying(yielded, types)
            yielded = results
            self._close(dim)
        for store, value in zip(self.nest.stores, yielded):
            self._store(store, value)

    def _memory(self, dims: list[int]) -> None:
        """Reduction loops around parallel ones: the result is kept in memory between iterations."""
        parallel = [d for d in dims if d not in self.nest.reductions]
        if any(s.initial is not None for s in self.nest.stores):
            self._nested(parallel, self._store_starts)
        self._nested(dims, self._update)

    def _nested(self, dims: list[int], inside: Any) -> None:
        """Loops whose values are forgotten afterwards."""
        kept = dict(self.values)
        self._loops(dims, inside)
        self.values = kept

    def _store_starts(self) -> None:
        for store in self.nest.stores:
            if store.initial is not None:
                self._store(store, self.values[store.initial])

    def _update(self) -> None:
        self.accumulators = {
            k: self._load(s.access, s.type) for k, s in enumerate(self.nest.stores)
        }
        self._emit()
        for store in self.nest.stores:
            self._store(store, self.values[store.value])

    # One node, one access.

    def _node(self, node: Node) -> str:
        text, what = self.text, node[0]
        if what == "load":
            return self._load(node[1], node[2])
        if what == "constant":
            return text.constant(str(node[1]), str(node[2]))
        if what == "scalar":
            return f"%s{node[1]}"
        if what == "acc":
            return self.accumulators[node[1]]
        if what == "index":
            form = self._linear(node[1], node[2])
            value = text.let(f"arith.index_cast {form} : i64 to index")
            for scalar, factor in node[3]:
                part = f"%s{scalar}"
                if factor != 1:
                    part = text.let(
                        f"arith.muli {part}, {text.constant(str(factor), 'index')} : index"
                    )
                value = text.let(f"arith.addi {value}, {part} : index")
            return value
        if what == "gather":
            return self._gather(node)
        return self._op(node)

    def _op(self, node: Node) -> str:
        return self._applied(node, self.values)

    def _applied(self, node: Node, values: Mapping[int, str], type_: str = "") -> str:
        """An op on these values, all of type `type_` where that is said."""
        _, name, attributes, inputs, result = node
        types = ", ".join(
            type_ or str(_type_of(self.nest.code, self.nest.stores, k)) for k in inputs
        )
        marks = {key for key, _ in attributes}
        settings = ", ".join(
            f"{key} = {self._setting(name, key, attr, inputs, marks, result)}"
            for key, attr in attributes
            if key != CONTRACT
        )
        operands = ", ".join(values[k] for k in inputs)
        return self.text.let(
            f'"{name}"({operands}) {{{settings}}} : ({types}) -> {type_ or result}'
        )

    def _setting(
        self, name: str, key: str, attr: Any, inputs: tuple[int, ...], marks: set[str], type_: Any
    ) -> str:
        """An attribute's text; f32 and f64 sums of a reduction may be reordered, and where they are
        marked add products without rounding them first.
        """
        if key != "fastmath" or EXACT in marks or str(type_) not in ("f32", "f64"):
            return str(attr)
        reduces = any(self.nest.code[k][0] == "acc" for k in inputs)
        allowed = ["reassoc"] if reduces and name in FASTER else []
        allowed += ["contract"] if CONTRACT in marks else []
        return f"#arith.fastmath<{', '.join(allowed)}>" if allowed else str(attr)

    def _linear(self, const: int, strides: tuple[int, ...]) -> str:
        """const + sum of stride * loop index, an i64."""
        text, total = self.text, None
        for dim, stride in enumerate(strides):
            if not stride:
                continue
            part = self.ivs[dim]
            if stride != 1:
                factor = text.constant(str(stride))
                part = text.let(f"arith.muli {part}, {factor} overflow<nsw> : i64")
            total = (
                part
                if total is None
                else text.let(f"arith.addi {total}, {part} overflow<nsw> : i64")
            )
        if total is None:
            return text.constant(str(const))
        if const:
            total = text.plus(total, const)
        return total

    def _address(self, access: Access, type_: str) -> str:
        if not access.const and not any(access.strides):
            return f"%p{access.pointer}"
        offset = self._linear(access.const, access.strides)
        return self.text.let(
            f"llvm.getelementptr inbounds %p{access.pointer}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, {type_}"
        )

    def _load(self, access: Access, type_: Any) -> str:
        return self._load_from(lambda kind: self._address(access, kind), str(type_))

    def _load_from(self, address: Any, kind: str) -> str:
        text = self.text
        stored = {"i1": "i8", "index": "i64"}.get(kind, kind)
        value = text.let(f"llvm.load {address(stored)} : !llvm.ptr -> {stored}")
        if kind == "i1":
            return text.let(f"arith.trunci {value} : i8 to i1")
        return text.let(f"arith.index_cast {value} : i64 to index") if kind == "index" else value

    def _gather(self, node: Node) -> str:
        _, pointer, strides, inputs, type_ = node
        text, total = self.text, text_zero(self.text)
        for stride, number in zip(strides, inputs):
            part = text.let(f"arith.index_cast {self.values[number]} : index to i64")
            if stride != 1:
                part = text.let(f"arith.muli {part}, {text.constant(str(stride))} : i64")
            total = text.let(f"arith.addi {total}, {part} : i64")
        return self._load_from(
            lambda kind: text.let(
                f"llvm.getelementptr %p{pointer}[{total}] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}"
            ),
            str(type_),
        )

    def _store(self, store: Store, value: str) -> None:
        text, kind = self.text, str(store.type)
        stored = {"i1": "i8", "index": "i64"}.get(kind, kind)
        if kind == "i1":
            value = text.let(f"arith.extui {value} : i1 to i8")
        elif kind == "index":
            value = text.let(f"arith.index_cast {value} : index to i64")
        text.add(f"llvm.store {value}, {self._address(store.access, stored)} : {stored}, !llvm.ptr")


def short(nest: Nest, rows: int) -> bool:
    """Whether the innermost loop, inside another one, is short arithmetic on rows of one type of float."""
    if nest.reductions or len(nest.sizes) - rows < 2 or not 4 <= nest.sizes[-1] <= SHORT:
        return False
    types = {str(_type_of(nest.code, nest.stores, k)) for k in range(len(nest.code))}
    types |= {str(store.type) for store in nest.stores}
    return (
        len(types) == 1
        and types <= WIDTHS.keys()
        and all(n[0] in ("load", "constant", "acc") or n[1] in VECTORS for n in nest.code)
        and all(access.strides[-1] in (0, 1) for access in nest.accesses)
        and all(s.access.strides[-1] == 1 and s.initial is None for s in nest.stores)
    )


class ShortRows(NestText):
    """Writes a nest whose rows are short: each in a few vectors, what is the same for all of it as a number."""

    def write(self) -> None:
        """The loops but for the innermost, in them the vectors of a row."""
        self.order = list(range(len(self.nest.sizes) - len(self.order), len(self.nest.sizes)))
        self._loops(self.order[:-1], self._row)

    def _row(self) -> None:
        kind = str(self.nest.stores[0].type)
        lanes = vectors().nbytes // WIDTHS[kind]
        for at, count in parts_of(self.nest.sizes[-1], lanes):
            self.ivs[self.order[-1]] = self.text.constant(str(at))
            type_ = f"vector<{count}x{kind}>"
            made: dict[int, str] = {}
            for number in sorted(self.wanted):
                made[number] = self._in_vectors(number, made, type_, count)
            for store in self.nest.stores:
                place = self._address(store.access, kind)
                self.text.add(
                    f"llvm.store {made[store.value]}, {place} {_alignment(kind)} : {type_}, !llvm.ptr"
                )
        del self.ivs[self.order[-1]]

    def _in_vectors(self, number: int, made: dict[int, str], type_: str, count: int) -> str:
        """A node as a vector."""
        node, text, kind = self.nest.code[number], self.text, str(self.nest.stores[0].type)
        if number in self.values:
            return spread(text, self.values[number], type_, count)
        if node[0] in ("load", "acc"):
            place = self._address(
                node[1] if node[0] == "load" else self.nest.stores[node[1]].access, kind
            )
            return text.let(f"llvm.load {place} {_alignment(kind)} : !llvm.ptr -> {type_}")
        return self._applied(node, made, type_)


def _alignment(kind: str) -> str:
    return f"{{alignment = {WIDTHS[kind]} : i64}}"


def text_zero(text: Text) -> str:
    """The i64 that is 0."""
    return text.constant("0")


def _inputs(node: Node) -> tuple[int, ...]:
    """The nodes that a node reads."""
    if node[0] == "op":
        return node[3]
    return node[3] if node[0] == "gather" else ()


def _type_of(code: tuple[Node, ...], stores: tuple[Store, ...], number: int) -> Any:
    node = code[number]
    if node[0] in ("load", "constant", "scalar"):
        return node[2]
    if node[0] == "acc":
        return stores[node[1]].type
    return "index" if node[0] == "index" else node[4]


def _wanted(nest: Nest) -> set[int]:
    """The nodes that some result needs."""
    wanted: set[int] = set()
    todo = [s.value for s in nest.stores] + [
        s.initial for s in nest.stores if s.initial is not None
    ]
    while todo:
        number = todo.pop()
        if number not in wanted:
            wanted.add(number)
            todo += _inputs(nest.code[number])
    return wanted


def loop_order(nest: Nest, rows: int) -> list[int]:
    """The inner loops, outermost first: the innermost is the one that most accesses walk with step
    1.
    """
    dims = list(range(rows, len(nest.sizes)))
    if len(dims) < 2:
        return dims

    def volume(access: Access) -> int:
        return math.prod(n for n, s in zip(nest.sizes, access.strides) if s)

    def weight(dim: int) -> tuple[int, int]:
        reads = sum(volume(a) for a in nest.accesses if a.strides[dim] in (1, -1))
        writes = sum(volume(s.access) for s in nest.stores if s.access.strides[dim] in (1, -1))
        return (reads + writes, dim)

    innermost = max(dims, key=weight)
    others = [d for d in dims if d != innermost]
    parallel = [d for d in others if d not in nest.reductions]
    reductions = [d for d in others if d in nest.reductions]
    return [*parallel, *reductions, innermost]
