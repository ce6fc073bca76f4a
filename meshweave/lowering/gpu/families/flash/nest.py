"""Read a loop nest as an attention: two products, and what is made of the scores between them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from meshweave.ir.bindings import ir
from meshweave.ir.expressions import Apply, Constant, Index, Load, inputs, is_number, needed
from meshweave.ir.scores.attention import SCORES, WEIGHTED
from meshweave.lowering.gpu.families.products import Contraction, LoopGroup, ProductOperand
from meshweave.lowering.nests.bind import Access, LoopNest, NestNode, loops_of

Bound = tuple[bool, int, int]


@dataclass(frozen=True)
class AttentionNest:
    """Describe an attention.

    scores: Q K^T, of rows and keys; values: what weights the rows of V, of rows and columns. score: node of what is
    made of the sum `raw`; inside: the same where all `bounds` (see `AttentionForm`) hold. zeros: whether empty rows
    are 0. factor: what the scores are to be multiplied with, where that is all that `scaled`, made of `raw`, says.
    """

    scores: Contraction
    values: Contraction
    raw: int
    score: int
    inside: int
    bounds: tuple[Bound, ...]
    zeros: bool
    factor: float
    scaled: int

    @property
    def nest(self) -> LoopNest:
        """Return the nest, with a loop for each part."""
        return self.values.nest

    @property
    def keys(self) -> int:
        """Count the keys."""
        return self.values.depth


def attention_of(nest: LoopNest) -> AttentionNest | None:
    """Return the attention that a nest is, None for any other."""
    last = nest.code[nest.stores[0].value]
    if not isinstance(last, Apply) or last.name != WEIGHTED:
        return None
    score, inside, v, query = last.operands
    raw = next(k for k in needed(nest.code, [score, inside]) if _adds_up(nest.code[k]))
    operands = [loaded(nest, n) for n in (*inputs(nest.code[raw]), v)]
    loops = _loops(nest, last, score, [load.access for load in operands])
    bounds = bounds_of(last) if _runs_with(nest.code[query], loops["m"]) else ()
    names = [name for name, dims in loops.items() if not dims and name != "batch"]
    for number, name in enumerate(names):
        loops[name] = [len(nest.sizes) + number]
    nest = with_loops(nest, [name in ("key", "inner") for name in names])
    a, b, c = (loaded(nest, n).access for n in (*inputs(nest.code[raw]), v))
    batch, rows, columns, keys, inner = (
        LoopGroup(tuple(loops[name]), tuple([nest.sizes[d] for d in loops[name]]))
        for name in ("batch", "m", "n", "key", "inner")
    )
    store, dtype = nest.stores[0], str(operands[0].type)
    left = ProductOperand(a, rows, inner.strides(a))
    right = ProductOperand(b, keys, inner.strides(b))
    scores = Contraction(nest, batch, rows, keys, inner.sizes, left, right, store, dtype)
    right = ProductOperand(c, columns, keys.strides(c))
    values = Contraction(nest, batch, rows, columns, keys.sizes, left, right, store, dtype)
    inside = inside if bounds else score
    factor, scaled = _factor(nest, raw, {score, inside})
    zeros = last.attribute("zeros") is not None
    return AttentionNest(scores, values, raw, score, inside, bounds, zeros, factor, scaled)


def _adds_up(node: NestNode) -> bool:
    return isinstance(node, Apply) and node.name == SCORES


def loaded(nest: LoopNest, number: int) -> Load[Access]:
    """Return the node that loads an operand of a product."""
    node = nest.code[number]
    assert isinstance(node, Load), "q, k and v are loaded"
    return node


def bounds_of(last: Apply) -> tuple[Bound, ...]:
    """Return the bounds that the last node of a nest has."""
    numbers = list(last.attribute("bounds") or ())
    return tuple([(bool(u), s, o) for u, s, o in zip(numbers[::3], numbers[1::3], numbers[2::3])])


def _runs_with(query: NestNode, rows: Sequence[int]) -> bool:
    """Tell whether the number of a row is that of its query."""
    assert isinstance(query, Index), "a query is a loop"
    form = query.form
    runs = [(d, by) for d, by in enumerate(form.strides) if by]
    return bool(rows) and runs == [(rows[0], 1)] and not form.const and not form.scalars


def _loops(
    nest: LoopNest, last: Apply, score: int, operands: Sequence[Access]
) -> dict[str, list[int]]:
    """Return which loops are rows, columns, keys, and the sum of a score, at most one each; all others are a batch."""
    q, k, v = (access.strides for access in operands)
    reduced, of_score = sorted(nest.reductions), loops_of(nest)[score]
    query = last.operands[-1]
    first = set(loops_of(nest)[query])
    if len(reduced) == 1:
        several = last.attribute("keys") != ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 1)
        reduced = [reduced[0], -1] if several else [-1, reduced[0]]
    key, inner = reduced or (-1, -1)
    rows = [d for d in nest.parallel if q[d] and not k[d] and not v[d]]
    rows.sort(key=lambda d: (d not in first, -nest.sizes[d]))
    columns = [d for d in nest.parallel if v[d] and not q[d] and not k[d] and d not in of_score]
    columns.sort(key=lambda d: abs(v[d]))
    found = {
        "m": rows[:1], "n": columns[:1],
        "key": [key] if key >= 0 else [], "inner": [inner] if inner >= 0 else [],
    }  # fmt: skip
    alone = {d for dims in found.values() for d in dims}
    return {**found, "batch": [d for d in nest.parallel if d not in alone]}


def with_loops(nest: LoopNest, reducing: Sequence[bool]) -> LoopNest:
    """Return the nest with loops of one trip behind the others, of which some reduce."""
    none, count = (0,) * len(reducing), len(nest.sizes)

    def longer(access: Access) -> Access:
        return access._replace(strides=(*access.strides, *none))

    code: list[NestNode] = []
    for node in nest.code:
        if isinstance(node, Load):
            node = Load(longer(node.access), node.type)
        elif isinstance(node, Index):
            node = Index(node.form._replace(strides=(*node.form.strides, *none)))
        code.append(node)
    more = {count + n for n, reduces in enumerate(reducing) if reduces}
    return replace(
        nest,
        sizes=(*nest.sizes, *[1] * len(reducing)),
        reductions=nest.reductions | more,
        code=tuple(code),
        stores=tuple([replace(s, access=longer(s.access)) for s in nest.stores]),
    )


def _factor(nest: LoopNest, raw: int, ends: Collection[int]) -> tuple[float, int]:
    """Return a number and the node that is `raw` times it, of which scores are made with masks of -inf alone.

    Where they are not, 1 and `raw` itself.
    """
    below = needed(nest.code, ends)
    readers = [n for n in below if raw in inputs(nest.code[n])]
    none = 1.0, raw
    if len(readers) != 1 or raw in ends:
        return none
    (number,) = readers
    node = nest.code[number]
    if not isinstance(node, Apply) or node.name not in ("arith.mulf", "arith.divf"):
        return none
    others = [k for k in node.operands if k != raw]
    known = nest.code[others[0]] if len(others) == 1 else None
    if not isinstance(known, Constant) or (node.name == "arith.divf" and node.operands[0] != raw):
        return none
    value = float(known.value.value)
    by = value if node.name == "arith.mulf" else (1.0 / value if value else 0.0)
    if not math.isfinite(by) or by <= 0.0:
        return none
    return (by, number) if all(_masks(nest, end, number) for end in ends) else none


def _masks(nest: LoopNest, node: int, scaled: int) -> bool:
    """Tell whether a node is `scaled`, or -inf where conditions say so, which do not depend on it."""
    while node != scaled:
        made = nest.code[node]
        if not isinstance(made, Apply) or made.name != "arith.select":
            return False
        condition, *sides = made.operands
        rest = [k for k in sides if not is_number(nest.code[k], -math.inf)]
        if len(rest) != 1 or scaled in needed(nest.code, [condition]):
            return False
        node = rest[0]
    return True
