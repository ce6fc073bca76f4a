"""Attention as a program says it, recognised: softmax(f(q k^T)) v, in whatever ops it is written.

The last product is where it is looked for. Its left operand, as an expression over the loops, must be exp(s - m) / l
with m the maximum and l the sum over the keys of the same s, and s any elementwise function of one product q k^T, of
masks, biases and positions. Nothing else may read what would be no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite, nan, prod
from typing import Any

from meshweave.bindings import ir
from meshweave.transforms.base import users
from meshweave.transforms.expressions import (
    Entry,
    Expressions,
    Opaque,
    at_loops,
    dims_of,
    maps_of,
    reductions_of,
)

MIN_BYTES = 64 << 10
"""Of one score matrix: smaller ones stay in the first caches, and nothing is won without them."""
_DTYPES = ("f32", "f64")
_ORDERED_EQUAL = 1  # the predicate of arith.cmpf


class NotAttention(Exception):
    """What stands in the way of taking a product for the end of an attention."""


@dataclass(frozen=True)
class Operand:
    """A tensor as the loops read it: an entry for each of its dims."""

    value: Any
    entries: tuple[Entry, ...]


@dataclass
class Attention:
    """An attention. Loops are numbered as those of its last product, and `inner` is that of the first one's sum.

    final:   the last product; sizes: of all loops; score: node of the scores before softmax, made of the node `raw`,
             which is `scale` times the product of query and key.
    writes:  of the result, an entry for each dim.
    zeros:   whether a row that its mask leaves nothing of is 0; otherwise it is 0/0.
    visited: all ops that it replaces or looks through.
    """

    final: Any
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
    writes: tuple[Entry, ...]
    dtype: Any
    zeros: bool
    visited: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class _Product:
    """A linalg.generic that adds up products over one loop, from zero: its operands as the loops read them."""

    op: Any
    operands: tuple[Operand, Operand]
    writes: tuple[Entry, ...]
    reduced: int
    sizes: tuple[int, ...]


def product_of(op: Any) -> _Product | None:
    """The op as a product of two tensors over one loop, None where it is something else."""
    if op.name != "linalg.generic" or len(op.operands) != 3 or len(op.results) != 1:
        return None
    reductions, maps = reductions_of(op), maps_of(op)
    if len(reductions) != 1 or maps is None or not _adds_products(op):
        return None
    if not _filled_with(op.operands[2], 0.0):
        return None
    sizes: dict[int, int] = {}
    for value, entries in zip(op.operands, maps):
        for entry, extent in zip(entries, value.type.shape):
            if entry[0] == "dim":
                sizes[entry[1]] = extent
    left, right = (Operand(op.operands[k], maps[k]) for k in (0, 1))
    extents = tuple(sizes[k] for k in range(len(sizes)))
    return _Product(op, (left, right), maps[2], reductions[0], extents)


def _adds_products(op: Any) -> bool:
    """Is the body out + a * b, a and b perhaps widened first?"""
    block = op.regions[0].blocks[0]
    ops = [o for view in block.operations if (o := view.operation).name != "arith.extf"]
    if [o.name for o in ops] != ["arith.mulf", "arith.addf", "linalg.yield"]:
        return False
    a, b, out = block.arguments
    factors = {_narrow(value) for value in ops[0].operands}
    return factors == {a, b} and set(ops[1].operands) == {out, ops[0].results[0]}


def _narrow(value: Any) -> Any:
    """What is widened to `value`."""
    owner = value.owner
    widened = not isinstance(owner, ir.Block) and owner.operation.name == "arith.extf"
    return owner.operation.operands[0] if widened else value


def _filled_with(value: Any, number: float | None) -> bool:
    """Is it a tensor full of one number (this one)?"""
    expressions = Expressions()
    node = expressions.nodes[expressions.node(value, [("number", 0)] * len(value.type.shape))]
    if node[0] != "const" or not isinstance(node[1], ir.FloatAttr | ir.IntegerAttr | ir.BoolAttr):
        return False
    return number is None or node[1].value == number


def match(op: Any) -> Attention:
    """The attention that ends in `op`: in a product, or in the division of one by the sum over its keys. Raises
    NotAttention, with the reason.
    """
    product, divided = product_of(op), None
    if product is None:
        product, divided = _divided_product(op), op
    if product is None:
        raise NotAttention("no product of two tensors")
    reason = NotAttention("no softmax before it")
    for which in (0, 1):
        try:
            return _Match(product, which, divided).run()
        except NotAttention as error:
            reason = error if error.args[0].startswith("the scores") else reason
    raise reason


def _divided_product(op: Any) -> _Product | None:
    """The product that an elementwise op divides, element by element where it lies."""
    if op.name != "linalg.generic" or len(op.results) != 1 or reductions_of(op):
        return None
    maps = maps_of(op)
    if maps is None or not any(
        view.operation.name in ("arith.divf", "arith.mulf")
        for view in op.regions[0].blocks[0].operations
    ):
        return None
    for value, entries in zip(op.operands, maps[:-1]):
        made = value.owner
        if entries == maps[-1] and not isinstance(made, ir.Block):
            product = product_of(made.operation)
            if product is not None:
                return product
    return None


class _Match:
    """One attempt: operand `which` of the last product is the softmax; or, with `divided`, the op that divides the
    product, what it is of.
    """

    def __init__(self, last: _Product, which: int, divided: Any = None) -> None:
        self.last, self.which, self.divided = last, which, divided
        self.weights, self.v = last.operands[which], last.operands[1 - which]
        self.ex = Expressions()
        self.reductions: list[Any] = []

    def run(self) -> Attention:
        """The whole match."""
        last, weights = self.last, self.weights
        key = last.reduced
        in_weights, in_v = _loops(weights.entries), _loops(self.v.entries)
        written = _loops(last.writes)
        columns = [d for d in in_v - in_weights if d in written]
        rows = [d for d in in_weights - in_v if d in written]
        if len(columns) != 1 or not rows or key not in in_weights & in_v:
            raise NotAttention("its loops are not those of weights and values")
        query = max(rows, key=lambda d: (last.sizes[d], d))
        batch = tuple(sorted(set(range(len(last.sizes))) - {query, key, columns[0]}))
        if any(d not in written for d in batch):
            raise NotAttention("its loops are not those of weights and values")
        self.query, self.key, self.inner = query, key, len(last.sizes)
        root = self.ex.node(weights.value, weights.entries)
        rounded = self._op(root, "arith.truncf")  # what is never stored is not rounded
        root, emptied = self._emptied(root if rounded is None else rounded[0])
        if any(self._op(n, "math.exp") for n in self.ex.below(root)):
            _of_floats(self._type(root))
        exponent, zeros = self._softmax(*self._parts(root))
        if emptied not in (None, exponent):
            raise NotAttention("no softmax before it: other scores say which rows are empty")
        dtype = _of_floats(last.op.results[0].type.element_type)
        _of_floats(self._type(exponent), dtype)
        score, first, entries = self._score(exponent)
        _of_floats(first.op.results[0].type.element_type, dtype)
        q, k, extent = self._sides(first, entries)
        raw = self.ex.node(first.op.results[0], entries)
        sizes = {**dict(enumerate(last.sizes)), self.inner: extent}
        self._worth(sizes, first)
        v = self._source(self.v, (key, columns[0]))
        final = last.op if self.divided is None else self.divided
        found = Attention(
            final, sizes, batch, query, key, columns[0], self.inner, q, k, v, self.ex, score, raw,
            last.writes, dtype, zeros or emptied is not None,
        )  # fmt: skip
        visited = dict.fromkeys([last.op, *self.ex.visited, *self.reductions, first.op])
        found.visited = [op for op in visited if op != final]
        self._read_by_nothing_else(first.op, found.visited)
        return found

    def _worth(self, sizes: dict[int, int], first: _Product) -> None:
        width = 8 if str(first.op.results[0].type.element_type) == "f64" else 4
        matrix = sizes[self.query] * sizes[self.key] * width
        if matrix <= MIN_BYTES:
            raise NotAttention(f"the scores are {matrix} bytes for each head: they fit the caches")

    # softmax: exp(s - max s) / sum

    def _op(self, node: int, *names: str) -> tuple[int, ...] | None:
        """The operands of a node that is one of these ops."""
        kind = self.ex.nodes[node]
        return kind[3] if kind[0] == "op" and kind[1] in names else None

    def _parts(self, root: int) -> tuple[int, int]:
        """(e, l) of the softmax e / l, of which `root` is all, or e alone where the product is divided."""
        if self.divided is None:
            return self._share(root)
        product, total = self._share(self.ex.node(self.divided.results[0], self.last.writes))
        if self.ex.nodes[product][:2] != ("leaf", self.last.op.results[0]):
            raise NotAttention("no softmax before it")
        return root, total

    def _softmax(self, above: int, divisor: int) -> tuple[int, bool]:
        """The node s of e = exp(s - m), and whether the divisor, the sum of e, is another number where that is 0."""
        total = self._filled_sum(divisor)
        if self._reduction(total, ("arith.addf",), 0.0) != above:
            raise NotAttention("no softmax before it: the divisor is not the sum over the keys")
        argument = self._op(above, "math.exp")
        parts = None if argument is None else self._op(argument[0], "arith.subf")
        if parts is None:
            raise NotAttention("no softmax before it: no exp of a difference")
        score, most = parts
        maxima = ("arith.maximumf", "arith.maxnumf")
        if self._reduction(self._unguarded(most), maxima, None) != score:
            raise NotAttention("no softmax before it: what is subtracted is not the maximum")
        if total != divisor and self._op(most, "arith.select") is None:
            raise NotAttention("no softmax before it: a sum of NaN is guarded as if it were 0")
        return score, total != divisor

    def _filled_sum(self, divisor: int) -> int:
        """The l of a divisor l, or of one that is a constant where l is 0."""
        parts = self._op(divisor, "arith.select")
        if parts is None or not isfinite(self._number(parts[1]) or nan):  # 0 is none too
            return divisor
        compared = self._compared(parts[0], "arith.cmpf", _ORDERED_EQUAL)
        is_zero = (
            compared is not None and parts[2] in compared and 0.0 in map(self._number, compared)
        )
        return parts[2] if is_zero else divisor

    def _emptied(self, root: int) -> tuple[int, int | None]:
        """(x, s) of x, or of an x that is 0 in rows where all s are -inf; s is None where it is always x."""
        parts = self._op(root, "arith.select")
        if parts is None or self._number(parts[1]) != 0.0 or (seen := self._not(parts[0])) is None:
            return root, None
        inside = self._reduction(seen, ("arith.ori",), 0.0)
        masked = None if inside is None else self._not(inside)
        pair = None if masked is None else self._compared(masked, "arith.cmpf", _ORDERED_EQUAL)
        if pair is None or self._number(pair[1]) != float("-inf"):
            return root, None
        return parts[2], (self._op(pair[0], "arith.extf") or pair)[0]

    def _compared(self, node: int, name: str, predicate: int) -> tuple[int, ...] | None:
        """The operands of a comparison with this predicate."""
        pair = self._op(node, name)
        if pair is None or dict(self.ex.nodes[node][2])["predicate"].value != predicate:
            return None
        return pair

    def _not(self, node: int) -> int | None:
        """The x of "not x", as x == false or x ^ true."""
        pair, number = self._compared(node, "arith.cmpi", 0), 0
        if pair is None:
            pair, number = self._op(node, "arith.xori"), 1
        if pair is None or self.ex.nodes[pair[1]][0] != "const":
            return None
        return pair[0] if abs(self.ex.nodes[pair[1]][1].value) == number else None

    def _share(self, root: int) -> tuple[int, int]:
        """(e, l) of e / l, or of e * (1 / l)."""
        parts = self._op(root, "arith.divf")
        if parts is not None:
            return parts[0], parts[1]
        product = self._op(root, "arith.mulf")
        for one, other in () if product is None else (product, product[::-1]):
            inverse = self._op(other, "arith.divf")
            if inverse is not None and self._number(inverse[0]) == 1.0:
                return one, inverse[1]
        raise NotAttention("no softmax before it")

    def _type(self, node: int) -> Any:
        """The element type of a node that is computed or read."""
        kind = self.ex.nodes[node]
        return kind[1].type.element_type if kind[0] == "leaf" else kind[-1]

    def _number(self, node: int) -> float | None:
        kind = self.ex.nodes[node]
        is_number = kind[0] == "const" and isinstance(kind[1], ir.FloatAttr)
        return float(kind[1].value) if is_number else None

    def _unguarded(self, node: int) -> int:
        """The maximum without what guards it: max with a constant, another value where it is not finite."""
        for _ in range(4):
            if (pair := self._op(node, "arith.maximumf", "arith.maxnumf")) is not None:
                low = [n for n in pair if self._number(n) == float("-inf")]
            elif (pair := self._op(node, "arith.select")) is not None:
                pair = pair[1:]
                low = [n for n in pair if self._number(n) is not None]
            else:
                break
            rest = [n for n in pair if n not in low]
            if len(rest) != 1:
                break
            node = rest[0]
        return node

    def _reduction(self, node: int, names: Sequence[str], start: float | None) -> int | None:
        """The node that is reduced over the keys, where `node` is a result of such a reduction."""
        kind = self.ex.nodes[node]
        if kind[0] != "leaf" or isinstance(kind[1].owner, ir.Block):
            return None
        op = kind[1].owner.operation
        if op.name.startswith("dist.all_reduce"):
            raise NotAttention(
                "the scores lie on several ranks, cut along their keys: the maximum and the sum cross ranks"
            )
        if (
            op.name != "linalg.generic"
            or len(op.results) != 1
            or any(self.key in dims_of(e) for e in kind[2])
        ):
            return None
        reduced, maps = reductions_of(op), maps_of(op)
        if (
            maps is None
            or not reduced
            or not _filled_with(op.operands[len(op.operands) - 1], start)
        ):
            return None
        loops: list[Entry] = [("number", 0)] * len(list(op.attributes["iterator_types"]))
        for entry, there in zip(maps[-1], kind[2]):
            if entry[0] == "dim":
                loops[entry[1]] = there
        extents = _extents(op, maps)
        real = [d for d in reduced if extents[d] != 1]
        if len(real) > 1 or (real and extents[real[0]] != self.last.sizes[self.key]):
            return None
        loops[(real or list(reduced))[0]] = ("dim", self.key)
        return self._reduced(op, names, loops)

    def _reduced(self, op: Any, names: Sequence[str], loops: Sequence[Entry]) -> int | None:
        block = op.regions[0].blocks[0]
        out = block.arguments[len(op.operands) - 1]
        made = block.operations[len(block.operations) - 1].operation.operands[0].owner
        if isinstance(made, ir.Block) or made.operation.name not in names:
            return None
        operands = list(made.operation.operands)
        if operands.count(out) != 1 or len(users(out)) != 1:
            return None
        self.reductions.append(op)
        try:
            return self.ex.body(op, loops, 1 - operands.index(out))
        except Opaque:
            return None

    # the scores: an elementwise function of one product

    def _score(self, score: int) -> tuple[int, _Product, tuple[Entry, ...]]:
        """The product that the scores are made of, and where they read it."""
        found = []
        for n in self.ex.below(score):
            kind = self.ex.nodes[n]
            if kind[0] != "leaf":
                continue
            if (
                self.query in (dims := frozenset().union(*(dims_of(e) for e in kind[2])))
                and self.key in dims
            ):
                made = kind[1].owner
                product = None if isinstance(made, ir.Block) else product_of(made.operation)
                if product is not None:
                    found.append((product, kind[2]))
                    continue
            _plain(kind[2], (self.query, self.key), needed=False)
        if len(found) != 1:
            raise NotAttention("no product of queries and keys before it")
        return score, *found[0]

    def _sides(self, first: _Product, entries: tuple[Entry, ...]) -> tuple[Operand, Operand, int]:
        """Queries and keys as the loops of the last product read them, and the extent of the sum."""
        loops: list[Entry] = [("number", 0)] * len(first.sizes)
        for entry, there in zip(first.writes, entries):
            if entry[0] == "dim":
                loops[entry[1]] = there
        loops[first.reduced] = ("dim", self.inner)
        sides = [Operand(o.value, at_loops(o.entries, loops)) for o in first.operands]
        dims = [_loops(side.entries) for side in sides]
        if self.query not in dims[0]:
            sides, dims = sides[::-1], dims[::-1]
        if (
            self.query not in dims[0]
            or self.key in dims[0]
            or self.key not in dims[1]
            or self.query in dims[1]
        ):
            raise NotAttention("no product of queries and keys before it")
        q = self._source(sides[0], (self.query, self.inner))
        k = self._source(sides[1], (self.key, self.inner))
        return q, k, first.sizes[first.reduced]

    def _source(self, side: Operand, dims: tuple[int, int]) -> Operand:
        """The same elements before all copies and reshapes that only move them."""
        copies = Expressions()
        node = copies.nodes[copies.node(side.value, side.entries)]
        if node[0] == "leaf":
            try:
                _plain(node[2], dims, needed=True)
                return Operand(node[1], node[2])
            except NotAttention:
                pass
        _plain(side.entries, dims, needed=True)
        return side

    def _read_by_nothing_else(self, first: Any, visited: Sequence[Any]) -> None:
        """Refuse where something outside reads the scores or what is made of them."""
        inside, left, seen = set(visited), [first], {first}
        while left:
            op = left.pop()
            for reader in users(op.results[0]):
                if reader.operation == (self.divided or self.last.op):
                    continue
                if reader.operation not in inside:
                    raise NotAttention(f"the scores are read by {reader.operation.name} too")
                if reader.operation not in seen:
                    seen.add(reader.operation)
                    left.append(reader.operation)
        if any(s.results[0] == self.v.value for s in seen):
            raise NotAttention("the scores are its values too")


def _of_floats(element: Any, wanted: Any = None) -> Any:
    """An element type that scores can have (this one)."""
    if str(element) not in _DTYPES:
        raise NotAttention(f"the scores are {element}, {' or '.join(_DTYPES)} is needed")
    if wanted not in (None, element):
        raise NotAttention(f"the scores are {element}, what they are multiplied with {wanted}")
    return element


def _loops(entries: Sequence[Entry]) -> frozenset[int]:
    return frozenset().union(*(dims_of(e) for e in entries))


def _extents(op: Any, maps: Sequence[tuple[Entry, ...]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for value, entries in zip(op.operands, maps):
        if isinstance(value.type, ir.RankedTensorType):
            found |= {e[1]: n for e, n in zip(entries, value.type.shape) if e[0] == "dim"}
    return found


def _plain(entries: Sequence[Entry], dims: Sequence[int], needed: bool) -> None:
    """Refuse entries that read loops `dims` but as they are, each at most once (exactly once where `needed`)."""
    for d in dims:
        where = [e for e in entries if d in dims_of(e)]
        if any(e != ("dim", d) for e in where) or len(where) > 1 or (needed and not where):
            raise NotAttention("the scores are read by a reshape that cuts through rows")


def score_bytes(found: Attention) -> int:
    """Bytes of all score matrices that are never made."""
    rows = prod(found.sizes[d] for d in (*found.batch, found.query))
    return rows * found.sizes[found.key] * (8 if str(found.dtype) == "f64" else 4)
