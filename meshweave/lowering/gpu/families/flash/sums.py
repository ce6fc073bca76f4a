"""Read a loop nest as sums of what is made of scores, which are products of rows and turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshweave.ir.expressions import Apply, Index, inputs
from meshweave.ir.scores.reduced import REDUCED
from meshweave.lowering.gpu.families.flash.nest import Bound, bounds_of, loaded, with_loops
from meshweave.lowering.gpu.families.products import Contraction, LoopGroup, ProductOperand
from meshweave.lowering.nests.bind import LoopNest


@dataclass(frozen=True)
class ScoreSums:
    """Describe a reduction of what is made of scores.

    scores: the products, of rows and turns, by their node. result: what is reduced, times a matrix of turns and columns
    where `weighted`. value: node of what is made of the scores; inside: the same where all `bounds` hold. heads: loops
    that are added up besides. kind: see `ReducedForm`.
    """

    scores: Mapping[int, Contraction]
    result: Contraction
    weighted: bool
    value: int
    inside: int
    bounds: tuple[Bound, ...]
    heads: LoopGroup
    kind: str

    @property
    def nest(self) -> LoopNest:
        """Return the nest, with a loop for each part."""
        return self.result.nest

    @property
    def turns(self) -> int:
        """Count the turns of one head."""
        return self.result.depth

    @property
    def turn(self) -> int:
        """Return the loop of the turns."""
        return next(iter(self.scores.values())).n.dims[0]


def sums_of(nest: LoopNest) -> ScoreSums | None:
    """Return the sums that a nest is, None for any other."""
    last = nest.code[nest.stores[0].value]
    if not isinstance(last, Apply) or last.name != REDUCED:
        return None
    products, weighted = (int(_attribute(last, name)) for name in ("products", "weighted"))
    value, inside, *rest = last.operands
    raws, other, indices = (
        rest[:products],
        rest[products : products + weighted],
        rest[products + weighted :],
    )
    loops = [_loop(nest, number) for number in indices]
    parts, heads = loops[: 3 + products], [d for d in loops[3 + products :] if d is not None]
    more = [k for k, d in enumerate(parts) if d is None]
    nest, count = with_loops(nest, [k > 1 for k in more]), len(nest.sizes)
    for at, k in enumerate(more):
        parts[k] = count + at
    row, column, turn, *inner = (LoopGroup((d,), (nest.sizes[d],)) for d in parts if d is not None)
    alone = {*row.dims, *column.dims}
    dims = tuple([d for d in nest.parallel if d not in alone])
    batch = LoopGroup(dims, tuple([nest.sizes[d] for d in dims]))
    store = nest.stores[0]
    scores: dict[int, Contraction] = {}
    for raw, sum_ in zip(raws, inner):
        loads = [loaded(nest, n) for n in inputs(nest.code[raw])]
        left, right = (
            ProductOperand(load.access, loop, sum_.strides(load.access))
            for load, loop in zip(loads, (row, turn))
        )
        dtype = str(loads[0].type)
        scores[raw] = Contraction(nest, batch, row, turn, sum_.sizes, left, right, store, dtype)
    first = next(iter(scores.values()))
    last_matrix = first.b
    if other:
        access = loaded(nest, other[0]).access
        last_matrix = ProductOperand(access, column, turn.strides(access))
    result = Contraction(
        nest, batch, row, column, turn.sizes, first.a, last_matrix, store, first.dtype
    )
    added = LoopGroup(tuple(heads), tuple([nest.sizes[d] for d in heads]))
    kind = str(_attribute(last, "kind"))
    return ScoreSums(scores, result, bool(other), value, inside, bounds_of(last), added, kind)


def _attribute(last: Apply, name: str) -> str | int:
    found = last.attribute(name)
    assert found is not None, f"{name} is said of sums"
    made: str | int = found.value
    return made


def _loop(nest: LoopNest, number: int) -> int | None:
    """Return the loop that a node is the index of; None for one of one trip."""
    node = nest.code[number]
    assert isinstance(node, Index) and not node.form.const, "a loop is named by its index"
    runs = [(d, by) for d, by in enumerate(node.form.strides) if by]
    assert len(runs) < 2 and all(by == 1 for _, by in runs), "loops that are named are not merged"
    return runs[0][0] if runs else None
