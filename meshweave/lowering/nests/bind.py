"""Bind kernels to places: what a kernel reads and writes becomes pointers and one stride per loop.

Loops that walk memory as one are merged. The result holds no SSA value, so equal work anywhere in
the program is one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

from meshweave.ir.bindings import ir
from meshweave.ir.expressions import (
    Accumulator,
    AnyNode,
    Apply,
    Gather,
    Index,
    Load,
    Node,
    Scalar,
    gathered,
)
from meshweave.ir.scores.attention import SCORES
from meshweave.lowering.buffers.steps import MemrefPlace, Root, Step
from meshweave.lowering.nests.kernels import FusedKernel, KernelNode, Output
from meshweave.lowering.nests.linear import IndexMap, Linear

SymbolForm = Callable[[ir.Value], Linear]
"""Gives the linear form of an index that is known when the program runs."""


class Access(NamedTuple):
    """Name element pointer[sum of strides[d] * index d].

    The indices are the loops'; those of a gather are computed.
    """

    pointer: int
    strides: tuple[int, ...]


class BoundIndex(NamedTuple):
    """Hold const + sum of strides[d] * loop d + sum of factor * scalar, over (scalar, factor) pairs."""

    const: int
    strides: tuple[int, ...]
    scalars: tuple[tuple[int, int], ...] = ()


NestNode = Node[Access, BoundIndex, int]
Store: TypeAlias = Output[Access]
"""Where a loop nest leaves a result."""


@dataclass(frozen=True)
class LoopNest:
    """Describe a loop nest over `sizes` (no size is 1 once `ordered`), on pointers.

    limits: (loop, scalar): see `FusedKernel`.
    """

    sizes: tuple[int, ...]
    reductions: frozenset[int]
    code: tuple[NestNode, ...]
    stores: tuple[Store, ...]
    contraction: bool = False
    library: bool = True
    switches: frozenset[str] = frozenset()
    limits: tuple[tuple[int, int], ...] = ()

    def limit(self, loop: int) -> int | None:
        """Return the number of the scalar at which a loop may end before its size; None for none."""
        return next((scalar for d, scalar in self.limits if d == loop), None)

    @cached_property
    def loads(self) -> list[Load[Access]]:
        """List the nodes that read along the loops."""
        return [node for node in self.code if isinstance(node, Load)]

    @cached_property
    def gathers(self) -> list[Gather[Access]]:
        """List the nodes that read at computed places."""
        return [node for node in self.code if isinstance(node, Gather)]

    @property
    def accumulates(self) -> bool:
        """Tell whether a node reads what a result holds so far."""
        return any(isinstance(node, Accumulator) for node in self.code)

    @cached_property
    def strided(self) -> list[Load[Access] | Store]:
        """List everything that has an access over the loops and a type, reads first."""
        return [*self.loads, *self.stores]

    @cached_property
    def accesses(self) -> list[Access]:
        """List every access over the loops, reads first."""
        return [each.access for each in self.strided]

    @property
    def started(self) -> list[int]:
        """List the nodes that reductions start from."""
        return [s.initial for s in self.stores if s.initial is not None]

    @property
    def results(self) -> list[int]:
        """List the nodes that are stored, and those that reductions start from."""
        return [s.value for s in self.stores] + self.started

    @property
    def parallel(self) -> list[int]:
        """List the loops that do not reduce."""
        return [d for d in range(len(self.sizes)) if d not in self.reductions]


class Pointed(NamedTuple):
    """Name what a pointer is given: an element of a buffer, `nbytes` wide."""

    root: Root
    offset: Linear
    nbytes: int


class Counter(NamedTuple):
    """Stand for the number of an iteration that a kernel begins with, in the place of a scalar."""

    type: ir.Type


@dataclass
class Pointers:
    """Collect what a call passes: places (root, offset in elements, bytes of an element), then scalars."""

    places: list[Pointed] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    scalars: list[ir.Value | Counter] = field(default_factory=list)
    _numbers: dict[tuple[Root, Linear], int] = field(default_factory=dict)

    def pointer(self, root: Root, offset: Linear, nbytes: int) -> int:
        """Return the number of the pointer to that element, which is added when new."""
        key = (root, offset)
        if key not in self._numbers:
            self._numbers[key] = len(self.places)
            self.places.append(Pointed(root, offset, nbytes))
        return self._numbers[key]

    def scalar(self, value: ir.Value) -> int:
        """Return the number of the scalar argument that is `value`, which is added when new."""
        if value not in self.scalars:
            self.scalars.append(value)
        return self.scalars.index(value)

    @property
    def roots(self) -> list[Root]:
        """List the buffer that each pointer points into."""
        return [place.root for place in self.places]

    @property
    def written_roots(self) -> set[Root]:
        """Return the buffers that are written."""
        return {self.places[k].root for k in self.written}

    def mark(self) -> tuple[int, frozenset[int], int]:
        """Return what `restore` needs to forget everything added from now on."""
        return len(self.places), frozenset(self.written), len(self.scalars)

    def restore(self, mark: tuple[int, frozenset[int], int]) -> None:
        """Forget what was added since the mark."""
        for place in self.places[mark[0] :]:
            del self._numbers[place.root, place.offset]
        del self.places[mark[0] :]
        self.written = set(mark[1])
        del self.scalars[mark[2] :]

    def exclusive(self) -> tuple[bool, ...]:
        """Tell for each pointer whether nothing written through another one overlaps what it reaches."""
        roots, written = self.roots, self.written_roots
        return tuple(roots.count(root) == 1 or root not in written for root in roots)


def bind(kernel: FusedKernel, step: Step, pointers: Pointers, symbol_form: SymbolForm) -> LoopNest:
    """Return the loop nest of a kernel's call."""
    binder = _Binder(kernel, step, pointers, symbol_form)
    code = tuple([binder.node(node) for node in kernel.code])
    stores = []
    for output, place in zip(kernel.outputs, step.outputs):
        access = binder.access(place, output.access)
        pointers.written.add(access.pointer)
        stores.append(Output(access, output.type, output.value, output.initial, output.reads))
    return LoopNest(
        kernel.sizes,
        kernel.reductions,
        code,
        tuple(stores),
        kernel.contraction,
        kernel.library,
        kernel.switches,
        tuple([(d, pointers.scalar(step.operands[k])) for d, k in kernel.limits]),
    )


class _Binder:
    def __init__(
        self, kernel: FusedKernel, step: Step, pointers: Pointers, symbol_form: SymbolForm
    ) -> None:
        self.ndim, self.pointers, self.symbol_form = kernel.ndim, pointers, symbol_form
        self.operands = step.operands

    def access(self, place: MemrefPlace, index: IndexMap) -> Access:
        """Return where `index` of `place` is, over the kernel's loops."""
        offset, strides, start = place.offset, [0] * self.ndim, 0
        for form, stride in zip(index, place.strides):
            start += form.const * stride
            for dim, factor in form.terms:
                if dim >= 0:
                    strides[dim] += factor * stride
                else:
                    symbol = self.symbol_form(self.operands[-1 - dim])
                    offset = offset.plus(symbol.scaled(factor * stride))
        if start:
            offset = offset._replace(const=offset.const + start)
        pointer = self.pointers.pointer(place.root, offset, place.width)
        return Access(pointer, tuple(strides))

    def node(self, node: KernelNode) -> NestNode:
        """Return a node on pointers and scalar parameters."""
        if isinstance(node, Load):
            place = self.operands[node.access.operand]
            return Load(self.access(place, node.access.indices), node.type)
        if isinstance(node, Gather):
            place = self.operands[node.access.operand]
            pointer = self.pointers.pointer(place.root, place.offset, place.width)
            return Gather(Access(pointer, place.strides), node.operands, node.type)
        if isinstance(node, Index):
            return Index(self._index(node.form))
        if isinstance(node, Scalar):
            return Scalar(self.pointers.scalar(self.operands[node.source]), node.type)
        return node

    def _index(self, form: Linear) -> BoundIndex:
        strides, scalars = [0] * self.ndim, []
        for dim, factor in form.terms:
            if dim >= 0:
                strides[dim] += factor
            else:
                scalars.append((self.pointers.scalar(self.operands[-1 - dim]), factor))
        return BoundIndex(form.const, tuple(strides), tuple(scalars))


def restrided(
    nest: LoopNest, sizes: tuple[int, ...], reductions: frozenset[int], keep: list[int]
) -> LoopNest:
    """Return the nest with only the loops `keep`, in that order; the others' strides are dropped."""

    def pick(access: Access) -> Access:
        return access._replace(strides=tuple([access.strides[d] for d in keep]))

    code: list[NestNode] = []
    for node in nest.code:
        if isinstance(node, Load):
            node = Load(pick(node.access), node.type)
        elif isinstance(node, Index):
            strides = tuple([node.form.strides[d] for d in keep])
            node = Index(node.form._replace(strides=strides))
        code.append(node)
    stores = [replace(s, access=pick(s.access)) for s in nest.stores]
    limits = tuple([(keep.index(d), scalar) for d, scalar in nest.limits if d in keep])
    return replace(
        nest,
        sizes=sizes,
        reductions=reductions,
        code=tuple(code),
        stores=tuple(stores),
        limits=limits,
    )


def reordered(nest: LoopNest, order: list[int]) -> LoopNest:
    """Return the nest with its loops in another order; loops that run once may be left out."""
    sizes = tuple(nest.sizes[d] for d in order)
    reductions = frozenset(k for k, d in enumerate(order) if d in nest.reductions)
    return restrided(nest, sizes, reductions, order)


def without_ones(nest: LoopNest) -> LoopNest:
    """Return the nest without the loops that run once."""
    keep = [d for d, size in enumerate(nest.sizes) if size != 1]
    return nest if len(keep) == len(nest.sizes) else reordered(nest, keep)


def merged(nest: LoopNest, first: int = 0) -> LoopNest:
    """Merge neighbouring loops where every access allows; loops before `first` stay apart.

    So do those that reduce an attention: the scores are added up along one of them only.
    """
    dim = len(nest.sizes) - 2
    apart = any(isinstance(node, Apply) and node.name == SCORES for node in nest.code)
    while dim >= first:
        inner = nest.sizes[dim + 1]
        same_kind = (dim in nest.reductions) == (dim + 1 in nest.reductions)
        same_kind &= not (apart and dim in nest.reductions)
        same_kind &= nest.limit(dim) is None and nest.limit(dim + 1) is None
        if same_kind and all(s[dim] == s[dim + 1] * inner for s in all_strides(nest)):
            nest = merged_at(nest, dim)
        dim -= 1
    return nest


def merged_at(nest: LoopNest, dim: int) -> LoopNest:
    """Merge loops `dim` and `dim + 1`; the caller has checked that they walk memory as one."""
    sizes = (*nest.sizes[:dim], nest.sizes[dim] * nest.sizes[dim + 1], *nest.sizes[dim + 2 :])
    keep = [d for d in range(len(nest.sizes)) if d != dim]
    reductions = frozenset(k for k, d in enumerate(keep) if d in nest.reductions)
    return restrided(nest, sizes, reductions, keep)


def loops_of(nest: LoopNest) -> list[frozenset[int]]:
    """Return for each node the loops that it depends on."""

    def own(node: AnyNode) -> Iterable[int]:
        if isinstance(node, Load):
            return [d for d, stride in enumerate(node.access.strides) if stride]
        if isinstance(node, Index):
            return [d for d, stride in enumerate(node.form.strides) if stride]
        return ()

    return gathered(nest.code, own)


def all_strides(nest: LoopNest) -> list[tuple[int, ...]]:
    """Return the strides of every access and index."""
    indices = [node.form.strides for node in nest.code if isinstance(node, Index)]
    return [access.strides for access in nest.accesses] + indices
