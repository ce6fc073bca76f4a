"""Compute attention without its score matrix: a recognised attention becomes loops over tiles of queries and keys.

For each tile of queries the keys run past tile by tile. What is carried is the maximum so far, the sum so far and the
product so far; where a tile has a larger maximum, the sum and product of before shrink by exp(old - new). Tiles that a
causal mask or a window leaves nothing of are never computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from math import inf
from typing import NamedTuple

from meshweave.dialects.mw import MASKED
from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import Index, OpBuilder
from meshweave.ir.expressions import Apply, Constant, inputs
from meshweave.ir.expressions import Index as IndexNode
from meshweave.ir.ops import producer
from meshweave.transforms.attention.expressions import LoopIndex, Operand, dims_of, loops_in
from meshweave.transforms.attention.mask import MaskBound, bounds_of
from meshweave.transforms.attention.match import Attention, take_place
from meshweave.transforms.attention.tiles import BodyWriter, LoopPiece, TensorTile, TileBody, Tiles
from meshweave.transforms.kernels.kernel_patterns import FALLING

QUERIES = 64
"""Queries of a tile: enough of them read what is packed of the keys once, and few see keys that a mask hides."""
STEP = 64
"""Keys that a mask cuts off or leaves at a time."""
FEW = 16
"""Keys of a call for which there are tiles of their own, where a call says how many there are."""


def rewrite(
    found: Attention,
    marks: Mapping[str, ir.Attribute],
    product_marks: Mapping[str, ir.Attribute],
    cache: int,
) -> None:
    """Put loops over tiles in the place of an attention, and erase what it was made of.

    marks: attributes of the new linalg ops; product_marks: of those that are products. cache: bytes of the cache of
    which the scores of a tile may take half.
    """
    take_place(found, _Flash(found, marks, product_marks, cache).run())


class _TileRun(NamedTuple):
    """Describe a run of tiles of keys: from tile `first` to before tile `last`.

    score: the node of their scores. origin: the key where tile 0 begins; width: keys of a tile.
    """

    first: Index
    last: Index
    score: int
    origin: Index
    width: int


class _Flash:
    def __init__(
        self,
        found: Attention,
        marks: Mapping[str, ir.Attribute],
        product_marks: Mapping[str, ir.Attribute],
        cache: int,
    ) -> None:
        self.a, self.marks, self.product_marks = found, marks, product_marks
        self.query, self.key, self.inner, self.column = (
            found.query,
            found.key,
            found.inner,
            found.column,
        )
        self.bounds, self.unmasked = bounds_of(found)
        sizes = [bound.size for bound in self.bounds if bound.size is not None]
        self.size = sizes[0] if sizes else None
        self.score, self.scale = found.score, _scale(found)
        if self.scale is not None:
            self.score = _without(found, self.score, self.scale.node)
            self.unmasked = _without(found, self.unmasked, self.scale.node)
        self._tiles(cache)

    def _tiles(self, cache: int) -> None:
        """Choose the extents of tiles.

        Without a mask a tile has as many keys as the cache has room for: with fewer tiles less is rescaled. With one it
        has STEP keys, and up to `widest` tiles that the mask leaves whole are computed as one. Where a call says how
        many keys there are, tiles are the same for all bounds.
        """
        sizes = self.a.sizes
        self.keys = sizes[self.key]
        cut = _even if self.size is None else min
        queries = cut(sizes[self.query], QUERIES)
        room = cache // 2 // (queries * (8 if str(self.a.dtype) == "f64" else 4))
        keys = cut(self.keys, STEP if self.bounds else max(STEP, room // STEP * STEP))
        self.block = {self.query: queries, self.key: keys}
        self.widest = max(1, room // keys)
        if self.size is not None:
            self.widest = min(self.widest, 4)  # which all large bounds have room for

    def run(self) -> ir.Value:
        """Build the loops; return their result."""
        b = OpBuilder.before(self.a.final)
        type_ = self.a.final.results[0].type
        into = b.empty(type_)
        return self._over_batch(Tiles(b, {}, {}, self.marks), list(self.a.batch), into)

    def _over_batch(self, at: Tiles, left: list[int], into: ir.Value) -> ir.Value:
        if not left:
            return self._over_blocks(at, into)
        dim, *left = left
        if self.a.sizes[dim] == 1:
            return self._over_batch(at.at(at.b, {dim: 0}), left, into)
        loop, body, count, (inner,) = at.b.for_loop(0, self.a.sizes[dim], 1, [into])
        inside = at.at(body, {dim: count})
        _end(inside, [self._over_batch(inside, left, inner)])
        return loop.result

    def _over_blocks(self, at: Tiles, into: ir.Value) -> ir.Value:
        """Compute all queries: where a call says how many keys there are, a few in smaller tiles."""
        if self.size is None or self.keys <= FEW:
            return self._blocks(at, into)
        few = copy(self)
        few.keys, few.widest = FEW, 1
        few.block = {self.query: min(FEW, self.a.sizes[self.query]), self.key: FEW}
        there = at.b.compare(arith.CmpIPredicate.ule, self.size, at.b.index(FEW))
        (made,) = at.b.if_else(
            there,
            [into.type],
            lambda b: [few._blocks(at.at(b), into)],
            lambda b: [self._blocks(at.at(b), into)],
        )
        return made

    def _blocks(self, at: Tiles, into: ir.Value) -> ir.Value:
        extent, size = self.a.sizes[self.query], self.block[self.query]
        whole = extent // size
        if whole == 1:
            into = self._queries(at, LoopPiece(0, size), into)
        elif whole:
            loop, body, count, (inner,) = at.b.for_loop(0, whole, 1, [into])
            inside = at.at(body)
            start = _masked(inside.times(count, size))
            _end(inside, [self._queries(inside, LoopPiece(start, size), inner)])
            into = loop.results[0]
        if rest := extent - whole * size:
            into = self._queries(at, LoopPiece(whole * size, rest), into)
        return into

    def _queries(self, at: Tiles, span: LoopPiece, into: ir.Value) -> ir.Value:
        """Compute one tile of queries over all tiles of keys."""
        element = self.a.dtype
        at = at.at(at.b, {}, {
            self.query: span,
            self.inner: LoopPiece(0, self.a.sizes[self.inner]),
            self.column: LoopPiece(0, self.a.sizes[self.column]),
        })  # fmt: skip
        queries = self._times_scale(at, self._part(at, self.a.q))
        most = at.filled([self.query], ir.FloatAttr.get(element, -inf))
        total = at.filled([self.query], ir.FloatAttr.get(element, 0.0))
        product = at.filled([self.query, self.column], ir.FloatAttr.get(element, 0.0))
        most, total, product = self._over_keys(at, queries, [most, total, product])
        order = [d for e in self.a.writes for d in dims_of(e) if d in at.spans]
        if self.a.zeros:
            total = at.compute(total.dims, [total], at.empty(total.dims, element), _one_for_zero)
        out = at.compute(order, [product, total], at.empty(order, element), _two("divf"))
        return at.put(out, into, self.a.writes)

    def _part(self, at: Tiles, operand: Operand) -> TensorTile:
        """Return a tile of queries, keys or values, in the elements of the scores."""
        tile, element = at.part(operand), self.a.dtype
        if tile.value.type.element_type == element:
            return tile

        def body(b: OpBuilder, elements: Sequence[ir.Value]) -> ir.Value:
            return b.one("arith.extf", element, elements[0])

        return at.compute(tile.dims, [tile], at.empty(tile.dims, element), body)

    def _times_scale(self, at: Tiles, tile: TensorTile) -> TensorTile:
        if self.scale is None:
            return tile
        _, name, number = self.scale

        def body(b: OpBuilder, elements: Sequence[ir.Value]) -> ir.Value:
            return b.one(name, self.a.dtype, elements[0], b.constant(number))

        return at.compute(tile.dims, [tile], at.empty(tile.dims, self.a.dtype), body)

    def _over_keys(
        self, at: Tiles, queries: TensorTile, carried: list[TensorTile]
    ) -> list[TensorTile]:
        extent, size = self.keys, self.block[self.key]
        whole = extent // size
        if self.size is not None and extent == size:
            only = LoopPiece(self._before_end(at, 0, size, self.score), size)
            return self._keys(at, queries, carried, only, self.score)
        if whole == 1 and not self.bounds:
            carried = self._keys(at, queries, carried, LoopPiece(0, size), self.score)
        elif whole:
            for first, last, score, origin, width in self._segments(at, whole, size):

                def span(
                    t: Tiles,
                    k: ir.Value,
                    origin: Index = origin,
                    width: int = width,
                    score: int = score,
                ) -> LoopPiece:
                    start = t.add(t.times(k, width), origin)
                    return LoopPiece(self._before_end(t, start, width, score), width)

                carried = self._loop(at, queries, carried, (first, last), span, score)
        if rest := extent - whole * size:
            end = LoopPiece(whole * size, rest)
            if not self.bounds:
                return self._keys(at, queries, carried, end, self.score)
            limits = self._limits(at, whole * size, 1, rest)

            def tail(t: Tiles, k: ir.Value) -> LoopPiece:
                return LoopPiece(self._before_end(t, end.start, rest, self.score), rest)

            carried = self._loop(at, queries, carried, limits, tail, self.score)
        return carried

    def _before_end(self, at: Tiles, start: Index, width: int, score: int) -> Index:
        """Return where a tile of keys begins, which is before the end that a call chooses for them.

        That is so, and it is written down: what makes keys and values reads there how many of them are wanted.
        """
        if self.size is None:
            return start
        if self._is_whole(score):
            return at.b.binary("minsi", at.index(start), at.index(at.add(self.size, -width)))
        return _masked(at.b.binary("minsi", at.index(start), at.index(at.add(self.size, -1))))

    def _values(self, at: Tiles, score: int) -> TensorTile:
        """Return a tile of values: zeros behind the end, which are used."""
        tile = self._part(at, self.a.v)
        if self.size is None or self._is_whole(score):
            return tile
        size, start = self.size, at.index(at.spans[self.key].start)
        zero = ir.FloatAttr.get(self.a.dtype, 0.0)

        def body(b: OpBuilder, elements: Sequence[ir.Value]) -> ir.Value:
            place = b.binary("addi", b.loop_index(tile.dims.index(self.key)), start)
            return b.select(
                b.compare(arith.CmpIPredicate.ult, place, size), elements[0], b.constant(zero)
            )

        return at.compute(tile.dims, [tile], at.empty(tile.dims, self.a.dtype), body)

    def _is_whole(self, score: int) -> bool:
        """Tell whether tiles with these scores are ones that no mask goes through."""
        return score == self.unmasked != self.score

    def _segments(self, at: Tiles, count: int, size: int) -> list[_TileRun]:
        """Return the runs of tiles of keys to compute.

        Tiles that a mask goes through are computed singly; those between them, which it leaves whole, as many
        at a time as possible, with scores that do without the mask.
        """
        first, last = self._limits(at, 0, count, size)
        if self.unmasked == self.score:
            return [_TileRun(first, last, self.score, 0, size)]
        whole, end = self._limits(at, 0, count, size, whole=True)
        whole = _extreme(at, "minsi", [_extreme(at, "maxsi", [whole, first], 0), last], count)
        end = _extreme(at, "maxsi", [_extreme(at, "minsi", [end, last], count), whole], 0)
        parts = [_TileRun(first, whole, self.score, 0, size)]
        wide = [(several, end, self.unmasked) for several in (8, 4, 2)] + [(2, last, self.score)]
        for several, behind, score in wide:
            if several <= min(self.widest, count):
                times = _times_in(at, whole, behind, several)
                parts.append(_TileRun(0, times, score, at.times(whole, size), several * size))
                whole = at.add(whole, at.times(times, several))
        parts.append(_TileRun(whole, last, self.score, 0, size))
        return [
            part for part in parts if not isinstance(part.first, int) or part.first != part.last
        ]

    def _loop(
        self,
        at: Tiles,
        queries: TensorTile,
        carried: list[TensorTile],
        limits: tuple[Index, Index],
        span: Callable[[Tiles, ir.Value], LoopPiece],
        score: int,
    ) -> list[TensorTile]:
        """Loop over tiles of keys. limits: the first, and the one behind the last; span: of a tile, by its number."""
        loop, body, count, inner = at.b.for_loop(*limits, 1, [tile.value for tile in carried])
        inside = at.at(body)
        tiles = [TensorTile(v, tile.dims) for v, tile in zip(inner, carried)]
        done = self._keys(inside, queries, tiles, span(inside, count), score)
        _end(inside, [tile.value for tile in done])
        return [TensorTile(v, tile.dims) for v, tile in zip(loop.results, carried)]

    def _limits(
        self, at: Tiles, start: int, count: int, size: int, whole: bool = False
    ) -> tuple[Index, Index]:
        """Return the first tile, and the one behind the last, that the mask leaves anything of.

        The tiles are `count` ones of keys from `start` on. whole: those that it leaves whole instead.
        """
        span = at.spans[self.query]
        first, last = [], []
        for bound in self.bounds:
            edge = self._edge(at, bound, span, most=bound.upper != whole)
            if bound.upper:
                last.append(_tiles(at, at.add(edge, 1 - start), count, size, up=not whole))
            else:
                first.append(_tiles(at, at.add(edge, -start), count, size, up=whole))
        return _extreme(at, "maxsi", first, 0), _extreme(at, "minsi", last, count)

    def _edge(self, at: Tiles, bound: MaskBound, span: LoopPiece, most: bool) -> Index:
        """Return the largest (or smallest) edge of a bound over a tile of queries."""
        where = span.start
        if (bound.slope > 0) == most:
            where = at.add(where, span.size - 1)
        edge = at.add(at.times(where, bound.slope) if bound.slope else 0, bound.offset)
        return edge if bound.size is None else at.add(edge, bound.size)

    def _keys(
        self, at: Tiles, queries: TensorTile, carried: list[TensorTile], span: LoopPiece, score: int
    ) -> list[TensorTile]:
        """Compute one tile of scores, from the product to what is carried on."""
        at.spans[self.key] = span
        most, total, product = carried
        loops, element, rows = [self.query, self.key], self.a.dtype, [self.query]
        scores = at.compute(
            [*loops, self.inner],
            [queries, self._part(at, self.a.k)],
            at.filled(loops, ir.FloatAttr.get(element, 0.0)),
            _multiply_add,
            self.product_marks,
        )
        scores = self._elementwise(at, scores, score)
        new_most = at.compute(loops, [scores], most, _two("maximumf"))
        shares = at.compute(loops, [scores, new_most], at.empty(loops, element), _exp_below)
        sums = at.filled(rows, ir.FloatAttr.get(element, 0.0))
        sums = at.compute(loops, [shares], sums, _two("addf"))
        apart = at.apart()
        shrink = apart.compute(rows, [most, new_most], at.empty(rows, element), _exp_below)
        total = apart.compute(rows, [shrink, sums], total, _shrunk_and_more)
        columns = [self.query, self.column]
        product = at.compute(columns, [shrink], product, _two("mulf"))
        values = self._values(at, score)
        product = at.compute(
            [*columns, self.key], [shares, values], product, _multiply_add, self.product_marks
        )
        return [new_most, total, product]

    def _elementwise(self, at: Tiles, raw: TensorTile, score: int) -> TensorTile:
        """Return the scores before softmax, from the tile of products."""
        if score == self.a.raw:
            return raw
        ex = self.a.expressions
        loads = ex.loads_below(score)
        reads = {n: at.part(read) for n, read in loads.items() if n != self.a.raw}
        below = [ex.nodes[n] for n in ex.below(score)]
        forms = [node.form for node in below if isinstance(node, IndexNode)]
        starts = {d: at.index(at.start(LoopIndex(d))) for d in sorted(loops_in(forms))}
        loops = [self.query, self.key]
        writer = BodyWriter(ex, loops, starts)

        def body(b: OpBuilder, elements: Sequence[ir.Value]) -> ir.Value:
            return writer.write(
                b, score, {self.a.raw: elements[0], **dict(zip(reads, elements[1:]))}
            )

        return at.compute(loops, [raw, *reads.values()], at.empty(loops, self.a.dtype), body)


def _masked(start: Index) -> Index:
    """Mark where a tile begins: nothing is used that lies in it behind the end of a size."""
    op = producer(start) if isinstance(start, ir.Value) else None
    if op is not None:
        op.attributes[MASKED] = ir.UnitAttr.get()
    return start


class _Scale(NamedTuple):
    """Describe a factor on the product: node `node` of the scores, the op `name` with a constant."""

    node: int
    name: str
    number: ir.Attribute


def _scale(found: Attention) -> _Scale | None:
    """Return the factor on the product, if there is one: on the queries it is cheaper."""
    ex, raw = found.expressions, found.raw
    readers = [n for n in ex.below(found.score) if raw in inputs(ex.nodes[n])]
    node = ex.nodes[readers[0]] if len(readers) == 1 else None
    if not isinstance(node, Apply) or len(node.operands) != 2:
        return None
    left, right = node.operands
    number = ex.nodes[right if left == raw else left]
    commutes = node.name == "arith.mulf"
    if not isinstance(number, Constant) or not (
        commutes or (node.name, left) == ("arith.divf", raw)
    ):
        return None
    return _Scale(readers[0], node.name, number.value)


def _without(found: Attention, score: int, gone: int) -> int:
    """Return the scores with node `gone` replaced by the product."""
    ex, made = found.expressions, {gone: found.raw}
    for n in sorted(ex.below(score)):  # a node reads nodes of smaller numbers
        node = ex.nodes[n]
        if n not in made:
            made[n] = n
            if isinstance(node, Apply) and any(made[k] != k for k in node.operands):
                made[n] = ex.put(replace(node, operands=tuple([made[k] for k in node.operands])))
    return made[score]


def _even(extent: int, most: int) -> int:
    """Return the size of tiles that cut `extent` evenly, up to a multiple of 8, none larger than `most`."""
    count = -(-extent // most)
    return min(extent, most, -(-extent // count // 8) * 8 if count > 1 else extent)


def _tiles(at: Tiles, elements: Index, count: int, size: int, up: bool) -> Index:
    """Count the tiles that `elements` elements fill, at most `count`; with `up` one filled in part counts."""
    if isinstance(elements, int):
        filled = -(-elements // size) if up else elements // size
        return max(0, min(count, filled))
    b = at.b
    rounded = at.index(at.add(elements, size - 1 if up else 0))
    least = b.binary("maxsi", rounded, b.index(0))
    return b.binary("minsi", b.binary("divui", least, b.index(size)), b.index(count))


def _extreme(at: Tiles, name: str, values: Sequence[Index], default: int) -> Index:
    """Return the largest ("maxsi") or smallest ("minsi") of some numbers; `default` where there are none."""
    known = [v for v in values if isinstance(v, int)]
    found: Index = (max(known) if name == "maxsi" else min(known)) if known else default
    for value in values:
        if not isinstance(value, int):
            first = found is default and not known
            found = value if first else at.b.binary(name, at.index(found), value)
    return found


def _times_in(at: Tiles, first: Index, last: Index, several: int) -> Index:
    """Count how often `several` numbers fit from `first` to before `last`."""
    if isinstance(first, int) and isinstance(last, int):
        return (last - first) // several
    count = at.b.binary("subi", at.index(last), at.index(first))
    return at.b.binary("divui", count, at.b.index(several))


def _end(at: Tiles, values: Sequence[ir.Value]) -> None:
    at.b.op("scf.yield", [], values)


def _two(name: str) -> TileBody:
    """Return a body: `arith.<name>` of what is read first and what comes next."""
    return lambda b, elements: b.binary(name, elements[0], elements[1])


def _multiply_add(b: OpBuilder, elements: list[ir.Value]) -> ir.Value:
    left, right, out = elements
    return b.binary("addf", out, b.binary("mulf", left, right))


def _shrunk_and_more(b: OpBuilder, elements: list[ir.Value]) -> ir.Value:
    shrink, more, out = elements
    return b.binary("addf", b.binary("mulf", out, shrink), more)


def _one_for_zero(b: OpBuilder, elements: list[ir.Value]) -> ir.Value:
    return _other_where(b, elements[0], 0.0, 1.0)


def _other_where(b: OpBuilder, value: ir.Value, number: float, other: float) -> ir.Value:
    """Return `other` where a value is `number`, else the value."""
    at, instead = (b.constant(ir.FloatAttr.get(value.type, n)) for n in (number, other))
    return b.select(b.compare(arith.CmpFPredicate.OEQ, value, at), instead, value)


def _exp_below(b: OpBuilder, elements: list[ir.Value]) -> ir.Value:
    """Return exp(x - y) of an x that is at most y; 0 where y is -inf: nothing was seen yet, and all x are -inf."""
    x, y = elements[:2]
    difference = b.binary("subf", x, _other_where(b, y, -inf, 0.0))
    return b.one("math.exp", x.type, difference, **{FALLING: ir.UnitAttr.get()})
