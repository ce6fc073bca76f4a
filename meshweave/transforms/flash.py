"""Attention without its score matrix: a recognised attention becomes loops over tiles of queries and keys.

For each tile of queries the keys run past tile by tile. What is carried is the maximum so far, the sum so far and the
product so far; where a tile has a larger maximum, the sum and product of before shrink by exp(old - new). Tiles that a
causal mask or a window leaves nothing of are never computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from meshweave.bindings import ir
from meshweave.transforms.base import unused
from meshweave.transforms.expressions import dims_of
from meshweave.transforms.flash_make import Element, Index, Span, Tile, Tiles
from meshweave.transforms.flash_mask import Bound, bounds_of
from meshweave.transforms.flash_match import Attention
from meshweave.transforms.flash_product import Operand
from meshweave.transforms.hint_make import Make
from meshweave.transforms.kernel_patterns import FALLING

QUERIES = 64
"""Queries of a tile: enough of them read what is packed of the keys once, and few see keys that a mask hides."""
STEP = 64
"""Keys that a mask cuts off or leaves at a time."""


def rewrite(
    found: Attention, marks: Mapping[str, Any], product_marks: Mapping[str, Any], cache: int
) -> None:
    """Put loops over tiles in the place of an attention, and erase what it was made of.

    marks: attributes of the new linalg ops; product_marks: of those that are products. cache: bytes of the cache of
    which the scores of a tile may take half.
    """
    result = _Flash(found, marks, product_marks, cache).run()
    found.final.results[0].replace_all_uses_with(result)
    found.final.erase()
    left = list(dict.fromkeys(found.visited))
    while dead := [op for op in left if unused(op)]:
        left = [op for op in left if not unused(op)]
        for op in dead:
            op.erase()


class _Flash:
    def __init__(
        self,
        found: Attention,
        marks: Mapping[str, Any],
        product_marks: Mapping[str, Any],
        cache: int,
    ) -> None:
        self.a, self.marks, self.product_marks = found, marks, product_marks
        self.query, self.key, self.inner, self.column = (
            found.query,
            found.key,
            found.inner,
            found.column,
        )
        self.bounds, unmasked = bounds_of(found)
        self.scale, gone = _scale(found)
        self.score, self.unmasked = (
            _without(found, found.score, gone),
            _without(found, unmasked, gone),
        )
        self._tiles(cache)

    def _tiles(self, cache: int) -> None:
        """Extents of tiles. Without a mask as many keys as the cache has room for, for the fewer tiles there are, the
        less is scaled anew. Under one in steps, and `widest` is how many steps it leaves whole at most make one tile.
        """
        sizes = self.a.sizes
        queries = _even(sizes[self.query], QUERIES)
        room = cache // 2 // (queries * (8 if str(self.a.dtype) == "f64" else 4))
        keys = _even(sizes[self.key], STEP if self.bounds else max(STEP, room // STEP * STEP))
        self.block = {self.query: queries, self.key: keys}
        self.widest = max(1, room // keys)

    def run(self) -> Any:
        """The loops; their result."""
        make = Make(ir.InsertionPoint(self.a.final), self.a.final.location)
        type_ = self.a.final.results[0].type
        into = make.empty(type_.shape, type_.element_type)
        return self._over_batch(Tiles(make, {}, {}, self.marks), list(self.a.batch), into)

    def _over_batch(self, at: Tiles, left: list[int], into: Any) -> Any:
        if not left:
            return self._over_blocks(at, into)
        dim, *left = left
        if self.a.sizes[dim] == 1:
            return self._over_batch(at.at(at.make, {dim: 0}), left, into)
        loop, count, (inner,) = at.make.loop(self.a.sizes[dim], [into])
        inside = at.inside(loop, {dim: count})
        _end(inside, [self._over_batch(inside, left, inner)])
        return loop.results[0]

    def _over_blocks(self, at: Tiles, into: Any) -> Any:
        extent, size = self.a.sizes[self.query], self.block[self.query]
        whole = extent // size
        if whole == 1:
            into = self._queries(at, Span(0, size), into)
        elif whole:
            loop, count, (inner,) = at.make.loop(whole, [into])
            inside = at.inside(loop)
            _end(inside, [self._queries(inside, Span(inside.times(count, size), size), inner)])
            into = loop.results[0]
        if rest := extent - whole * size:
            into = self._queries(at, Span(whole * size, rest), into)
        return into

    def _queries(self, at: Tiles, span: Span, into: Any) -> Any:
        """One tile of queries, from first to last."""
        element = self.a.dtype
        at = at.at(at.make, {}, {
            self.query: span,
            self.inner: Span(0, self.a.sizes[self.inner]),
            self.column: Span(0, self.a.sizes[self.column]),
        })  # fmt: skip
        queries = self._times_scale(at, self._part(at, self.a.q))
        most = at.filled([self.query], ir.FloatAttr.get(element, -inf))
        total = at.filled([self.query], ir.FloatAttr.get(element, 0.0))
        product = at.filled([self.query, self.column], ir.FloatAttr.get(element, 0.0))
        most, total, product = self._over_keys(at, queries, [most, total, product])
        order = [d for e in self.a.writes for d in dims_of(e) if d in at.spans]
        if self.a.zeros:
            total = at.compute(total.dims, [total], at.empty(total.dims, element), _one_for_zero)
        out = at.compute(order, [product, total], at.empty(order, element), _two("arith.divf"))
        return at.put(out, into, self.a.writes)

    def _part(self, at: Tiles, operand: Operand) -> Tile:
        """A tile of queries, keys or values, in the elements of the scores."""
        tile, element = at.part(operand), self.a.dtype
        if tile.value.type.element_type == element:
            return tile

        def body(make: Make, elements: Sequence[Any]) -> Any:
            return make.op("arith.extf", [element], [elements[0]]).results[0]

        return at.compute(tile.dims, [tile], at.empty(tile.dims, element), body)

    def _times_scale(self, at: Tiles, tile: Tile) -> Tile:
        if self.scale is None:
            return tile
        name, number = self.scale

        def body(make: Make, elements: Sequence[Any]) -> Any:
            return make.op(name, [self.a.dtype], [elements[0], make.constant(number)]).results[0]

        return at.compute(tile.dims, [tile], at.empty(tile.dims, self.a.dtype), body)

    def _over_keys(self, at: Tiles, queries: Tile, carried: list[Tile]) -> list[Tile]:
        extent, size = self.a.sizes[self.key], self.block[self.key]
        whole = extent // size
        if whole == 1 and not self.bounds:
            carried = self._keys(at, queries, carried, Span(0, size), self.score)
        elif whole:
            for first, last, score, origin, width in self._segments(at, whole, size):

                def span(t: Tiles, k: Any, origin: Index = origin, width: int = width) -> Span:
                    return Span(t.add(t.times(k, width), origin), width)

                carried = self._loop(at, queries, carried, (first, last), span, score)
        if rest := extent - whole * size:
            span = Span(whole * size, rest)
            if not self.bounds:
                return self._keys(at, queries, carried, span, self.score)
            limits = self._limits(at, whole * size, 1, rest)
            carried = self._loop(at, queries, carried, limits, lambda t, k: span, self.score)
        return carried

    def _segments(
        self, at: Tiles, count: int, size: int
    ) -> list[tuple[Index, Index, int, Index, int]]:
        """Tiles of keys from, to, and their scores: those that a mask goes through, and between them those that it
        leaves whole, without it, as many at a time as can be. With each, where tile 0 begins, and keys of a tile.
        """
        first, last = self._limits(at, 0, count, size)
        if self.unmasked == self.score:
            return [(first, last, self.score, 0, size)]
        whole, end = self._limits(at, 0, count, size, whole=True)
        whole = _extreme(at, "minsi", [_extreme(at, "maxsi", [whole, first], 0), last], count)
        end = _extreme(at, "maxsi", [_extreme(at, "minsi", [end, last], count), whole], 0)
        parts = [(first, whole, self.score, 0, size)]
        wide = [(several, end, self.unmasked) for several in (8, 4, 2)] + [(2, last, self.score)]
        for several, behind, score in wide:
            if several <= min(self.widest, count):
                times = _times_in(at, whole, behind, several)
                parts.append((0, times, score, at.times(whole, size), several * size))
                whole = at.add(whole, at.times(times, several))
        parts.append((whole, last, self.score, 0, size))
        return [part for part in parts if not isinstance(part[0], int) or part[0] != part[1]]

    def _loop(
        self,
        at: Tiles,
        queries: Tile,
        carried: list[Tile],
        limits: tuple[Index, Index],
        span: Callable[[Tiles, Any], Span],
        score: int,
    ) -> list[Tile]:
        """Tiles of keys: the first, and the one behind the last; `span` of one by its number."""
        make = at.make
        values = [tile.value for tile in carried]
        types = [v.type for v in values]
        loop = make.op(
            "scf.for", types, [*(at.index(n) for n in limits), make.index(1), *values], 1
        )
        arguments = [ir.IndexType.get(), *types]
        block = loop.regions[0].blocks.append(*arguments, arg_locs=[make.loc] * len(arguments))
        inside = at.inside(loop)
        count, *inner = block.arguments
        tiles = [Tile(v, tile.dims) for v, tile in zip(inner, carried)]
        done = self._keys(inside, queries, tiles, span(inside, count), score)
        _end(inside, [tile.value for tile in done])
        return [Tile(v, tile.dims) for v, tile in zip(loop.results, carried)]

    def _limits(
        self, at: Tiles, start: int, count: int, size: int, whole: bool = False
    ) -> tuple[Index, Index]:
        """Of `count` tiles of keys from `start` on, the first and the one behind the last that the mask leaves
        anything of; with `whole` those that it leaves whole.
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

    def _edge(self, at: Tiles, bound: Bound, span: Span, most: bool) -> Index:
        """The largest (smallest) edge of a bound over a tile of queries."""
        where = span.start
        if (bound.slope > 0) == most:
            where = at.add(where, span.size - 1)
        return at.add(at.times(where, bound.slope), bound.offset)

    def _keys(
        self, at: Tiles, queries: Tile, carried: list[Tile], span: Span, score: int
    ) -> list[Tile]:
        """One tile of scores, from the product to what is carried on."""
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
        new_most = at.compute(loops, [scores], most, _two("arith.maximumf"))
        shares = at.compute(loops, [scores, new_most], at.empty(loops, element), _exp_below)
        sums = at.filled(rows, ir.FloatAttr.get(element, 0.0))
        sums = at.compute(loops, [shares], sums, _two("arith.addf"))
        apart = at.apart()
        shrink = apart.compute(rows, [most, new_most], at.empty(rows, element), _exp_below)
        total = apart.compute(rows, [shrink, sums], total, _shrunk_and_more)
        columns = [self.query, self.column]
        product = at.compute(columns, [shrink], product, _two("arith.mulf"))
        values = self._part(at, self.a.v)
        product = at.compute(
            [*columns, self.key], [shares, values], product, _multiply_add, self.product_marks
        )
        return [new_most, total, product]

    def _elementwise(self, at: Tiles, raw: Tile, score: int) -> Tile:
        """The scores before softmax, of the tile of products."""
        if score == self.a.raw:
            return raw
        ex = self.a.expressions
        below = [(n, ex.nodes[n]) for n in ex.below(score) if n != self.a.raw]
        reads = {n: at.part(Operand(k[1], k[2])) for n, k in below if k[0] == "leaf"}
        needed = {d for _, k in below if k[0] == "index" for d in dims_of(k[1])}
        starts = {d: at.index(at.start(("dim", d))) for d in sorted(needed)}
        loops = [self.query, self.key]
        writer = Element(ex, loops, starts)

        def body(make: Make, elements: Sequence[Any]) -> Any:
            return writer.write(
                make, score, {self.a.raw: elements[0], **dict(zip(reads, elements[1:]))}
            )

        return at.compute(loops, [raw, *reads.values()], at.empty(loops, self.a.dtype), body)


def _scale(found: Attention) -> tuple[tuple[str, Any] | None, int | None]:
    """A factor on the product, as an op with a number, and its node: on the queries it is cheaper."""
    ex, raw = found.expressions, found.raw
    readers = [n for n in ex.below(found.score) if ex.nodes[n][0] == "op" and raw in ex.nodes[n][3]]
    if len(readers) != 1:
        return None, None
    _, name, _, operands, _ = ex.nodes[readers[0]]
    if len(operands) != 2 or name not in ("arith.mulf", "arith.divf"):
        return None, None
    other = operands[1 - operands.index(raw)]
    if (
        other == raw
        or ex.nodes[other][0] != "const"
        or (name == "arith.divf" and other == operands[0])
    ):
        return None, None
    return (name, ex.nodes[other][1]), readers[0]


def _without(found: Attention, score: int, gone: int | None) -> int:
    """The scores with node `gone` replaced by the product."""
    if gone is None:
        return score
    ex, made = found.expressions, {gone: found.raw}
    for n in sorted(ex.below(score)):  # what a node is made of has a smaller number
        kind = ex.nodes[n]
        if n not in made:
            made[n] = n
            if kind[0] == "op" and any(made[k] != k for k in kind[3]):
                made[n] = ex.put((*kind[:3], tuple(made[k] for k in kind[3]), kind[4]))
    return made[score]


def _even(extent: int, most: int) -> int:
    """The size of tiles that cut `extent` evenly, up to a multiple of 8, none larger than `most`."""
    count = -(-extent // most)
    return min(extent, most, -(-extent // count // 8) * 8 if count > 1 else extent)


def _tiles(at: Tiles, elements: Index, count: int, size: int, up: bool) -> Index:
    """How many tiles `elements` elements fill, of `count` at most; with `up` one filled in part counts."""
    if isinstance(elements, int):
        filled = -(-elements // size) if up else elements // size
        return max(0, min(count, filled))
    make = at.make
    rounded = at.index(at.add(elements, size - 1 if up else 0))
    least = make.arith("maxsi", rounded, make.index(0))
    return make.arith("minsi", make.arith("divui", least, make.index(size)), make.index(count))


def _extreme(at: Tiles, name: str, values: Sequence[Index], default: int) -> Index:
    """The largest ("maxsi") or smallest ("minsi") of some numbers; of none, `default`."""
    known = [v for v in values if isinstance(v, int)]
    found: Index = (max(known) if name == "maxsi" else min(known)) if known else default
    for value in values:
        if not isinstance(value, int):
            first = found is default and not known
            found = value if first else at.make.arith(name, at.index(found), value)
    return found


def _times_in(at: Tiles, first: Index, last: Index, several: int) -> Index:
    """How often `several` numbers fit from `first` to before `last`."""
    if isinstance(first, int) and isinstance(last, int):
        return (last - first) // several
    count = at.make.arith("subi", at.index(last), at.index(first))
    return at.make.arith("divui", count, at.make.index(several))


def _end(at: Tiles, values: Sequence[Any]) -> None:
    at.make.op("scf.yield", [], values)


def _two(name: str) -> Any:
    """A body: `name` of what is read first and what comes next."""

    def body(make: Make, elements: Sequence[Any]) -> Any:
        return make.op(name, [elements[0].type], list(elements[:2])).results[0]

    return body


def _multiply_add(make: Make, elements: Sequence[Any]) -> Any:
    a, b, out = elements
    product = make.op("arith.mulf", [a.type], [a, b]).results[0]
    return make.op("arith.addf", [a.type], [out, product]).results[0]


def _shrunk_and_more(make: Make, elements: Sequence[Any]) -> Any:
    shrink, more, out = elements
    shrunk = make.op("arith.mulf", [out.type], [out, shrink]).results[0]
    return make.op("arith.addf", [out.type], [shrunk, more]).results[0]


def _one_for_zero(make: Make, elements: Sequence[Any]) -> Any:
    return _other_where(make, elements[0], 0.0, 1.0)


def _other_where(make: Make, value: Any, number: float, other: float) -> Any:
    """`other` where a value is `number`, else the value."""
    at, instead = (make.constant(ir.FloatAttr.get(value.type, n)) for n in (number, other))
    predicate = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 1)  # oeq
    same = make.op(
        "arith.cmpf", [ir.IntegerType.get_signless(1)], [value, at], predicate=predicate
    ).results[0]
    return make.op("arith.select", [value.type], [same, instead, value]).results[0]


def _exp_below(make: Make, elements: Sequence[Any]) -> Any:
    """exp(a - b) of an a that is at most b; where b is -inf, nothing has been seen yet, all a are -inf: 0."""
    a, b = elements[:2]
    below = _other_where(make, b, -inf, 0.0)
    difference = make.op("arith.subf", [a.type], [a, below]).results[0]
    falling = {FALLING: ir.UnitAttr.get()}
    return make.op("math.exp", [a.type], [difference], **falling).results[0]
