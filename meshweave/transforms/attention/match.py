"""Recognise attention as a program says it: softmax(f(q k^T)) v, in whatever ops it is written.

The last product is where it is looked for. Its left operand, as an expression over the loops, must be exp(s - m) / l
with m the maximum and l the sum over the keys of the same s, and s any elementwise function of one product q k^T, of
masks, biases and positions. Nothing else may read what would be no more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import inf, prod

from meshweave.ir.bindings import ir
from meshweave.ir.expressions import Apply, Constant, Load
from meshweave.transforms.attention.expressions import (
    ZERO,
    Coordinate,
    Expressions,
    LoopIndex,
    Operand,
    at_loops,
    dims_of,
    has_exponential,
    loops_in,
    written_at,
)
from meshweave.transforms.attention.product import MatrixProduct, divided_product, product_of
from meshweave.transforms.attention.softmax import NotAttention, Softmax
from meshweave.transforms.base import unused, users

MIN_BYTES = 64 << 10
"""Of one score matrix: smaller ones stay in the first caches, and nothing is won without them."""
FLOATS = ("f32", "f64")
"""What scores may be where they are computed as they are written."""


@dataclass
class Attention:
    """Describe an attention. Loops are numbered as those of its last product; `inner` is the first product's sum.

    final:   the last product; sizes: of all loops; score: node of the scores before softmax, made of the node `raw`,
             which is `scale` times the product of query and key.
    writes:  of the result, a coordinate for each dim.
    weights: type of the softmax as the last product reads it.
    ends:    whether the keys end at a size that a call chooses.
    zeros:   whether a row that its mask leaves nothing of is 0; otherwise it is 0/0.
    first:   the product of queries and keys.
    visited: all ops that it replaces or looks through.
    """

    final: ir.Operation
    first: ir.Operation
    sizes: dict[int, int]
    batch: tuple[int, ...]
    query: int
    key: int
    column: int
    inner: int
    q: Operand
    k: Operand
    v: Operand
    expressions: Expressions
    score: int
    raw: int
    writes: tuple[Coordinate, ...]
    dtype: ir.Type
    weights: ir.Type
    zeros: bool
    ends: bool
    visited: list[ir.Operation] = field(default_factory=list)

    @property
    def ops(self) -> tuple[ir.Operation, ...]:
        """Return all ops that it is made of, and those that it looks through."""
        return (self.final, *self.visited)


def match(
    op: ir.Operation,
    dtypes: Sequence[str] = FLOATS,
    least: int = MIN_BYTES,
    alone: bool = False,
    shared: bool = False,
    plain: set[ir.Value] | None = None,
) -> Attention:
    """Return the attention that ends in `op`: in a product, or in the division of one by the sum over its keys.

    dtypes: types that its scores may have; least: bytes that a head's scores must exceed; alone: whether a head may
    have a single query; shared: whether something else may read its scores. plain: see `has_exponential`, for those
    who ask about many ops. Raises NotAttention, with the reason.
    """
    product, divided = product_of(op), None
    if product is None:
        product, divided = divided_product(op), op
    if product is None:
        raise NotAttention("no product of two tensors")
    reason = NotAttention("no softmax before it")
    seen = set[ir.Value]() if plain is None else plain
    for which in (0, 1):
        if not has_exponential(product.operands[which].value, seen):
            continue
        try:
            return _Match(product, which, divided, dtypes, least, alone, shared).run()
        except NotAttention as error:
            reason = error if error.args[0].startswith("the scores") else reason
    raise reason


class _Match:
    """Try with operand `which` of the last product as the softmax.

    divided: the op that divides the product by the sums, where the softmax is not divided itself.
    """

    def __init__(
        self,
        last: MatrixProduct,
        which: int,
        divided: ir.Operation | None,
        dtypes: Sequence[str],
        least: int,
        alone: bool,
        shared: bool,
    ) -> None:
        self.dtypes, self.least, self.alone, self.shared = dtypes, least, alone, shared
        self.last, self.which, self.divided = last, which, divided
        self.weights, self.v = last.operands[which], last.operands[1 - which]
        self.ex = Expressions()
        self.softmax = Softmax(self.ex, last.reduced, last.sizes[last.reduced])

    def run(self) -> Attention:
        """Return the attention, or raise NotAttention."""
        last, weights = self.last, self.weights
        key = last.reduced
        in_weights, in_v = weights.loops, self.v.loops
        written = loops_in(last.writes)
        columns = [d for d in in_v - in_weights if d in written]
        rows = [d for d in in_weights - in_v if d in written]
        if len(columns) != 1 or not rows or key not in in_weights & in_v:
            raise NotAttention("its loops are not those of weights and values")
        query = max(rows, key=lambda d: (last.sizes[d], d))
        batch = tuple(sorted(set(range(len(last.sizes))) - {query, key, columns[0]}))
        if any(d not in written for d in batch):
            raise NotAttention("its loops are not those of weights and values")
        self.query, self.key, self.inner = query, key, len(last.sizes)
        alone = self.alone and last.sizes[query] == 1
        self.rows: set[int] = set() if alone else {query}  # what reads queries runs with
        root = self.ex.node(weights.value, weights.entries)
        rounded = self.softmax.op(root, "arith.truncf")  # what is never stored is not rounded
        root = root if rounded is None else rounded[0]
        root = root if self.shared else self.softmax.take_end(root)
        root, emptied = self.softmax.emptied(root)
        if any(self.softmax.op(n, "math.exp") for n in self.ex.below(root)):
            self._of_floats(self.softmax.element(root))
        exponent, zeros = self.softmax.matched(*self._parts(root))
        if emptied not in (None, exponent):
            raise NotAttention("no softmax before it: other scores say which rows are empty")
        dtype = last.op.results[0].type.element_type
        self._of_floats(str(dtype))
        self._of_floats(self.softmax.element(exponent), str(dtype))
        score, first, entries = self._score(exponent)
        self._of_floats(str(first.op.results[0].type.element_type), str(dtype))
        q, k, extent = self._sides(first, entries)
        raw = self.ex.node(first.op.results[0], entries)
        if self.softmax.end is not None:
            low = self.ex.put(Constant(ir.FloatAttr.get(dtype, -inf), dtype))
            score = self.ex.put(Apply("arith.select", (), (self.softmax.end, score, low), dtype))
        sizes = {**dict(enumerate(last.sizes)), self.inner: extent}
        self._worth(sizes, first)
        v = source_of(self.v, (key, columns[0]))
        final = last.op if self.divided is None else self.divided
        found = Attention(
            final, first.op, sizes, batch, query, key, columns[0], self.inner, q, k, v, self.ex, score, raw,
            last.writes, dtype, weights.value.type.element_type, zeros or emptied is not None,
            self.softmax.end is not None,
        )  # fmt: skip
        visited = dict.fromkeys([last.op, *self.ex.visited, *self.softmax.reductions, first.op])
        found.visited = [op for op in visited if op != final]
        inside, readers = made_of(first.op, set(found.visited))
        outside = [op for op in readers if op != final]
        if outside and not self.shared:
            raise NotAttention(f"the scores are read by {outside[0].name} too")
        if any(op.results[0] == self.v.value for op in inside):
            raise NotAttention("the scores are its values too")
        return found

    def _of_floats(self, element: str, wanted: str | None = None) -> None:
        """Refuse an element type that scores cannot have, or that is not `wanted`."""
        if element not in self.dtypes:
            raise NotAttention(f"the scores are {element}, {' or '.join(self.dtypes)} is needed")
        if wanted not in (None, element):
            raise NotAttention(f"the scores are {element}, what they are multiplied with {wanted}")

    def _worth(self, sizes: dict[int, int], first: MatrixProduct) -> None:
        matrix = (
            sizes[self.query] * sizes[self.key] * first.op.results[0].type.element_type.width // 8
        )
        if matrix <= self.least:
            raise NotAttention(f"the scores are {matrix} bytes for each head: they fit the caches")

    def _parts(self, root: int) -> tuple[int, int]:
        """Return (e, l) of the softmax e / l, of which `root` is all, or e alone where the product is divided."""
        if self.divided is None:
            return self.softmax.share(root)
        product, total = self.softmax.share(self.ex.node(self.divided.results[0], self.last.writes))
        load = self.ex.nodes[product]
        if not isinstance(load, Load) or load.access.value != self.last.op.results[0]:
            raise NotAttention("no softmax before it")
        return root, total

    # the scores: an elementwise function of one product

    def _score(self, score: int) -> tuple[int, MatrixProduct, tuple[Coordinate, ...]]:
        """Return the product that the scores are made of, and where they read it."""
        found = []
        for read in self.ex.loads_below(score).values():
            made = read.value.owner
            if {*self.rows, self.key} <= read.loops and not isinstance(made, ir.Block):
                product = product_of(made.operation)
                if product is not None:
                    found.append((product, read.entries))
                    continue
            plain(read.entries, (self.query, self.key), needed=False)
        if len(found) != 1:
            raise NotAttention("no product of queries and keys before it")
        return score, *found[0]

    def _sides(
        self, first: MatrixProduct, entries: tuple[Coordinate, ...]
    ) -> tuple[Operand, Operand, int]:
        """Return queries and keys as the loops of the last product read them, and the extent of the sum."""
        written = {**written_at(first.writes, entries), first.reduced: LoopIndex(self.inner)}
        loops = [written.get(k, ZERO) for k in range(len(first.sizes))]
        sides = [Operand(o.value, at_loops(o.entries, loops)) for o in first.operands]
        dims = [side.loops for side in sides]
        if self.key in dims[0]:
            sides, dims = sides[::-1], dims[::-1]
        if (
            not self.rows <= dims[0]
            or self.key in dims[0]
            or self.key not in dims[1]
            or self.query in dims[1]
        ):
            raise NotAttention("no product of queries and keys before it")
        q = source_of(sides[0], (*self.rows, self.inner))
        k = source_of(sides[1], (self.key, self.inner))
        return q, k, first.sizes[first.reduced]


def source_of(side: Operand, dims: Sequence[int]) -> Operand:
    """Return the same elements before all copies and reshapes that only move them."""
    copies = Expressions()
    node = copies.nodes[copies.node(side.value, side.entries)]
    if isinstance(node, Load):
        try:
            plain(node.access.entries, dims, needed=True)
            return node.access
        except NotAttention:
            pass
    plain(side.entries, dims, needed=True)
    return side


def made_of(
    first: ir.Operation, visited: Collection[ir.Operation]
) -> tuple[list[ir.Operation], list[ir.Operation]]:
    """Return those of `visited` that are made of the result of `first`, and the others that read them."""
    inside, outside, left = {first: None}, dict[ir.Operation, None](), [first]
    while left:
        for reader in users(left.pop().results[0]):
            op = reader.operation
            if op not in visited:
                outside[op] = None
            elif op not in inside:
                inside[op] = None
                left.append(op)
    return list(inside), list(outside)


def plain(entries: Sequence[Coordinate], dims: Sequence[int], needed: bool) -> None:
    """Refuse entries that read loops `dims` but as they are, each at most once (exactly once where `needed`)."""
    for d in dims:
        where = [e for e in entries if d in dims_of(e)]
        if any(e != LoopIndex(d) for e in where) or len(where) > 1 or (needed and not where):
            raise NotAttention("the scores are read by a reshape that cuts through rows")


def score_bytes(found: Attention) -> int:
    """Return the bytes of all score matrices that are never made."""
    rows = prod(found.sizes[d] for d in (*found.batch, found.query))
    width: int = found.dtype.width
    return rows * found.sizes[found.key] * width // 8


def take_place(found: Attention, result: ir.Value) -> None:
    """Let `result` take the place of an attention, and erase what that was made of."""
    found.final.results[0].replace_all_uses_with(result)
    found.final.erase()
    left = list(dict.fromkeys(found.visited))
    while dead := [op for op in left if unused(op)]:
        left = [op for op in left if not unused(op)]
        for op in dead:
            op.erase()
