"""sort-together: let what is read at the places of a sort be sorted with it.

before:  s, p = mw.sort(k);  y = x[p]
after:   s, y, p = mw.sort(k, x)

A tensor that is read at computed places is needed whole. Where the keys are cut, ranks merge what they have in order,
and what is sorted with the keys moves as these do. On one rank nothing changes: a sort reads at its places. Of the
places may be made what they are anyway, such as `p < 0 ? p + n : p`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import IteratorType, OpBuilder, iterator_types, predicate
from meshweave.ir.ops import body_of, producer, terminator
from meshweave.ir.sorting import SORT, Order, sort
from meshweave.transforms.base import Pass, in_block, ops_of, unused, users

_CASTS = ("arith.extsi", "arith.trunci", "arith.index_cast")
_COMPARES = {
    arith.CmpIPredicate.slt: operator.lt,
    arith.CmpIPredicate.sle: operator.le,
    arith.CmpIPredicate.sgt: operator.gt,
    arith.CmpIPredicate.sge: operator.ge,
}
"""Comparisons of integers with a sign."""


class _Place(Enum):
    """Stand for an element that is the place of its own index in a sort."""

    PLACE = "place"


_PLACE = _Place.PLACE
_Known = _Place | int


@dataclass(frozen=True)
class SortTogether(Pass):
    """Make tensors that are read at the places of a sort operands of it."""

    name: ClassVar[str] = "sort-together"

    def run(self, module: ir.Module) -> None:
        for op in ops_of(module, SORT):
            _together(op.operation)


def _together(op: ir.Operation) -> None:
    """Give a sort what is read at its places, and erase what then nothing reads."""
    found = _PlacesOf(op)
    reads = [(read, found.source(read)) for read in found.readers()]
    sources = [source for _, source in reads if source is not None]
    more = [v for k, v in enumerate(sources) if v not in [*op.operands, *sources[:k]]]
    results = list(op.results)
    if more:
        values = [*op.operands, *more]
        results = sort(OpBuilder.before(op), values, op.attributes["dim"].value, Order.of(op))
        for old, new in zip(op.results, [*results[: len(op.results) - 1], results[-1]]):
            old.replace_all_uses_with(new)
    values = [*op.operands, *more]
    for read, source in reads:
        if source is not None:
            read.results[0].replace_all_uses_with(results[values.index(source)])
    for each in reversed(found.visited):
        if unused(each):
            each.erase()
    if more:
        op.erase()


class _PlacesOf:
    """Find what is known of tensors that are made of the places of a sort.

    known: of each such tensor what each of its elements is. visited: the maps that make them, and those that read them.
    """

    def __init__(self, op: ir.Operation) -> None:
        self.op, self.dim = op, op.attributes["dim"].value
        self.shape = list(op.results[-1].type.shape)
        self.known: dict[ir.Value, _Known] = {op.results[-1]: _PLACE}
        self.visited: list[ir.Operation] = []

    def readers(self) -> Iterator[ir.Operation]:
        """Yield the maps of the block that read the places, in order."""
        open_, seen = set(self._users(self.op.results[-1])), set[ir.Operation]()
        while open_:
            op = min(open_, key=in_block)
            open_.remove(op)
            seen.add(op)
            what = self._made(op)
            if what is not None:
                self.known[op.results[0]] = what
                open_ |= set(self._users(op.results[0])) - seen
            elif not _is_map(op):
                continue
            else:
                yield op
            self.visited.append(op)

    def _users(self, value: ir.Value) -> list[ir.Operation]:
        """Return the ops of the sort's own block that read a value, in their bodies too."""
        found = []
        for view in users(value):
            op = getattr(view, "operation", view)
            while op is not None and op.block != self.op.block:
                op = op.parent.operation if op.parent is not None else None
                if op is not None and op.name == "func.func":
                    op = None
            if op is not None and len(op.results) == 1:
                found.append(op)
        return found

    def source(self, op: ir.Operation) -> ir.Value | None:
        """Return the tensor that an op reads at the places, element by element, if that is all that it does."""
        if not _is_map(op) or list(op.results[0].type.shape) != self.shape:
            return None
        read = producer(terminator(body_of(op)).operands[0])
        if read is None or read.name != "tensor.extract" or read.block != body_of(op):
            return None
        tensor, at = read.operands[0], list(read.operands)[1:]
        if tensor.type.shape != self.op.results[-1].type.shape or not self._is_before(tensor):
            return None
        own = all(
            self._element(op, index) is _PLACE if d == self.dim else _loop(index) == d
            for d, index in enumerate(at)
        )
        return tensor if own else None

    def _is_before(self, value: ir.Value) -> bool:
        made = producer(value)
        if made is None:
            return True
        return bool(made.block == self.op.block and made.is_before_in_block(self.op))

    def _made(self, op: ir.Operation) -> _Known | None:
        """Return what each element is that an op makes, if it is one and the same thing."""
        if op.name == "tensor.expand_shape":
            same = [n for n in op.results[0].type.shape if n != 1]
            return self.known[op.operands[0]] if same == [n for n in self.shape if n != 1] else None
        if not _is_map(op) or list(op.results[0].type.shape) != self.shape:
            return None
        if not isinstance(op.results[0].type.element_type, ir.IntegerType):
            return None
        return self._element(op, terminator(body_of(op)).operands[0])

    def _element(self, op: ir.Operation, value: ir.Value) -> _Known | None:
        """Return what a value in the body of a map is."""
        block = body_of(op)
        made = producer(value)
        if made is None:
            given = list(op.operands)[: len(block.arguments)]
            return self._tensor(given[list(block.arguments).index(value)])
        if made.name == "arith.constant":
            number = made.attributes["value"]
            return number.value if isinstance(number, ir.IntegerAttr) else None
        if made.name == "tensor.extract":
            tensor, at = made.operands[0], list(made.operands)[1:]
            sizes = list(tensor.type.shape)
            loops = [_loop(i) for i, n in zip(at, sizes) if n != 1]
            own = [d for d, n in enumerate(self.shape) if n != 1]
            return self.known.get(tensor) if loops == own else None
        if made.name in _CASTS or made.name in _MEANS:
            given_ = [self._element(op, v) for v in made.operands]
            return self._cast(made, given_[0]) if made.name in _CASTS else self._meant(made, given_)
        return None

    def _tensor(self, value: ir.Value) -> _Known | None:
        """Return what each element of a tensor is: one of those found, or the number of a constant."""
        if value in self.known:
            return self.known[value]
        made = producer(value)
        if made is None or made.name != "arith.constant":
            return None
        held = made.attributes["value"]
        if not isinstance(held, ir.DenseIntElementsAttr) or not held.is_splat:
            return None
        return int(held.get_splat_value().value)

    def _cast(self, op: ir.Operation, given: _Known | None) -> _Known | None:
        """Return what an integer of another type is, which must hold every place."""
        kind = op.results[0].type
        if isinstance(kind, ir.IntegerType) and self.shape[self.dim] > 1 << (kind.width - 1):
            return None
        return given if given is _PLACE else None

    def _meant(self, op: ir.Operation, given: list[_Known | None]) -> _Known | None:
        """Return what comes of places and numbers, as far as it is the same for every place."""
        if op.name == "arith.select":
            return None if not isinstance(given[0], int) else given[1] if given[0] else given[2]
        if op.name == "arith.andi" and all(isinstance(n, int) for n in given):
            return int(bool(given[0]) and bool(given[1])) if _is_bit(op.results[0].type) else None
        number = given[1]
        if given[0] is not _PLACE or not isinstance(number, int):
            return None
        last = self.shape[self.dim] - 1
        if op.name == "arith.maxsi":
            return _PLACE if number <= 0 else None
        if op.name == "arith.minsi":
            return _PLACE if number >= last else None
        test = _COMPARES.get(predicate(op)) if op.name == "arith.cmpi" else None
        ends = {test(n, number) for n in (0, max(last, 0))} if test else set()
        return int(ends.pop()) if len(ends) == 1 else None


_MEANS = ("arith.select", "arith.andi", "arith.cmpi", "arith.maxsi", "arith.minsi")


def _is_bit(type_: ir.Type) -> bool:
    return isinstance(type_, ir.IntegerType) and type_.width == 1


def _loop(index: ir.Value) -> int | None:
    """Return the loop whose index a value is."""
    made = producer(index)
    return int(made.attributes["dim"].value) if made and made.name == "linalg.index" else None


def _is_map(op: ir.Operation) -> bool:
    """Tell whether a linalg op makes each element of its one result from those at the same place of its operands."""
    if op.name == "linalg.map":
        return True
    if op.name != "linalg.generic" or len(op.results) != 1:
        return False
    maps = [m.value for m in op.attributes["indexing_maps"]]
    identity = all(m == ir.AffineMap.get_identity(m.n_dims) for m in maps)
    return identity and IteratorType.REDUCTION not in iterator_types(op)
