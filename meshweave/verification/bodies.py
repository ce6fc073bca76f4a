"""Read the bodies of linalg ops. Most are one of a few: each is read once, and known by what it is written of."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property, lru_cache
from typing import NamedTuple

from meshweave.ir.bindings import ir
from meshweave.ir.expressions import Apply, Argument, Body, Gather, Scalar, needed
from meshweave.verification.said import AttributeTexts
from meshweave.verification.terms.arith import COMBINES, kind_of

_ENDS = ("linalg.yield", "tensor.yield", "mw.yield")
_COUNT = range(1 << 30)


class AppliedOp(NamedTuple):
    """Describe an op of a body as terms are made of it. operands: numbers of nodes; without a name it gives these."""

    name: str
    detail: tuple[Hashable, ...]
    type: str
    operands: tuple[int, ...]


class CombiningStep(NamedTuple):
    """Describe how a body combines an accumulator with an element.

    op: what does so. kind: of reduction. element, condition: nodes; without a condition it always does. reads: what
    both are computed from.
    """

    op: AppliedOp
    kind: str
    element: int
    condition: int | None
    reads: tuple[int, ...]


class ReadBody:
    """Hold a body, and what is asked of it for each op that has it.

    count: of results. applied: each node that is an op, None for others. only: the op that is all the body does to its
    arguments, without a name where it hands an argument on, None for another body.
    """

    def __init__(self, body: Body, said: AttributeTexts) -> None:
        self.body, self.count = body, len(body.results)
        self.applied = [
            AppliedOp(n.name, said.detail(n.attributes), said.text(n.type), n.operands)
            if isinstance(n, Apply)
            else None
            for n in body.nodes
        ]
        self.only = self._only()
        self._steps: dict[int, list[CombiningStep | None]] = {}

    def _only(self) -> AppliedOp | None:
        nodes, results = self.body.nodes, self.body.results
        if len(results) != 1:
            return None
        op = self.applied[results[0]] or AppliedOp("", (), "", results)
        return op if all(isinstance(nodes[k], Argument) for k in op.operands) else None

    @cached_property
    def scalars(self) -> list[int]:
        """Return the nodes that are values from around the op."""
        return [k for k, node in enumerate(self.body.nodes) if isinstance(node, Scalar)]

    @cached_property
    def looks_around(self) -> bool:
        """Tell whether it reads values from around the op: numbers, or elements of tensors."""
        return any(isinstance(node, (Scalar, Gather)) for node in self.body.nodes)

    @cached_property
    def all(self) -> list[int]:
        """Return the nodes that results are computed from, in order."""
        return sorted(needed(self.body.nodes, self.body.results))

    def steps(self, first: int) -> list[CombiningStep | None]:
        """Return how each result is reduced; None for one that is not. first: the number of the first accumulator."""
        found = self._steps.get(first)
        if found is None:
            held = range(first, first + len(self.body.results))
            found = [self._step(root, k, held) for k, root in zip(held, self.body.results)]
            self._steps[first] = found
        return found

    def _step(self, root: int, out: int, held: range) -> CombiningStep | None:
        op, condition = self.applied[root], None
        if op is not None and op.name == "arith.select" and op.operands[2] == out:
            condition, op = op.operands[0], self.applied[op.operands[1]]
        if op is None or op.name not in COMBINES or len(op.operands) != 2:
            return None
        for acc, element in (op.operands, op.operands[::-1]):
            roots = [element] if condition is None else [element, condition]
            reads = needed(self.body.nodes, roots)
            if acc == out and not reads.intersection(held):
                kind = kind_of(op.name, op.type) or ""
                return CombiningStep(op, kind, element, condition, tuple(sorted(reads)))
        return None


def written(block: ir.Block, outer: list[ir.Value]) -> tuple[Hashable, ...] | None:
    """Return what a body is written of: each op with its attributes and type, and where its operands come from.

    Bodies that are written of the same compute the same. outer: takes the values from around the op, which are told
    apart by the order in which they are read. None for a body that is not known by this: that has ops of several
    results or with regions, or reads elements of tensors.
    """
    numbers: dict[ir.Value, int] = dict(zip(block.arguments, _COUNT))
    key: list[Hashable] = [len(numbers)]
    number = numbers.__getitem__
    for view in block.operations:
        op = view.operation
        name = op.name
        try:
            reads = tuple(map(number, op.operands))
        except KeyError:
            for value in op.operands:
                if value not in numbers:
                    outer.append(value)
                    numbers[value] = -len(outer)
            reads = tuple(map(number, op.operands))
        if name in _ENDS:
            key += name, reads
            return tuple(key)
        results = op.results
        if len(results) != 1 or not _has_no_regions(name):
            return None
        result = results[0]
        key += name, reads, result.type
        key += op.attributes.items()  # none or few
        numbers[result] = len(numbers)
    return None


@lru_cache(maxsize=1 << 8)
def _has_no_regions(name: str) -> bool:
    return name.startswith(("arith.", "math.", "complex.", "linalg.index"))
