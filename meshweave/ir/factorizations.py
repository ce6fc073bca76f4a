"""Write Cholesky, LU and triangular systems of `mw.lapack` as loops, where the library may not be called.

The loops are unblocked and take one matrix of a batch after the other: they are for small matrices. The algorithms are
the textbook's
[Golub, Van Loan, Matrix Computations, 4.2.3, 3.4.1, 3.1].
"""

from __future__ import annotations

from collections.abc import Callable

from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import OpBuilder, Values
from meshweave.ir.routines import RoutineCall

_Cmp = arith.CmpFPredicate
LOOPS = ("potrf", "getrf", "trsm_left", "trsm_right")
"""Routines that are written as loops here."""


def in_loops(op: ir.Operation) -> list[ir.Value]:
    """Write an `mw.lapack` of one of LOOPS as loops; return its results."""
    call, b = RoutineCall.of(op), OpBuilder.before(op)
    types = [result.type for result in op.results]
    if call.routine == "potrf":
        return _cholesky(b, op.operands[0], "lower" in call.flags, types[1])
    if call.routine == "getrf":
        return _lu(b, op.operands[0], *types[1:])
    return _solved(
        b,
        *op.operands,
        lower="lower" in call.flags,
        transposed="transposed" in call.flags,
        right=call.routine == "trsm_right",
        unit="unit" in call.flags,
    )


def _zeros(b: OpBuilder, type_: ir.Type) -> ir.Value:
    zero = ir.IntegerAttr.get(type_.element_type, 0)
    return b.constant(ir.DenseElementsAttr.get_splat(type_, zero))


def _minus_products(
    b: OpBuilder,
    start: ir.Value,
    count: ir.Value,
    pair: Callable[[OpBuilder, ir.Value], tuple[ir.Value, ir.Value]],
) -> ir.Value:
    """Return `start` less the sum of `count` products, of which pair(builder, k) returns the factors of number k."""

    def less(inner: OpBuilder, k: ir.Value, values: Values) -> list[ir.Value]:
        left, right = pair(inner, k)
        return [inner.binary("subf", values[0], inner.binary("mulf", left, right))]

    return b.loop(0, count, [start], less)[0]


def _failed(b: OpBuilder, info: ir.Value, at: Values, holds: ir.Value, j: ir.Value) -> ir.Value:
    """Return `info` with j + 1 at `at` where step j is the first whose condition does not hold."""
    before = b.element(info, at)
    step = b.one("arith.index_cast", before.type, _next(b, j))
    none_yet = b.compare(arith.CmpIPredicate.eq, before, b.integer(0, before.type))
    fails = b.binary("xori", holds, b.integer(1, holds.type))
    return b.put_element(b.select(b.binary("andi", none_yet, fails), step, before), info, at)


def _next(b: OpBuilder, index: ir.Value) -> ir.Value:
    return b.binary("addi", index, b.index(1))


def _cholesky(b: OpBuilder, matrix: ir.Value, lower: bool, info_type: ir.Type) -> list[ir.Value]:
    """Return the factor in one triangle (the other keeps what it has), and 0 or the step at which it does not exist."""
    *batch, size, _ = matrix.type.shape
    element = matrix.type.element_type
    zero = ir.FloatAttr.get(element, 0.0)

    def place(at: Values, i: ir.Value, j: ir.Value) -> list[ir.Value]:
        return [*at, i, j] if lower else [*at, j, i]

    def one_matrix(m: OpBuilder, at: Values, values: Values) -> Values:
        def column(c: OpBuilder, j: ir.Value, state: Values) -> list[ir.Value]:
            a, info = state

            def rest(inner: OpBuilder, i: ir.Value, a: ir.Value) -> ir.Value:
                return _minus_products(
                    inner,
                    inner.element(a, place(at, i, j)),
                    j,
                    lambda p, k: (p.element(a, place(at, i, k)), p.element(a, place(at, j, k))),
                )

            square = rest(c, j, a)
            positive = c.compare(_Cmp.OGT, square, c.constant(zero))
            info = _failed(c, info, at, positive, j)
            root = c.one("math.sqrt", element, square)
            a = c.put_element(root, a, place(at, j, j))

            def below(inner: OpBuilder, i: ir.Value, values: Values) -> list[ir.Value]:
                divided = inner.binary("divf", rest(inner, i, values[0]), root)
                return [inner.put_element(divided, values[0], place(at, i, j))]

            first = _next(c, j)
            return [*c.loop(first, size, [a], below), info]

        return m.loop(0, size, values, column)

    return b.loops(batch, [matrix, _zeros(b, info_type)], one_matrix)


def _lu(b: OpBuilder, matrix: ir.Value, pivots_type: ir.Type, info_type: ir.Type) -> list[ir.Value]:
    """Return both factors in one matrix, the pivots, and 0 or the first step without a pivot.

    A pivot is the number of the row, from 1, that its step swaps in.
    """
    *batch, rows, columns = matrix.type.shape
    element = matrix.type.element_type

    def one_matrix(m: OpBuilder, at: Values, values: Values) -> Values:
        def step(s: OpBuilder, j: ir.Value, state: Values) -> list[ir.Value]:
            a, pivots, info = state
            row = _largest(s, a, at, j, rows)
            number = s.one("arith.index_cast", pivots_type.element_type, _next(s, row))
            pivots = s.put_element(number, pivots, [*at, j])

            def swap(inner: OpBuilder, k: ir.Value, given: Values) -> list[ir.Value]:
                upper, other = (inner.element(given[0], [*at, r, k]) for r in (j, row))
                once = inner.put_element(other, given[0], [*at, j, k])
                return [inner.put_element(upper, once, [*at, row, k])]

            (a,) = s.loop(0, columns, [a], swap)
            pivot = s.element(a, [*at, j, j])
            holds = s.compare(_Cmp.UNE, pivot, s.constant(ir.FloatAttr.get(element, 0.0)))
            info = _failed(s, info, at, holds, j)
            divisor = s.select(holds, pivot, s.constant(ir.FloatAttr.get(element, 1.0)))
            after = _next(s, j)

            def eliminate(inner: OpBuilder, i: ir.Value, given: Values) -> Values:
                factor = inner.binary("divf", inner.element(given[0], [*at, i, j]), divisor)
                start = inner.put_element(factor, given[0], [*at, i, j])

                def subtract(e: OpBuilder, k: ir.Value, kept: Values) -> list[ir.Value]:
                    product = e.binary("mulf", factor, e.element(kept[0], [*at, j, k]))
                    left = e.binary("subf", e.element(kept[0], [*at, i, k]), product)
                    return [e.put_element(left, kept[0], [*at, i, k])]

                return inner.loop(after, columns, [start], subtract)

            return [*s.loop(after, rows, [a], eliminate), pivots, info]

        return m.loop(0, min(rows, columns), values, step)

    starts = [matrix, _zeros(b, pivots_type), _zeros(b, info_type)]
    return b.loops(batch, starts, one_matrix)


def _largest(b: OpBuilder, a: ir.Value, at: Values, j: ir.Value, rows: int) -> ir.Value:
    """Return the first row, from j on, whose element of column j is the largest in magnitude."""

    def look(inner: OpBuilder, i: ir.Value, state: Values) -> list[ir.Value]:
        best, row = state
        size = inner.one("math.absf", best.type, inner.element(a, [*at, i, j]))
        larger = inner.compare(_Cmp.OGT, size, best)
        return [inner.select(larger, size, best), inner.select(larger, i, row)]

    start = b.one("math.absf", a.type.element_type, b.element(a, [*at, j, j]))
    return b.loop(j, rows, [start, j], look)[1]


def _solved(
    b: OpBuilder,
    matrix: ir.Value,
    sides: ir.Value,
    *,
    lower: bool,
    transposed: bool,
    right: bool,
    unit: bool,
) -> list[ir.Value]:
    """Solve op(A) X = B or X op(A) = B by substitution, where op transposes a triangle of A or not."""
    *batch, size, _ = matrix.type.shape
    swapped = transposed != right  # the coefficient of unknown k in equation i is at (k, i)
    forward = lower != swapped

    def unknown(e: OpBuilder, number: ir.Value) -> ir.Value:
        return number if forward else e.binary("subi", e.index(size - 1), number)

    def one_column(m: OpBuilder, at: Values, values: Values) -> Values:
        *before, other = at

        def place(i: ir.Value) -> list[ir.Value]:
            return [*before, other, i] if right else [*before, i, other]

        def coefficient(e: OpBuilder, i: ir.Value, k: ir.Value) -> ir.Value:
            return e.element(matrix, [*before, k, i] if swapped else [*before, i, k])

        def equation(e: OpBuilder, number: ir.Value, state: Values) -> Values:
            (x,) = state
            i = unknown(e, number)

            def pair(p: OpBuilder, k: ir.Value) -> tuple[ir.Value, ir.Value]:
                known = unknown(p, k)
                return coefficient(p, i, known), p.element(x, place(known))

            value = _minus_products(e, e.element(x, place(i)), number, pair)
            if not unit:
                value = e.binary("divf", value, coefficient(e, i, i))
            return [e.put_element(value, x, place(i))]

        return m.loop(0, size, values, equation)

    return b.loops([*batch, sides.type.shape[-2 if right else -1]], [sides], one_column)
