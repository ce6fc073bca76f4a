"""Kernels on places: what a kernel reads and writes becomes pointers and one stride per loop; loops
that walk memory as one are merged. The result holds no SSA value, so equal work anywhere in the
program is one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from meshweave.lowering.kernels import Kernel, Node
from meshweave.lowering.linear import Linear
from meshweave.lowering.steps import Place, Root, Step


class Access(NamedTuple):
    """pointer[const + sum of strides[d] * loop d], in elements."""

    pointer: int
    const: int
    strides: tuple[int, ...]


class Store(NamedTuple):
    """Where a loop nest leaves a result: node `value`; see kernels.Output."""

    access: Access
    type: Any
    value: int
    initial: int | None
    reads: bool


@dataclass(frozen=True)
class Nest:
    """A loop nest over `sizes` (none is 1). `code` as in kernels.py, but loads hold an Access:
    ("load", Access, type), gathers ("gather", pointer, strides, nodes, type), indices
    ("index", const, strides, ((scalar, factor), ..)).
    """

    sizes: tuple[int, ...]
    reductions: frozenset[int]
    code: tuple[Node, ...]
    stores: tuple[Store, ...]
    contraction: bool = False
    library: bool = True
    switches: frozenset[str] = frozenset()

    @property
    def accesses(self) -> list[Access]:
        """Every strided access, reads first."""
        reads = [node[1] for node in self.code if node[0] == "load"]
        return reads + [store.access for store in self.stores]


@dataclass
class Pointers:
    """What a call passes: places (root, offset in elements, bytes of an element), then scalars (SSA
    values, with types).
    """

    places: list[tuple[Root, Linear, int]] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    scalars: list[Any] = field(default_factory=list)
    _numbers: dict[Any, int] = field(default_factory=dict)

    def pointer(self, root: Root, offset: Linear, nbytes: int) -> int:
        """The number of the pointer to that element."""
        key = (root, offset)
        if key not in self._numbers:
            self._numbers[key] = len(self.places)
            self.places.append((root, offset, nbytes))
        return self._numbers[key]

    def scalar(self, value: Any) -> int:
        """The number of the scalar argument that is `value`."""
        if value not in self.scalars:
            self.scalars.append(value)
        return self.scalars.index(value)

    def mark(self) -> tuple[int, frozenset[int], int]:
        """What `restore` needs to forget everything added from now on."""
        return len(self.places), frozenset(self.written), len(self.scalars)

    def restore(self, mark: tuple[int, frozenset[int], int]) -> None:
        """Back to what it was at the mark."""
        for root, offset, _ in self.places[mark[0] :]:
            del self._numbers[root, offset]
        del self.places[mark[0] :]
        self.written = set(mark[1])
        del self.scalars[mark[2] :]

    def exclusive(self) -> tuple[bool, ...]:
        """Of each pointer: whether nothing written through another pointer overlaps what it
        reaches.
        """
        roots = [root for root, _, _ in self.places]
        written = {roots[k] for k in self.written}
        return tuple(roots.count(root) == 1 or root not in written for root in roots)


def bind(kernel: Kernel, step: Step, pointers: Pointers, symbol_of: Any) -> Nest:
    """The loop nest of a kernel's call. `symbol_of(value)` is the linear form of a run-time index."""
    binder = _Binder(kernel, step, pointers, symbol_of)
    code = tuple(binder.node(node) for node in kernel.code)
    stores = []
    for output, place, value in zip(kernel.outputs, step.outputs, kernel.yields):
        access = binder.access(place, output.access)
        pointers.written.add(access.pointer)
        stores.append(Store(access, output.type, value, output.initial, output.reads))
    nest = Nest(kernel.sizes, kernel.reductions, code, tuple(stores))
    return replace(
        nest,
        contraction=kernel.contraction,
        library=kernel.library,
        switches=kernel.switches,
    )


class _Binder:
    def __init__(self, kernel: Kernel, step: Step, pointers: Pointers, symbol_of: Any) -> None:
        self.kernel, self.step, self.pointers, self.symbol_of = kernel, step, pointers, symbol_of

    def access(self, place: Place, index: tuple[Linear, ...]) -> Access:
        """Where `index` of `place` is, over the kernel's loops."""
        offset, strides, start = place.offset, [0] * self.kernel.ndim, 0
        for form, stride in zip(index, place.strides):
            start += form.const * stride
            for dim, factor in form.terms:
                if dim >= 0:
                    strides[dim] += factor * stride
                else:
                    value = self.step.operands[self.kernel.symbols[-1 - dim]]
                    offset = offset.plus(self.symbol_of(value).scaled(factor * stride))
        if start:
            offset = offset._replace(const=offset.const + start)
        pointer = self.pointers.pointer(place.root, offset, place.width)
        return Access(pointer, 0, tuple(strides))

    def node(self, node: Node) -> Node:
        what = node[0]
        if what == "load":
            place = self.step.operands[node[1]]
            return ("load", self.access(place, node[2]), place.element)
        if what == "gather":
            place = self.step.operands[node[1]]
            pointer = self.pointers.pointer(place.root, place.offset, place.width)
            return ("gather", pointer, place.strides, node[2], place.element)
        if what == "index":
            return self._index(node[1])
        if what == "scalar":
            return ("scalar", self.pointers.scalar(self.step.operands[node[1]]), node[2])
        return node

    def _index(self, form: Linear) -> Node:
        strides, scalars = [0] * self.kernel.ndim, []
        for dim, factor in form.terms:
            if dim >= 0:
                strides[dim] += factor
            else:
                value = self.step.operands[self.kernel.symbols[-1 - dim]]
                scalars.append((self.pointers.scalar(value), factor))
        return ("index", form.const, tuple(strides), tuple(scalars))


def renumbered(nest: Nest, numbers: list[int]) -> Nest:
    """The nest with pointer p called `numbers[p]`."""

    def moved(access: Access) -> Access:
        return access._replace(pointer=numbers[access.pointer])

    code = []
    for node in nest.code:
        if node[0] == "load":
            node = ("load", moved(node[1]), node[2])
        elif node[0] == "gather":
            node = ("gather", numbers[node[1]], *node[2:])
        code.append(node)
    stores = tuple(s._replace(access=moved(s.access)) for s in nest.stores)
    return replace(nest, code=tuple(code), stores=stores)


def restrided(
    nest: Nest, sizes: tuple[int, ...], reductions: frozenset[int], keep: list[int]
) -> Nest:
    """The nest with only the loops `keep`, in that order; the others' strides are dropped."""

    def pick(strides: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(strides[d] for d in keep)

    code = []
    for node in nest.code:
        if node[0] == "load":
            node = ("load", node[1]._replace(strides=pick(node[1].strides)), node[2])
        elif node[0] == "index":
            node = ("index", node[1], pick(node[2]), node[3])
        code.append(node)
    stores = tuple(
        s._replace(access=s.access._replace(strides=pick(s.access.strides))) for s in nest.stores
    )
    return replace(nest, sizes=sizes, reductions=reductions, code=tuple(code), stores=stores)


def reordered(nest: Nest, order: list[int]) -> Nest:
    """The nest with its loops in another order (or some left out, which must then run once)."""
    sizes = tuple(nest.sizes[d] for d in order)
    reductions = frozenset(k for k, d in enumerate(order) if d in nest.reductions)
    return restrided(nest, sizes, reductions, order)


def without_ones(nest: Nest) -> Nest:
    """The nest without the loops that run once."""
    keep = [d for d, size in enumerate(nest.sizes) if size != 1]
    return nest if len(keep) == len(nest.sizes) else reordered(nest, keep)


def merged(nest: Nest, first: int = 0) -> Nest:
    """The nest with neighbouring loops made one where every access allows; loops before `first`
    stay apart.
    """
    dim = len(nest.sizes) - 2
    while dim >= first:
        inner = nest.sizes[dim + 1]
        same_kind = (dim in nest.reductions) == (dim + 1 in nest.reductions)
        if same_kind and all(s[dim] == s[dim + 1] * inner for s in all_strides(nest)):
            nest = merged_at(nest, dim)
        dim -= 1
    return nest


def merged_at(nest: Nest, dim: int) -> Nest:
    """The nest with loops `dim` and `dim + 1` made one; the caller has checked that they walk
    memory as one.
    """
    sizes = (*nest.sizes[:dim], nest.sizes[dim] * nest.sizes[dim + 1], *nest.sizes[dim + 2 :])
    keep = [d for d in range(len(nest.sizes)) if d != dim]
    reductions = frozenset(k for k, d in enumerate(keep) if d in nest.reductions)
    return restrided(nest, sizes, reductions, keep)


def all_strides(nest: Nest) -> list[tuple[int, ...]]:
    """The strides of every access and index."""
    indices = [node[2] for node in nest.code if node[0] == "index"]
    return [access.strides for access in nest.accesses] + indices
