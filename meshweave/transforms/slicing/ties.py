"""Find which dims of a region's values run together: those that ops tie by one factor, through all of the region.

A dim is a node: of a value made in the region, or of one use of a value that comes from outside or costs nothing to
make anew, since each use of such a value may get its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from meshweave.ir.bindings import ir
from meshweave.ir.ops import terminator
from meshweave.layout.factors import IN_ORDER, PARALLEL, REDUCTION, WHOLE
from meshweave.layout.layout import Factor
from meshweave.transforms.base import walk
from meshweave.transforms.propagation.bodies import is_tensor
from meshweave.transforms.propagation.graph import MANUAL
from meshweave.transforms.propagation.rules.table import RuleTable
from meshweave.transforms.propagation.values import is_free, is_made_free

SAME = ("dist.constrain", "hint.place")
REGIONS = ("hint.region", "scf.execute_region", "scf.if")


DimFactors = tuple[Factor, ...]
"""The factors of one dim in a layout, major first."""


@dataclass(frozen=True)
class MadeDim:
    """Name dim `dim` of a value that the region makes."""

    value: ir.Value
    dim: int


@dataclass(frozen=True)
class UsedDim:
    """Name dim `dim` of operand `operand` of `op`, which is free or comes from outside."""

    op: ir.Operation
    operand: int
    dim: int

    @property
    def value(self) -> ir.Value:
        """Return the operand."""
        return self.op.operands[self.operand]


@dataclass(frozen=True)
class OpFactor:
    """Name a factor of an op: the loops of a linalg op come first, by number."""

    op: ir.Operation
    number: int
    kind: str
    padding_safe: bool


Node = MadeDim | UsedDim | OpFactor


class Ties:
    """Sort the dims of a region into classes that run together."""

    def __init__(self, region: ir.Operation) -> None:
        self.region = region
        self._parent: dict[Node, Node] = {}
        self._table = RuleTable()
        inside = {op for op in walk(region) if op != region}
        self._made = {r for op in inside for r in op.results} | {
            a for op in walk(region) for g in op.regions for b in g.blocks for a in b.arguments
        }
        self._block(region.regions[0].blocks[0])

    def together(self, node: Node) -> list[Node]:
        """Return all nodes that run with `node`, itself among them."""
        root = self.find(node)
        return [n for n in list(self._parent) if self.find(n) == root]

    def find(self, node: Node) -> Node:
        """Return the representative of the class of `node`."""
        self._parent.setdefault(node, node)
        while self._parent[node] != node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def operand(self, op: ir.Operation, i: int, dim: int) -> Node:
        """Return the node of a dim of an operand."""
        value = op.operands[i]
        free = is_made_free(value)
        return UsedDim(op, i, dim) if free or value not in self._made else MadeDim(value, dim)

    def _tie(self, a: Node, b: Node) -> None:
        self._parent[self.find(a)] = self.find(b)

    def _block(self, block: ir.Block) -> None:
        for view in block.operations:
            op = view.operation
            if op.name in ("hint.yield", "scf.yield", "scf.condition") or is_free(op):
                continue
            if op.name in SAME:
                self._hands(op, 0, [op.results[0]])
            elif op.name in REGIONS and MANUAL not in op.attributes:
                for region in op.regions:
                    self._inner(region, [list(op.results)], 0)
            elif op.name == "scf.for":
                carried = list(op.regions[0].blocks[0].arguments)[1:]
                self._hands(op, 3, carried)
                self._inner(op.regions[0], [list(op.results), carried], 0)
            elif op.name == "scf.while":
                before, after = (list(g.blocks[0].arguments) for g in op.regions)
                self._hands(op, 0, before)
                self._inner(op.regions[0], [list(op.results), after], 1)
                self._inner(op.regions[1], [before], 0)
            elif any(is_tensor(v.type) for v in [*op.operands, *op.results]):
                self._op(op)

    def _inner(self, region: ir.Operation, targets: list[list[ir.Value]], first: int) -> None:
        """Tie a region whose end hands its operands from `first` on to each row of values."""
        if not len(region.blocks):
            return
        for row in targets:
            self._hands(terminator(region.blocks[0]), first, row)
        self._block(region.blocks[0])

    def _hands(self, op: ir.Operation, first: int, values: list[ir.Value]) -> None:
        """Tie operand first + i of `op` to values[i], which it becomes."""
        for i, value in enumerate(values):
            for d in range(len(value.type.shape) if is_tensor(value.type) else 0):
                self._tie(self.operand(op, first + i, d), MadeDim(value, d))

    def _op(self, op: ir.Operation) -> None:
        number, captured, _ = self._table.rule(op)
        rule = self._table.rules[number]
        places = [(op, i) for i in range(len(op.operands))]
        places += [(c.reader, c.operand) for c in captured]
        rows: list[list[Node]] = [self.operand_row(*p) for p in places]
        rows += [
            [MadeDim(r, d) for d in range(len(r.type.shape))] if is_tensor(r.type) else []
            for r in op.results
        ]
        for nodes, dims in zip(rows, rule.tensors):
            for node, dim in zip(nodes, dims or ()):
                for k in dim:
                    kind = rule.factors[k].kind if len(dim) == 1 else WHOLE
                    kind = WHOLE if kind in IN_ORDER else kind  # the slices would not be the whole
                    self._tie(node, OpFactor(op, k, kind, rule.padding_safe))

    def operand_row(self, op: ir.Operation, i: int) -> list[Node]:
        """Return the nodes of an operand's dims."""
        type_ = op.operands[i].type
        return [self.operand(op, i, d) for d in range(len(type_.shape) if is_tensor(type_) else 0)]


def loops(nodes: list[Node], *kinds: str) -> Iterator[OpFactor]:
    """Yield the factors of these kinds among `nodes`."""
    for node in nodes:
        if isinstance(node, OpFactor) and node.kind in kinds:
            yield node


__all__ = [
    "PARALLEL",
    "REDUCTION",
    "WHOLE",
    "MadeDim",
    "Node",
    "OpFactor",
    "Ties",
    "UsedDim",
    "loops",
]
