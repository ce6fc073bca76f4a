"""Compute the backward of an attention in strips of rows: a recognised one becomes loops over heads and queries.

A strip has the scores of a few queries with all keys, so whatever is reduced along a row (its maximum, its sum, the sum
of the gradient times the weights) is known before the rest of the row needs it. What is added up over the queries, the
gradients of keys and values, is carried from strip to strip; that of the queries is put where it belongs. The scores
are those of a strip only: they are made anew, as FlashAttention does [Dao, arXiv:2205.14135 and arXiv:2307.08691].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.expressions import Apply, Load
from meshweave.ir.expressions import Index as IndexNode
from meshweave.transforms.attention.backward import Backward, Gradient
from meshweave.transforms.attention.expressions import LoopIndex, Operand, dims_of, loops_in
from meshweave.transforms.attention.tiles import BodyWriter, LoopPiece, TensorTile, TileBody, Tiles
from meshweave.transforms.base import in_block

LIVE = 3
"""Matrices of a strip that are alive at a time."""
LEAST, MOST = 16, 128
"""Queries of a strip."""


def rewrite_backward(
    found: Backward,
    marks: Mapping[str, ir.Attribute],
    product_marks: Mapping[str, ir.Attribute],
    cache: int,
) -> None:
    """Put loops over strips in the place of a backward, and erase what it was made of.

    marks: attributes of the new linalg ops; product_marks: of those that are products. cache: bytes of the cache that
    the matrices of a strip should fit.
    """
    results = _Strips(found, marks, product_marks, cache).run()
    for gradient, result in zip(found.gradients, results):
        gradient.op.results[0].replace_all_uses_with(result)
    for op in (*(g.op for g in found.gradients), *sorted(found.visited, key=in_block)[::-1]):
        if not any(True for _ in op.results[0].uses):
            op.erase()


class _Strips:
    def __init__(
        self,
        found: Backward,
        marks: Mapping[str, ir.Attribute],
        product_marks: Mapping[str, ir.Attribute],
        cache: int,
    ) -> None:
        self.f, self.marks, self.product_marks = found, marks, product_marks
        self.ex = found.expressions
        width = found.sizes[found.key] * found.dtype.width // 8
        rows = max(LEAST, min(MOST, cache // (LIVE * width) // 8 * 8))
        self.block = min(found.sizes[found.query], rows)
        self.carried = [g for g in found.gradients if found.query in g.reduced]

    def run(self) -> list[ir.Value]:
        """Build the loops; return the gradients."""
        b = OpBuilder.before(min(self.f.ends, key=in_block))
        into = [self._whole(b, g) for g in self.f.gradients]
        outer = sorted(self.f.batch, key=lambda d: (self._is_summed(d), d))
        return self._over_heads(Tiles(b, {}, {}, self.marks), outer, into)

    def _is_summed(self, loop: int) -> bool:
        """Tell whether a gradient is added up over a loop of heads."""
        return any(loop in g.reduced for g in self.f.gradients)

    def _whole(self, b: OpBuilder, gradient: Gradient) -> ir.Value:
        """Return where a gradient goes: zeros where heads are added up."""
        type_ = gradient.op.results[0].type
        if set(gradient.reduced) & set(self.f.batch):
            return b.fill(b.constant(ir.FloatAttr.get(type_.element_type, 0.0)), type_)
        return b.empty(type_)

    def _over_heads(self, at: Tiles, left: list[int], into: list[ir.Value]) -> list[ir.Value]:
        if not left:
            return self._head(at, into)
        dim, *left = left
        if self.f.sizes[dim] == 1:
            return self._over_heads(at.at(at.b, {dim: 0}), left, into)
        loop, body, count, inner = at.b.for_loop(0, self.f.sizes[dim], 1, into)
        inside = at.at(body, {dim: count})
        inside.b.op("scf.yield", [], self._over_heads(inside, left, inner))
        return list(loop.results)

    def _head(self, at: Tiles, into: list[ir.Value]) -> list[ir.Value]:
        """Compute the gradients of one head."""
        sizes, f = self.f.sizes, self.f
        full = {d: LoopPiece(0, sizes[d]) for d in sizes if d not in (*f.batch, f.query)}
        at = at.at(at.b, {}, full)
        whole = at.at(at.b, {}, {f.query: LoopPiece(0, sizes[f.query])})
        sums = [self._start(whole, g, value) for g, value in zip(f.gradients, into)]
        size = self.block
        count = sizes[f.query] // size
        if count == 1:
            sums = self._strip(at, LoopPiece(0, size), sums)
        elif count:
            loop, body, number, inner = at.b.for_loop(0, count, 1, sums)
            inside = at.at(body)
            done = self._strip(inside, LoopPiece(inside.times(number, size), size), inner)
            inside.b.op("scf.yield", [], done)
            sums = list(loop.results)
        if rest := sizes[f.query] - count * size:
            sums = self._strip(at, LoopPiece(count * size, rest), sums)
        return [
            whole.put(TensorTile(value, self._order(whole, g)), target, g.writes)
            if g in self.carried
            else value
            for g, value, target in zip(f.gradients, sums, into)
        ]

    def _order(self, at: Tiles, gradient: Gradient) -> tuple[int, ...]:
        """Return the loops of a head's part of a gradient, in the order of its dims."""
        return tuple(d for e in gradient.writes for d in dims_of(e) if d in at.spans)

    def _start(self, at: Tiles, gradient: Gradient, into: ir.Value) -> ir.Value:
        """Return what the strips of a head begin with: its part of the sum so far, or where its rows go."""
        if gradient not in self.carried:
            return into
        if set(gradient.reduced) & set(self.f.batch):
            return at.part(Operand(into, gradient.writes)).value
        element = gradient.op.results[0].type.element_type
        return at.filled(self._order(at, gradient), ir.FloatAttr.get(element, 0.0)).value

    def _strip(self, at: Tiles, span: LoopPiece, sums: list[ir.Value]) -> list[ir.Value]:
        """Compute one strip of rows."""
        return _Strip(self, at.at(at.b, {}, {self.f.query: span})).run(sums)


class _Strip:
    """Make the ops of one strip. known: the tiles of nodes that have been computed."""

    def __init__(self, strips: _Strips, at: Tiles) -> None:
        self.s, self.f, self.ex, self.at = strips, strips.f, strips.ex, at
        self.known: dict[int, TensorTile] = {}
        self.matrix = (self.f.query, self.f.key)

    def run(self, sums: list[ir.Value]) -> list[ir.Value]:
        """Return the sums, and where rows go, behind this strip."""
        done = dict(zip(self.f.gradients, sums))
        for gradient in sorted(self.f.gradients, key=lambda g: g.matrix):  # what is made first
            done[gradient] = self._add(gradient, done[gradient])
        return [done[g] for g in self.f.gradients]

    def _add(self, gradient: Gradient, value: ir.Value) -> ir.Value:
        at, carried = self.at, gradient in self.s.carried
        order = self.s._order(at, gradient)
        element = gradient.op.results[0].type.element_type
        out = (
            TensorTile(value, order)
            if carried
            else at.filled(order, ir.FloatAttr.get(element, 0.0))
        )
        summed = self.f.query if carried else self.f.key
        matrix = self._wide(self._made(gradient.matrix, self.matrix))
        other = self._wide(at.part(gradient.other))
        tile = at.compute(
            [*order, summed], [matrix, other], out, _multiply_add, self.s.product_marks
        )
        return tile.value if carried else at.put(tile, value, gradient.writes)

    def _made(self, node: int, dims: Sequence[int]) -> TensorTile:
        """Return the tile of a node, computed once."""
        if node not in self.known:
            self._prepare(node)
            self.known[node] = self._elementwise(node, dims)
        return self.known[node]

    def _prepare(self, node: int) -> None:
        """Compute what a node is made of that is worth a tile: products, reductions, exponentials and rows."""
        for n in sorted(self.ex.below(node, self.known)):
            if n in self.known:
                continue
            if n in self.f.products:
                self.known[n] = self._product(n)
            elif n in self.f.rows:
                self.known[n] = self._row(n)
            elif self._is_leaf(n):
                load = self.ex.nodes[n]
                assert isinstance(load, Load)
                self.known[n] = self.at.part(load.access)
            elif n != node and self._is_worth(n):
                self._made(n, [d for d in self.matrix if d in self.f.loops(n)])

    def _is_leaf(self, node: int) -> bool:
        return isinstance(self.ex.nodes[node], Load)

    def _is_worth(self, node: int) -> bool:
        """Tell whether to compute a node once, not wherever it is read: an exponential, or an op on a row's number."""
        made, loops = self.ex.nodes[node], self.f.loops(node)
        if not isinstance(made, Apply):
            return False
        if self.f.key in loops:
            return made.name == "math.exp"
        return self.f.query in loops

    def _product(self, node: int) -> TensorTile:
        made, at = self.f.products[node], self.at
        out = at.filled(self.matrix, ir.FloatAttr.get(self.f.dtype, 0.0))
        parts = [self._wide(at.part(side)) for side in (made.rows, made.columns)]
        return at.compute(
            [*self.matrix, made.inner], parts, out, _multiply_add, self.s.product_marks
        )

    def _wide(self, tile: TensorTile) -> TensorTile:
        """Return a tile in the elements of the scores."""
        element = self.f.dtype
        if tile.value.type.element_type == element:
            return tile
        out = self.at.empty(tile.dims, element)
        return self.at.compute(
            tile.dims, [tile], out, lambda b, e: b.one("arith.extf", element, e[0])
        )

    def _row(self, node: int) -> TensorTile:
        """Return what the rows of a strip are reduced to."""
        row = self.f.rows[node]
        self._prepare(row.of)
        reads, write = self._reads(row.of, self.matrix)
        out = self.at.filled([self.f.query], row.start)

        def body(b: OpBuilder, elements: list[ir.Value]) -> ir.Value:
            return b.one(row.name, row.start.type, elements[-1], write(b, elements))

        return self.at.compute(self.matrix, reads, out, body)

    def _elementwise(self, node: int, dims: Sequence[int]) -> TensorTile:
        """Compute a node from tiles that are known."""
        reads, write = self._reads(node, dims)
        made = self.ex.nodes[node]
        assert isinstance(made, Apply)
        return self.at.compute(dims, reads, self.at.empty(dims, made.type), write)

    def _reads(self, node: int, dims: Sequence[int]) -> tuple[list[TensorTile], TileBody]:
        """Return the known tiles that a node is made of, and how to write it from their elements."""
        at, ex = self.at, self.ex
        below = ex.below(node, self.known)
        reads = {n: self.known[n] for n in below if n in self.known}
        forms = [made.form for n in below if isinstance(made := ex.nodes[n], IndexNode)]
        starts = {d: at.index(at.start(LoopIndex(d))) for d in sorted(loops_in(forms))}
        writer = BodyWriter(ex, list(dims), starts)
        return list(reads.values()), lambda b, e: writer.write(b, node, dict(zip(reads, e)))


def _multiply_add(b: OpBuilder, elements: list[ir.Value]) -> ir.Value:
    left, right, out = elements
    return b.binary("addf", out, b.binary("mulf", left, right))
