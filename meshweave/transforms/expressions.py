"""Elements of tensors as expressions over loop coordinates; elementwise ops, copies, reshapes are looked through.

A node is a number; equal nodes have one number. Kinds:

    ("leaf", value, entries)        element of a tensor, one entry for each of its dims
    ("index", entry)                a coordinate, as an index
    ("const", attribute)            ("value", v)     a number known now, or a scalar of the program
    ("op", name, attributes, nodes, type)

An entry is ("dim", d), ("number", n), ("sum", ((entry, factor), ..)), ("div", entry, n) or ("mod", entry, n).
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from meshweave.bindings import ir

Entry = tuple[Any, ...]
Node = tuple[Any, ...]
ZERO: Entry = ("number", 0)
RESHAPES = ("tensor.expand_shape", "tensor.collapse_shape")
_MARKS = ("hint.", "mw.", "dist.")


def dims_of(entry: Entry) -> frozenset[int]:
    """The coordinates that an entry depends on."""
    if entry[0] == "dim":
        return frozenset({entry[1]})
    if entry[0] == "number":
        return frozenset()
    if entry[0] == "sum":
        return frozenset().union(*(dims_of(e) for e, _ in entry[1]))
    return dims_of(entry[1])


class Opaque(Exception):
    """A body that is no expression: it reads at computed places, or loops."""


class Expressions:
    """Builds nodes. visited: the ops that have been looked through, in the order met."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.visited: dict[Any, None] = {}
        self._numbers: dict[Node, int] = {}
        self._known: dict[tuple[Any, tuple[Entry, ...]], int] = {}

    def node(self, value: Any, entries: Sequence[Entry]) -> int:
        """The element of tensor `value` at `entries`; in a dim of one element, at 0."""
        sized = zip(entries, value.type.shape)
        key = (value, tuple(ZERO if extent == 1 else entry for entry, extent in sized))
        if key not in self._known:
            self._known[key] = self._node(*key)
        return self._known[key]

    def put(self, node: Node) -> int:
        """The number of a node."""
        if node not in self._numbers:
            self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return self._numbers[node]

    def below(self, node: int) -> list[int]:
        """The node and all that it is made of, each once."""
        found: dict[int, None] = {}
        left = [node]
        while left:
            n = left.pop()
            if n not in found:
                found[n] = None
                left += self.nodes[n][3] if self.nodes[n][0] == "op" else ()
        return list(found)

    def dims(self, node: int) -> frozenset[int]:
        """The coordinates that a node depends on."""
        found: set[int] = set()
        for n in self.below(node):
            kind = self.nodes[n]
            if kind[0] == "leaf":
                found.update(*(dims_of(e) for e in kind[2]))
            elif kind[0] == "index":
                found |= dims_of(kind[1])
        return frozenset(found)

    def _node(self, value: Any, entries: tuple[Entry, ...]) -> int:
        owner = value.owner
        if not isinstance(owner, ir.Block):
            op = owner.operation
            if op.name == "arith.constant":
                attr = op.attributes["value"]
                if isinstance(attr, ir.DenseElementsAttr) and attr.is_splat:
                    return self.put(("const", attr.get_splat_value()))
            elif op.name == "tensor.splat" and len(op.operands) == 1:
                return self._scalar(op.operands[0])
            elif op.name in RESHAPES:
                self.visited[op] = None
                return self.node(op.operands[0], reshaped(op, entries))
            elif op.name == "linalg.generic" and (loops := self._loops(op, entries)) is not None:
                try:
                    found = self.body(op, loops)
                except Opaque:
                    return self.put(("leaf", value, entries))
                self.visited[op] = None
                return found
        return self.put(("leaf", value, entries))

    def _loops(self, op: Any, entries: tuple[Entry, ...]) -> list[Entry] | None:
        """The loops of an elementwise op where its result is read at `entries`; None for any other op."""
        maps = maps_of(op)
        if maps is None or len(op.results) != 1 or reductions_of(op):
            return None
        if any(True for _ in op.regions[0].blocks[0].arguments[len(op.operands) - 1].uses):
            return None
        if not isinstance(op.results[0].type, ir.RankedTensorType):
            return None
        loops: list[Entry | None] = [None] * len(list(op.attributes["iterator_types"]))
        for expr, entry in zip(maps[-1], entries):
            if expr[0] == "dim":
                loops[expr[1]] = entry
        return None if any(e is None for e in loops) else loops  # type: ignore[return-value]

    def body(self, op: Any, loops: Sequence[Entry], result: int | None = None) -> int:
        """What the body of a linalg.generic computes with its loops at `loops`.

        result: instead of what it yields, the operand of its last op with this number. Raises Opaque where the body
        does what no expression says.
        """
        block, maps = op.regions[0].blocks[0], maps_of(op)
        assert maps is not None
        made: dict[Any, int] = {}
        wanted = _needed(block, result)
        for k, (value, argument) in enumerate(zip(op.operands, block.arguments)):
            if argument in wanted:
                made[argument] = self._operand(value, at_loops(maps[k], loops))
        for view in block.operations:
            inner = view.operation
            if inner.name == "linalg.yield" or not any(r in wanted for r in inner.results):
                continue
            if inner.name == "linalg.index":
                made[inner.results[0]] = self.put(("index", loops[inner.attributes["dim"].value]))
            elif inner.name == "arith.constant":
                made[inner.results[0]] = self.put(("const", inner.attributes["value"]))
            elif len(inner.results) != 1 or len(inner.regions) or inner.name == "tensor.extract":
                raise Opaque
            else:
                operands = tuple(made[v] if v in made else self._scalar(v) for v in inner.operands)
                attrs = tuple(
                    (name, inner.attributes[name])
                    for name in inner.attributes
                    if not name.startswith(_MARKS)
                )
                made[inner.results[0]] = self.put(
                    ("op", inner.name, attrs, operands, inner.results[0].type)
                )
        last = _last(block, result)
        return made[last] if last in made else self._scalar(last)

    def _operand(self, value: Any, entries: Sequence[Entry]) -> int:
        if isinstance(value.type, ir.RankedTensorType):
            return self.node(value, entries)
        return self._scalar(value)

    def _scalar(self, value: Any) -> int:
        owner = value.owner
        if not isinstance(owner, ir.Block) and owner.operation.name == "arith.constant":
            return self.put(("const", owner.operation.attributes["value"]))
        return self.put(("value", value))


def _last(block: Any, result: int | None) -> Any:
    """What the body yields, or an operand of the op that makes it."""
    end = block.operations[len(block.operations) - 1].operation
    yielded = end.operands[0]
    return yielded if result is None else yielded.owner.operation.operands[result]


def _needed(block: Any, result: int | None) -> set[Any]:
    """The values of a body that its last one is made of."""
    found: set[Any] = set()
    left = [_last(block, result)]
    while left:
        value = left.pop()
        if value not in found:
            found.add(value)
            if not isinstance(value.owner, ir.Block):
                left += list(value.owner.operation.operands)
    return found


def maps_of(op: Any) -> list[tuple[Entry, ...]] | None:
    """The indexing maps of a linalg.generic, loops as ("dim", loop); None where one is no loop or number."""
    found = []
    for attr in op.attributes["indexing_maps"]:
        entries: list[Entry] = []
        for expr in attr.value.results:
            if isinstance(expr, ir.AffineDimExpr):
                entries.append(("dim", expr.position))
            elif isinstance(expr, ir.AffineConstantExpr):
                entries.append(("number", expr.value))
            else:
                return None
        found.append(tuple(entries))
    return found


def reductions_of(op: Any) -> tuple[int, ...]:
    """The loops of a linalg.generic that are not parallel."""
    kinds = op.attributes["iterator_types"]
    return tuple(k for k, kind in enumerate(kinds) if "parallel" not in str(kind))


def at_loops(entries: Sequence[Entry], loops: Sequence[Entry]) -> tuple[Entry, ...]:
    """An operand's entries, its loops being at `loops`."""
    return tuple(loops[e[1]] if e[0] == "dim" else e for e in entries)


def reshaped(op: Any, entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Where a reshape reads its operand for its result at `entries`."""
    groups = [[i.value for i in group] for group in op.attributes["reassociation"]]
    expands = op.name == "tensor.expand_shape"
    shape = list((op.results[0] if expands else op.operands[0]).type.shape)
    if expands:
        return tuple(_joined([(entries[d], shape[d]) for d in group]) for group in groups)
    return tuple(
        digit
        for entry, group in zip(entries, groups)
        for digit in _digits(entry, [shape[d] for d in group])
    )


def _joined(digits: Sequence[tuple[Entry, int]]) -> Entry:
    """One coordinate of several digits, major first."""
    parts = [(e, prod(n for _, n in digits[i + 1 :])) for i, (e, n) in enumerate(digits) if n != 1]
    if not parts:
        return ZERO
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    return ("sum", tuple(parts))


def _digits(entry: Entry, sizes: Sequence[int]) -> Iterator[Entry]:
    """The digits of a coordinate, major first."""
    real = [k for k, n in enumerate(sizes) if n != 1]
    for k, size in enumerate(sizes):
        below = prod(sizes[k + 1 :])
        if size == 1:
            yield ZERO
        elif len(real) == 1:
            yield entry
        else:
            high = entry if below == 1 else ("div", entry, below)
            yield high if k == real[0] else ("mod", high, size)
