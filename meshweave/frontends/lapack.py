"""Cholesky, LU and triangular systems as loops: the routines of LAPACK that JAX calls, and StableHLO's own two ops.

Unblocked, one matrix of a batch after the other: for small matrices. The algorithms are the textbook's
[Golub, Van Loan, Matrix Computations, 4.2.3, 3.4.1, 3.1].
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from meshweave.bindings import ir
from meshweave.frontends.build import Builder

_ROUTINE = re.compile(r"lapack_[sd](potrf|getrf|trsm)_ffi")
_LOWER, _RIGHT, _TRANSPOSED, _UNIT = (ord(letter) for letter in "LRTU")


def routine(target: str) -> str | None:
    """The routine that a custom call of this name is, without its letter for the type; None for others."""
    found = _ROUTINE.fullmatch(target)
    return found[1] if found else None


def lower_library_call(op: Any) -> None:
    """stablehlo.custom_call of a routine that is known here; others are left."""
    name = routine(ir.StringAttr(op.attributes["call_target_name"]).value)
    if name is None:
        return
    given = _settings(op)
    b = Builder(ir.InsertionPoint(op), op.location)
    if name == "potrf":
        results = _cholesky(b, op.operands[0], given["uplo"] == _LOWER, op.results[1].type)
    elif name == "getrf":
        results = _lu(b, op.operands[0], *(r.type for r in list(op.results)[1:]))
    else:
        system = _System(
            op.operands[0],
            lower=given["uplo"] == _LOWER,
            transposed=given["trans_x"] == _TRANSPOSED,
            right=given["side"] == _RIGHT,
            unit=given["diag"] == _UNIT,
        )
        results = system.solved(b, op.operands[1])
    _replace(op, results)


def _settings(op: Any) -> dict[str, int]:
    """What the caller of a routine chose, by LAPACK's names: letters by their code. Upstream renames the attribute."""
    for name in ("backend_config", "mhlo.backend_config"):
        given = op.attributes.get(name)
        if isinstance(given, ir.DictAttr):
            return {setting.name: ir.IntegerAttr(setting.attr).value for setting in given}
    return {}


def lower_cholesky(op: Any) -> None:
    """stablehlo.cholesky."""
    b = Builder(ir.InsertionPoint(op), op.location)
    shape = op.operands[0].type.shape[:-2]
    info = ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(32))
    _replace(op, _cholesky(b, op.operands[0], _flag(op, "lower"), info)[:1])


def lower_triangular_solve(op: Any) -> None:
    """stablehlo.triangular_solve."""
    b = Builder(ir.InsertionPoint(op), op.location)
    system = _System(
        op.operands[0],
        lower=_flag(op, "lower"),
        transposed="NO_TRANSPOSE" not in str(op.attributes["transpose_a"]),
        right=not _flag(op, "left_side"),
        unit=_flag(op, "unit_diagonal"),
    )
    _replace(op, system.solved(b, op.operands[1]))


def _flag(op: Any, name: str) -> bool:
    return name in op.attributes and bool(ir.BoolAttr(op.attributes[name]).value)


def _replace(op: Any, results: Sequence[Any]) -> None:
    for old, new in zip(op.results, results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def _zeros(b: Builder, kind: Any) -> Any:
    zero = ir.IntegerAttr.get(kind.element_type, 0)
    return b.one("arith.constant", kind, value=ir.DenseElementsAttr.get_splat(kind, zero))


def _constant(b: Builder, kind: Any, value: float) -> Any:
    return b.one("arith.constant", kind, value=ir.FloatAttr.get(kind, value))


def _minus_products(
    b: Builder, start: Any, count: Any, pair: Callable[[Builder, Any], tuple[Any, Any]]
) -> Any:
    """`start` less the sum of the products of count pairs, of which pair(builder, k) is number k."""

    def less(inner: Builder, k: Any, values: Sequence[Any]) -> list[Any]:
        left, right = pair(inner, k)
        return [inner.binary("subf", values[0], inner.binary("mulf", left, right))]

    return b.loop(b.number(0), count, [start], less)[0]


def _failed(b: Builder, info: Any, at: Sequence[Any], holds: Any, j: Any) -> Any:
    """`info` with j + 1 where step j was the first whose condition does not hold."""
    before = b.element(info, at)
    step = b.one("arith.index_cast", before.type, b.binary("addi", j, b.number(1)))
    new = b.binary("andi", b.compare("eq", before, b.number(0, before.type)), _not(b, holds))
    return b.put(b.select(new, step, before), info, at)


def _not(b: Builder, holds: Any) -> Any:
    return b.binary("xori", holds, b.number(1, holds.type))


def _cholesky(b: Builder, matrix: Any, lower: bool, info_kind: Any) -> list[Any]:
    """The factor in one triangle (the other keeps what it has), and 0 or the step at which it does not exist."""
    *batch, size, _ = matrix.type.shape
    kind = matrix.type.element_type

    def place(at: Sequence[Any], i: Any, j: Any) -> list[Any]:
        return [*at, i, j] if lower else [*at, j, i]

    def one_matrix(m: Builder, at: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        def column(c: Builder, j: Any, state: Sequence[Any]) -> list[Any]:
            a, info = state

            def rest(inner: Builder, i: Any, a: Any) -> Any:
                return _minus_products(
                    inner,
                    inner.element(a, place(at, i, j)),
                    j,
                    lambda p, k: (p.element(a, place(at, i, k)), p.element(a, place(at, j, k))),
                )

            square = rest(c, j, a)
            positive = c.compare_floats("ogt", square, _constant(c, kind, 0.0))
            info = _failed(c, info, at, positive, j)
            root = c.one("math.sqrt", kind, square)
            a = c.put(root, a, place(at, j, j))

            def below(inner: Builder, i: Any, values: Sequence[Any]) -> list[Any]:
                divided = inner.binary("divf", rest(inner, i, values[0]), root)
                return [inner.put(divided, values[0], place(at, i, j))]

            first = c.binary("addi", j, c.number(1))
            return [*c.loop(first, c.number(size), [a], below), info]

        return m.loop(m.number(0), m.number(size), values, column)

    return b.loops(batch, [matrix, _zeros(b, info_kind)], one_matrix)


def _lu(b: Builder, matrix: Any, pivots_kind: Any, info_kind: Any) -> list[Any]:
    """Both factors in one matrix, the row (from 1) that each step swaps in, and 0 or the first step without a pivot."""
    *batch, rows, columns = matrix.type.shape
    kind = matrix.type.element_type

    def one_matrix(m: Builder, at: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        def step(s: Builder, j: Any, state: Sequence[Any]) -> list[Any]:
            a, pivots, info = state
            row = _largest(s, a, at, j, rows)
            number = s.one(
                "arith.index_cast", pivots_kind.element_type, s.binary("addi", row, s.number(1))
            )
            pivots = s.put(number, pivots, [*at, j])

            def swap(inner: Builder, k: Any, given: Sequence[Any]) -> list[Any]:
                upper, other = (inner.element(given[0], [*at, r, k]) for r in (j, row))
                once = inner.put(other, given[0], [*at, j, k])
                return [inner.put(upper, once, [*at, row, k])]

            (a,) = s.loop(s.number(0), s.number(columns), [a], swap)
            pivot = s.element(a, [*at, j, j])
            holds = s.compare_floats("une", pivot, _constant(s, kind, 0.0))
            info = _failed(s, info, at, holds, j)
            divisor = s.select(holds, pivot, _constant(s, kind, 1.0))
            after = s.binary("addi", j, s.number(1))

            def eliminate(inner: Builder, i: Any, given: Sequence[Any]) -> list[Any]:
                factor = inner.binary("divf", inner.element(given[0], [*at, i, j]), divisor)
                start = inner.put(factor, given[0], [*at, i, j])

                def subtract(e: Builder, k: Any, kept: Sequence[Any]) -> list[Any]:
                    product = e.binary("mulf", factor, e.element(kept[0], [*at, j, k]))
                    left = e.binary("subf", e.element(kept[0], [*at, i, k]), product)
                    return [e.put(left, kept[0], [*at, i, k])]

                return inner.loop(after, inner.number(columns), [start], subtract)

            return [*s.loop(after, s.number(rows), [a], eliminate), pivots, info]

        return m.loop(m.number(0), m.number(min(rows, columns)), values, step)

    starts = [matrix, _zeros(b, pivots_kind), _zeros(b, info_kind)]
    return b.loops(batch, starts, one_matrix)


def _largest(b: Builder, a: Any, at: Sequence[Any], j: Any, rows: int) -> Any:
    """The first row from j on whose element of column j is the largest in size."""

    def look(inner: Builder, i: Any, state: Sequence[Any]) -> list[Any]:
        best, row = state
        size = inner.one("math.absf", best.type, inner.element(a, [*at, i, j]))
        larger = inner.compare_floats("ogt", size, best)
        return [inner.select(larger, size, best), inner.select(larger, i, row)]

    start = b.one("math.absf", a.type.element_type, b.element(a, [*at, j, j]))
    return b.loop(j, b.number(rows), [start, j], look)[1]


class _System:
    """op(A) X = B or X op(A) = B with a triangle of A, which is transposed or not."""

    def __init__(
        self, matrix: Any, *, lower: bool, transposed: bool, right: bool, unit: bool
    ) -> None:
        self.matrix, self.right, self.unit = matrix, right, unit
        self.swapped = (
            transposed != right
        )  # the coefficient of unknown k in equation i is at (k, i)
        self.forward = lower != self.swapped

    def solved(self, b: Builder, sides: Any) -> list[Any]:
        """X, by substitution."""
        *batch, size, _ = self.matrix.type.shape
        others = sides.type.shape[-2 if self.right else -1]

        def one_column(m: Builder, at: Sequence[Any], values: Sequence[Any]) -> list[Any]:
            *batch_at, other = at

            def place(i: Any) -> list[Any]:
                return [*batch_at, other, i] if self.right else [*batch_at, i, other]

            def equation(e: Builder, number: Any, state: Sequence[Any]) -> list[Any]:
                (x,) = state
                i = self._number(e, number, size)

                def pair(p: Builder, k: Any) -> tuple[Any, Any]:
                    known = self._number(p, k, size)
                    return self._coefficient(p, batch_at, i, known), p.element(x, place(known))

                value = _minus_products(e, e.element(x, place(i)), number, pair)
                if not self.unit:
                    value = e.binary("divf", value, self._coefficient(e, batch_at, i, i))
                return [e.put(value, x, place(i))]

            return m.loop(m.number(0), m.number(size), values, equation)

        return b.loops([*batch, others], [sides], one_column)

    def _number(self, b: Builder, number: Any, size: int) -> Any:
        """The unknown that is found as number so and so."""
        return number if self.forward else b.binary("subi", b.number(size - 1), number)

    def _coefficient(self, b: Builder, at: Sequence[Any], i: Any, k: Any) -> Any:
        return b.element(self.matrix, [*at, k, i] if self.swapped else [*at, i, k])
