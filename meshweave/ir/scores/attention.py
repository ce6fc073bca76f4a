"""Read and build `mw.attention`, softmax(f(q k^T)) v as one op, and write it as the linalg ops that it stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import IteratorType, OpBuilder, dims_map, tensor_type
from meshweave.ir.ops import body_of, terminator

ATTENTION, SCORES, WEIGHTED = "mw.attention", "mw.scores", "mw.weighted"
"""The op, and what a kernel says in its place: products added up along a row, and rows weighted by a softmax."""
LAST = 4
"""Loops behind those of the batch: query, column, key, and the one that scores add up."""

Form = tuple[tuple[int, int], ...]
"""A sum of loops, each times a factor."""


@dataclass(frozen=True)
class AttentionForm:
    """Hold what an `mw.attention` says.

    sizes: of its loops. maps: for each operand, then the result, a form for each dim. bounds: (upper, slope, offset)
    that hold wherever a score is not -inf: key <= slope * query + offset, or >= where not `upper`. zeros: whether a
    row without any other score is 0; else it is 0/0. rounded: the type that weights are rounded to.
    """

    sizes: tuple[int, ...]
    maps: tuple[tuple[Form, ...], ...]
    bounds: tuple[tuple[int, int, int], ...]
    zeros: bool
    rounded: ir.Type

    @classmethod
    def of(cls, op: ir.Operation) -> AttentionForm:
        """Read an op that its verifier has passed."""
        attributes = op.attributes
        maps = [tuple([form_of(e) for e in m.value.results]) for m in attributes["maps"]]
        numbers = list(attributes["bounds"])
        bounds = zip(numbers[::3], numbers[1::3], numbers[2::3])
        return cls(
            tuple(attributes["sizes"]), tuple(maps), tuple(bounds), "zeros" in attributes,
            attributes["rounded"].value,
        )  # fmt: skip

    @property
    def query(self) -> int:
        """Return the loop of the queries; column, key and inner come behind it."""
        return len(self.sizes) - LAST

    def attributes(self) -> dict[str, ir.Attribute]:
        """Return the attributes of the op."""
        count = len(self.sizes)
        maps = [affine_form(count, forms) for forms in self.maps]
        flat = [number for bound in self.bounds for number in bound]
        found: dict[str, ir.Attribute] = {
            "maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
            "sizes": ir.DenseI64ArrayAttr.get(self.sizes),
            "bounds": ir.DenseI64ArrayAttr.get(flat),
            "rounded": ir.TypeAttr.get(self.rounded),
        }
        return {**found, "zeros": ir.UnitAttr.get()} if self.zeros else found


def form_of(expr: ir.AffineExpr) -> Form:
    """Return an affine expression as a sum of loops; a number other than 0 has no form."""
    if isinstance(expr, ir.AffineDimExpr):
        return ((expr.position, 1),)
    if isinstance(expr, ir.AffineAddExpr):
        return form_of(expr.lhs) + form_of(expr.rhs)
    if isinstance(expr, ir.AffineMulExpr):
        return tuple((loop, factor * expr.rhs.value) for loop, factor in form_of(expr.lhs))
    assert isinstance(expr, ir.AffineConstantExpr) and expr.value == 0, f"{expr} is no sum of loops"
    return ()


def affine_form(count: int, forms: Sequence[Form]) -> ir.AffineMap:
    """Return the affine map of so many loops with these forms."""
    return ir.AffineMap.get(count, 0, [_expr(form) for form in forms])


def _expr(form: Form) -> ir.AffineExpr:
    made: ir.AffineExpr = ir.AffineConstantExpr.get(0)
    for loop, factor in form:
        made = ir.AffineAddExpr.get(made, ir.AffineDimExpr.get(loop) * factor)
    return made


def maps_misfit(maps: ir.ArrayAttr, types: Sequence[ir.Type], sizes: Sequence[int]) -> str:
    """Say what is wrong with the maps from loops of these sizes to tensors of these types; "" where they fit."""
    for attr, type_ in zip(maps, types):
        fits = isinstance(attr, ir.AffineMapAttr) and isinstance(type_, ir.RankedTensorType)
        if not fits or (attr.value.n_dims, len(attr.value.results)) != (len(sizes), type_.rank):
            return f"needs tensors, and of each a map over {len(sizes)} loops for each dim"
        for form, extent in zip(map(form_of, attr.value.results), type_.shape):
            if 1 + sum(factor * (sizes[loop] - 1) for loop, factor in form) != extent:
                return f"has a map {attr} whose loops do not run over all of {type_}"
    return ""


def misfit(op: ir.Operation) -> str:
    """Say what is wrong with the attributes or types of an `mw.attention`; "" where they fit."""
    maps, sizes, bounds = (op.attributes.get(name) for name in ("maps", "sizes", "bounds"))
    types = [value.type for value in (*op.operands, *op.results)]
    if not isinstance(maps, ir.ArrayAttr) or len(op.results) != 1 or len(maps) != len(types) < 4:
        return "needs q, k, v, one result, and a map for each of its tensors"
    if not isinstance(sizes, ir.DenseI64ArrayAttr) or len(sizes) < LAST:
        return "needs the sizes of its loops, the last those of query, column, key and sum"
    if not isinstance(bounds, ir.DenseI64ArrayAttr) or len(bounds) % 3:
        return "needs bounds of three numbers each"
    if not isinstance(op.attributes.get("rounded"), ir.TypeAttr):
        return "needs the type that weights are rounded to"
    if refused := maps_misfit(maps, types, sizes):
        return refused
    written = [form_of(e) for e in maps[len(maps) - 1].value.results]
    kept = sorted([((loop, 1),) for loop in range(len(sizes) - 2)])
    return "" if sorted(written) == kept else "needs a result with a dim for each parallel loop"


Evaluate = Callable[[OpBuilder, list[ir.Value], Callable[[int], ir.Value]], ir.Value]
"""Write what a body yields first, from its arguments and the index of a loop."""


def _body(op: ir.Operation) -> Evaluate:
    """Return how to write the score again: one op of the body after another."""
    block = body_of(op)
    arguments, end = list(block.arguments), terminator(block)

    def write(b: OpBuilder, given: list[ir.Value], index: Callable[[int], ir.Value]) -> ir.Value:
        known: dict[ir.Value, ir.Value] = dict(zip(arguments, given))
        for view in block.operations:
            inner = view.operation
            if inner == end:
                break
            if inner.name == "mw.index":
                ((loop, _),) = form_of(inner.attributes["map"].value.results[0])
                known[inner.results[0]] = index(loop)
                continue
            operands = [known.get(value, value) for value in inner.operands]
            said: Mapping[str, ir.Attribute] = {k: inner.attributes[k] for k in inner.attributes}
            known[inner.results[0]] = b.one(inner.name, inner.results[0].type, *operands, **said)
        return known.get(end.operands[0], end.operands[0])

    return write


def spelled(op: ir.Operation, b: OpBuilder, operands: Sequence[ir.Value]) -> ir.Value:
    """Write what an `mw.attention` of these operands means as linalg ops; return the result."""
    return _AttentionSpeller(op, b, operands).result()


class LoopSpeller:
    """Write ops over the loops of an op whose `maps` say how its operands are read. dtype: of the scores."""

    def __init__(
        self, op: ir.Operation, b: OpBuilder, operands: Sequence[ir.Value], sizes: Sequence[int],
        maps: Sequence[tuple[Form, ...]], dtype: ir.Type,
    ) -> None:  # fmt: skip
        self.op, self.b, self.operands = op, b, operands
        self.sizes, self.maps, self.dtype = sizes, maps, dtype

    def generic(
        self, loops: Sequence[int], numbers: Sequence[int], writes: Sequence[int],
        start: float | None, body: Callable[[OpBuilder, list[ir.Value]], ir.Value],
        first: Sequence[tuple[ir.Value, Sequence[int]]] = (), element: ir.Type | None = None,
    ) -> ir.Value:  # fmt: skip
        """Make an op over `loops`. first: tensors that it reads, with their loops; then operands by number."""
        place = {loop: k for k, loop in enumerate(loops)}
        count, type_ = len(loops), element or self.dtype
        maps = [dims_map(count, [place[d] for d in dims]) for _, dims in first]
        for number in numbers:
            forms = [tuple((place[d], by) for d, by in form) for form in self.maps[number]]
            maps.append(affine_form(count, forms))
        maps.append(dims_map(count, [place[d] for d in writes]))
        kind = tensor_type([self.sizes[d] for d in writes], type_)
        if start is None:
            into = self.b.empty(kind)
        else:
            into = self.b.fill(self.b.constant(ir.FloatAttr.get(type_, start)), kind)
        kinds = [IteratorType.PARALLEL if d in writes else IteratorType.REDUCTION for d in loops]
        inputs = [*[value for value, _ in first], *[self.operands[k] for k in numbers]]
        made = self.b.generic(inputs, [into], maps, kinds, lambda b, e: [body(b, e)])
        return made.result

    def multiply_add(self, b: OpBuilder, elements: list[ir.Value]) -> ir.Value:
        """Write the body of a product."""
        left, right, out = elements
        left, right = (resized(b, value, self.dtype) for value in (left, right))
        return b.binary("addf", out, b.binary("mulf", left, right))

    def body(self, b: OpBuilder, elements: list[ir.Value], matrix: Sequence[int]) -> ir.Value:
        """Write what the op's body yields first, in an op over the loops `matrix`."""
        types = [argument.type for argument in body_of(self.op).arguments]
        given = [resized(b, value, type_) for value, type_ in zip(elements, types)]
        return _body(self.op)(b, given, lambda loop: b.loop_index(matrix.index(loop)))


class _AttentionSpeller(LoopSpeller):
    def __init__(self, op: ir.Operation, b: OpBuilder, operands: Sequence[ir.Value]) -> None:
        self.form = AttentionForm.of(op)
        dtype = body_of(op).arguments[0].type
        super().__init__(op, b, operands, self.form.sizes, self.form.maps, dtype)
        self.query = self.form.query
        self.batch = list(range(self.query))

    def result(self) -> ir.Value:
        query, _, key, inner = range(self.query, self.query + LAST)
        rows, matrix = [*self.batch, query], [*self.batch, query, key]
        q, k, v, *more = range(len(self.operands))
        raw = self.generic([*matrix, inner], [q, k], matrix, 0.0, self.multiply_add)
        scores = self.generic(matrix, more, matrix, None, self._score, [(raw, matrix)])
        most = self.generic(
            matrix, [], rows, -inf, lambda b, e: b.binary("maximumf", *e), [(scores, matrix)]
        )
        pair = [(scores, matrix), (most, rows)]
        shares = self.generic(matrix, [], matrix, None, _exp_below, pair)
        total = self.generic(
            matrix, [], rows, 0.0, lambda b, e: b.binary("addf", e[1], e[0]), [(shares, matrix)]
        )
        pair = [(shares, matrix), (total, rows)]
        weights = self.generic(matrix, [], matrix, None, self._divide, pair, self.form.rounded)
        out = [loop for ((loop, _),) in self.form.maps[-1]]
        made = self.generic([*out, key], [v], out, 0.0, self._add_weighted, [(weights, matrix)])
        type_ = self.op.results[0].type.element_type
        if type_ == self.dtype:
            return made
        return self.generic(
            out, [], out, None, lambda b, e: resized(b, e[0], type_), [(made, out)], type_
        )

    def _score(self, b: OpBuilder, elements: list[ir.Value]) -> ir.Value:
        return self.body(b, elements[:-1], [*self.batch, self.query, self.query + 2])

    def _divide(self, b: OpBuilder, elements: list[ir.Value]) -> ir.Value:
        share, total, _ = elements
        if self.form.zeros:
            zero, one = (b.constant(ir.FloatAttr.get(total.type, n)) for n in (0.0, 1.0))
            none = b.compare(arith.CmpFPredicate.OEQ, total, zero)
            total = b.select(none, one, total)
        return resized(b, b.binary("divf", share, total), self.form.rounded)

    def _add_weighted(self, b: OpBuilder, elements: list[ir.Value]) -> ir.Value:
        weight, value, out = elements
        weight, value = (resized(b, v, out.type) for v in (weight, value))
        return b.binary("addf", out, b.binary("mulf", weight, value))


def resized(b: OpBuilder, value: ir.Value, type_: ir.Type) -> ir.Value:
    """Return a float as another float type."""
    if value.type == type_ or not isinstance(type_, ir.FloatType):
        return value
    return b.one("arith.extf" if value.type.width < type_.width else "arith.truncf", type_, value)


def _exp_below(b: OpBuilder, elements: list[ir.Value]) -> ir.Value:
    """Return exp(x - y) of an x that is at most y; 0 where y is -inf."""
    x, y = elements[:2]
    low, zero = (b.constant(ir.FloatAttr.get(y.type, n)) for n in (-inf, 0.0))
    none = b.compare(arith.CmpFPredicate.OEQ, y, low)
    return b.one("math.exp", x.type, b.binary("subf", x, b.select(none, zero, y)))
