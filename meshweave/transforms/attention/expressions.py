"""Read elements of tensors as expressions over loop coordinates, through elementwise ops, copies and reshapes.

The nodes are those of `ir/expressions.py`. A load reads an `Operand`: a tensor at one coordinate for each of its dims.
An index has a coordinate for its form.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from meshweave.errors import CompileError
from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import IteratorType, iterator_types, named_predicate, reassociation
from meshweave.ir.expressions import (
    Apply,
    Argument,
    Constant,
    Index,
    Load,
    Node,
    NodeTable,
    Scalar,
    inputs,
    is_number,
    needed,
    read_body,
)
from meshweave.ir.ops import producer


@dataclass(frozen=True)
class LoopIndex:
    """Stand for the index of loop `loop`."""

    loop: int


@dataclass(frozen=True)
class Fixed:
    """Stand for a number."""

    number: int


@dataclass(frozen=True)
class Weighted:
    """Stand for the sum of coordinates, each times a factor."""

    parts: tuple[tuple[Coordinate, int], ...]


@dataclass(frozen=True)
class Quotient:
    """Stand for a coordinate divided by a number, rounded down."""

    of: Coordinate
    divisor: int


@dataclass(frozen=True)
class Remainder:
    """Stand for what is left of a coordinate divided by a number."""

    of: Coordinate
    divisor: int


Coordinate: TypeAlias = "LoopIndex | Fixed | Weighted | Quotient | Remainder"
Maps: TypeAlias = "list[tuple[Coordinate, ...]]"
ZERO = Fixed(0)
RESHAPES = ("tensor.expand_shape", "tensor.collapse_shape")
_MARKS = ("hint.", "mw.", "dist.")


@dataclass(frozen=True)
class Operand:
    """Describe a tensor as loops read it: a coordinate for each of its dims."""

    value: ir.Value
    entries: tuple[Coordinate, ...]

    @property
    def loops(self) -> frozenset[int]:
        """Return the loops that it is read along."""
        return loops_in(self.entries)


ElementNode: TypeAlias = Node[Operand, Coordinate, ir.Value]


def dims_of(entry: Coordinate) -> frozenset[int]:
    """Return the loops that a coordinate depends on."""
    if isinstance(entry, LoopIndex):
        return frozenset({entry.loop})
    if isinstance(entry, Fixed):
        return frozenset()
    if isinstance(entry, Weighted):
        return loops_in([part for part, _ in entry.parts])
    return dims_of(entry.of)


def loops_in(entries: Sequence[Coordinate]) -> frozenset[int]:
    """Return the loops that any of these coordinates depends on."""
    return frozenset().union(*(dims_of(e) for e in entries))


def compared_by(node: Apply) -> arith.CmpIPredicate | arith.CmpFPredicate | None:
    """Return how a node compares two numbers; None for one that does something else."""
    if node.name not in ("arith.cmpi", "arith.cmpf"):
        return None
    return named_predicate(node.name, node.attribute("predicate"))


class Opaque(Exception):
    """Report a body that is no expression: it reads at computed places, or loops."""


class Expressions(NodeTable[Operand, Coordinate, ir.Value]):
    """Build nodes. visited: the ops that have been looked through, in the order met."""

    def __init__(self) -> None:
        super().__init__()
        self.visited: dict[ir.Operation, None] = {}
        self._known: dict[Operand, int] = {}

    def node(self, value: ir.Value, entries: Sequence[Coordinate]) -> int:
        """Return the node of the element of tensor `value` at `entries`; a dim of one element is read at 0."""
        sized = zip(entries, value.type.shape)
        key = Operand(value, tuple([ZERO if extent == 1 else entry for entry, extent in sized]))
        if key not in self._known:
            self._known[key] = self._node(key)
        return self._known[key]

    def below(self, node: int, known: Container[int] = ()) -> list[int]:
        """Return the node and all that it is made of, each once; nothing that nodes in `known` are made of."""
        found: dict[int, None] = {}
        left = [node]
        while left:
            n = left.pop()
            if n not in found:
                found[n] = None
                left += () if n in known else inputs(self.nodes[n])
        return list(found)

    def loads_below(self, node: int) -> dict[int, Operand]:
        """Return what `node` is made of reads of tensors, by the number of each load."""
        below = [(n, self.nodes[n]) for n in self.below(node)]
        return {n: load.access for n, load in below if isinstance(load, Load)}

    def _node(self, read: Operand) -> int:
        owner = read.value.owner
        if not isinstance(owner, ir.Block):
            op = owner.operation
            if op.name == "arith.constant":
                attr = op.attributes["value"]
                if isinstance(attr, ir.DenseElementsAttr) and attr.is_splat:
                    return self._constant(attr.get_splat_value())
            elif op.name == "tensor.splat" and len(op.operands) == 1:
                return self._scalar(op.operands[0])
            elif op.name in RESHAPES:
                self.visited[op] = None
                return self.node(op.operands[0], reshaped(op, read.entries))
            elif op.name == "linalg.generic" and (looped := _loops(op, read.entries)) is not None:
                try:
                    found = self._mapped(op, *looped)
                except Opaque:
                    return self._load(read)
                self.visited[op] = None
                return found
        return self._load(read)

    def _mapped(self, op: ir.Operation, maps: Maps, loops: Sequence[Coordinate]) -> int:
        """Return the node of an elementwise op, or of a sum over one element, which is that element."""
        if not reductions_of(op):
            return self.body(op, maps, loops)
        start = op.operands[len(op.operands) - 1]
        zeros = self.nodes[self.node(start, [ZERO] * len(start.type.shape))]
        added = added_by(op, ("arith.addf",))
        if added is None or len(op.operands) != 2 or not is_number(zeros, 0.0):
            raise Opaque  # a product of two tensors is one whatever it adds up
        return self.body(op, maps, loops, added)

    def _load(self, read: Operand) -> int:
        return self.put(Load(read, read.value.type.element_type))

    def body(
        self, op: ir.Operation, maps: Maps, loops: Sequence[Coordinate], operand: int | None = None
    ) -> int:
        """Return the node of what the body of a linalg.generic computes with its loops at `loops`.

        operand: instead of what it yields, this operand of the op that makes that. Raises Opaque where the body does
        what no expression says.
        """
        try:
            body = read_body(op.regions[0].blocks[0])
        except CompileError:
            raise Opaque from None
        (root,) = body.results
        if operand is not None:
            root = inputs(body.nodes[root])[operand]
        made: dict[int, int] = {}
        for number in sorted(needed(body.nodes, [root])):  # a node reads nodes of smaller numbers
            node = body.nodes[number]
            if isinstance(node, Argument):
                value = op.operands[node.number]
                made[number] = self._operand(value, at_loops(maps[node.number], loops))
            elif isinstance(node, Index):
                made[number] = self.put(Index(loops[node.form]))
            elif isinstance(node, Constant):
                made[number] = self.put(node)
            elif isinstance(node, Scalar):
                made[number] = self._scalar(node.source)
            elif isinstance(node, Apply):
                attributes = tuple([a for a in node.attributes if not a[0].startswith(_MARKS)])
                operands = tuple([made[k] for k in node.operands])
                made[number] = self.put(Apply(node.name, attributes, operands, node.type))
            else:
                raise Opaque
        return made[root]

    def _operand(self, value: ir.Value, entries: Sequence[Coordinate]) -> int:
        if isinstance(value.type, ir.RankedTensorType):
            return self.node(value, entries)
        return self._scalar(value)

    def _constant(self, attr: ir.Attribute) -> int:
        return self.put(Constant(attr, attr.type))

    def _scalar(self, value: ir.Value) -> int:
        owner = value.owner
        if not isinstance(owner, ir.Block) and owner.operation.name == "arith.constant":
            return self._constant(owner.operation.attributes["value"])
        return self.put(Scalar(value, value.type))


def has_exponential(value: ir.Value, plain: set[ir.Value]) -> bool:
    """Tell whether an expression of a tensor may hold an exponential: `Expressions` reads no further than this does.

    plain: tensors whose expressions hold none, added to. No op may change between two calls with one.
    """
    seen, left = set[ir.Value](), [value]
    while left:
        read = left.pop()
        op = None if read in seen or read in plain else producer(read)
        seen.add(read)
        if op is None or (op.name not in RESHAPES and op.name != "linalg.generic"):
            continue
        if op.name in RESHAPES:
            left.append(op.operands[0])
            continue
        if any(view.operation.name == "math.exp" for view in op.regions[0].blocks[0].operations):
            return True
        if len(op.operands) == 2 or not reductions_of(op):
            left += op.operands
    plain |= seen
    return False


def _loops(op: ir.Operation, entries: Sequence[Coordinate]) -> tuple[Maps, list[Coordinate]] | None:
    """Return the maps and loops of an op that reads one element of each operand for its result at `entries`.

    None for any other op.
    """
    if len(op.results) != 1 or (maps := maps_of(op)) is None:
        return None
    if not isinstance(op.results[0].type, ir.RankedTensorType):
        return None
    kinds = iterator_types(op)
    count, loops, reduced = len(kinds), written_at(maps[-1], entries), _reductions(kinds)
    if reduced:
        extents = loop_extents(op, maps)
        loops |= {loop: ZERO for loop in reduced if extents.get(loop) == 1}
    elif any(True for _ in op.regions[0].blocks[0].arguments[len(op.operands) - 1].uses):
        return None
    return (maps, [loops[k] for k in range(count)]) if len(loops) == count else None


def written_at(
    writes: Sequence[Coordinate], entries: Sequence[Coordinate]
) -> dict[int, Coordinate]:
    """Return where the loops of an op are when it writes, by its map `writes`, the element at `entries`."""
    return {e.loop: there for e, there in zip(writes, entries) if isinstance(e, LoopIndex)}


def maps_of(op: ir.Operation) -> Maps | None:
    """Return the indexing maps of a linalg.generic; None where a result is neither a loop nor a number."""
    found = []
    for attr in op.attributes["indexing_maps"]:
        entries: list[Coordinate] = []
        for expr in attr.value.results:
            if isinstance(expr, ir.AffineDimExpr):
                entries.append(LoopIndex(expr.position))
            elif isinstance(expr, ir.AffineConstantExpr):
                entries.append(Fixed(expr.value))
            else:
                return None
        found.append(tuple(entries))
    return found


def loop_extents(op: ir.Operation, maps: Sequence[Sequence[Coordinate]]) -> dict[int, int]:
    """Return the extents of the loops of a linalg.generic."""
    found: dict[int, int] = {}
    for value, entries in zip(op.operands, maps):
        if isinstance(value.type, ir.RankedTensorType):
            pairs = zip(entries, value.type.shape)
            found |= {e.loop: extent for e, extent in pairs if isinstance(e, LoopIndex)}
    return found


def reductions_of(op: ir.Operation) -> tuple[int, ...]:
    """Return the loops of a linalg.generic that are not parallel."""
    return _reductions(iterator_types(op))


def _reductions(kinds: Sequence[IteratorType]) -> tuple[int, ...]:
    return tuple([k for k, kind in enumerate(kinds) if kind is IteratorType.REDUCTION])


def added_by(op: ir.Operation, names: Sequence[str]) -> int | None:
    """Return which operand of the last op of a body one of the ops `names` adds to the result in each iteration.

    None where the body does something else with the result.
    """
    try:
        body = read_body(op.regions[0].blocks[0])
    except CompileError:
        return None
    last, out = body.nodes[body.results[0]], len(op.operands) - 1
    if not isinstance(last, Apply) or last.name not in names or out not in last.operands:
        return None
    if sum(inputs(node).count(out) for node in body.nodes) != 1:
        return None
    return 1 - last.operands.index(out)


def at_loops(entries: Sequence[Coordinate], loops: Sequence[Coordinate]) -> tuple[Coordinate, ...]:
    """Return an operand's coordinates where its loops are at `loops`."""
    return tuple([loops[e.loop] if isinstance(e, LoopIndex) else e for e in entries])


def reshaped(op: ir.Operation, entries: Sequence[Coordinate]) -> tuple[Coordinate, ...]:
    """Return where a reshape reads its operand for its result at `entries`."""
    groups = reassociation(op)
    expands = op.name == "tensor.expand_shape"
    shape = list((op.results[0] if expands else op.operands[0]).type.shape)
    if expands:
        return tuple(_merged([(entries[d], shape[d]) for d in group]) for group in groups)
    return tuple(
        digit
        for entry, group in zip(entries, groups)
        for digit in _digits(entry, [shape[d] for d in group])
    )


def _merged(digits: Sequence[tuple[Coordinate, int]]) -> Coordinate:
    """Return one coordinate for several digits, each with its extent, major first."""
    joined: list[tuple[Coordinate, int]] = []  # minor first
    for entry, extent in reversed([(e, n) for e, n in digits if n != 1]):
        both = _joined(entry, extent, *joined[-1]) if joined else None
        if both is None:
            joined.append((entry, extent))
        else:
            joined[-1] = both
    digits = joined[::-1]
    parts = [(e, prod(n for _, n in digits[i + 1 :])) for i, (e, n) in enumerate(digits)]
    if not parts:
        return ZERO
    (first, factor), *others = parts
    return first if not others and factor == 1 else Weighted(tuple(parts))


def _joined(
    high: Coordinate, count: int, low: Coordinate, extent: int
) -> tuple[Coordinate, int] | None:
    """Return high * extent + low, and its extent, where both are digits of one coordinate."""
    if not isinstance(low, Remainder) or low.divisor != extent:
        return None
    quotient = Quotient(low.of, extent)
    if high == quotient:
        return low.of, count * extent
    if high == Remainder(quotient, count):
        return Remainder(low.of, count * extent), count * extent
    return None


def _digits(entry: Coordinate, sizes: Sequence[int]) -> Iterator[Coordinate]:
    """Yield the digits of a coordinate, major first."""
    real = [k for k, n in enumerate(sizes) if n != 1]
    if isinstance(entry, Weighted) and [by for _, by in entry.parts] == [
        prod(sizes[k + 1 :]) for k in real
    ]:
        parts = iter([part for part, _ in entry.parts])
        yield from (ZERO if n == 1 else next(parts) for n in sizes)
        return
    for k, size in enumerate(sizes):
        below = prod(sizes[k + 1 :])
        if size == 1:
            yield ZERO
        elif len(real) == 1:
            yield entry
        else:
            high = entry if below == 1 else Quotient(entry, below)
            yield high if k == real[0] else Remainder(high, size)
