"""Read the index maps of linalg ops as loops, and say where each operand is read in them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from meshweave.ir.bindings import ir
from meshweave.verification.said import NotReadError
from meshweave.verification.terms.indices import Expr, Var, of_var, total
from meshweave.verification.terms.ranks import index_var
from meshweave.verification.terms.substitution import Substitution

Row = tuple[int, tuple[tuple[int, int], ...]]
"""A result of an index map: a number, and a factor for each loop."""


class LoopForm:
    """Hold what the index maps and shapes of a linalg op say, the same for all ops that have them.

    loops: the variable of each: the index of the result's dim, or a bound one. places: for each operand what to put in
    the place of its indices. is_plain: whether each element of the one result is made of one of each operand.
    """

    def __init__(
        self, rows: tuple[tuple[Row, ...], ...], shapes: tuple[tuple[int, ...], ...], inits: int
    ) -> None:
        self.rows, self.shapes, self.inits = rows, shapes, inits
        self.loops = self._loops()
        self.bound = [v for v in self.loops if v.kind == "b"]
        self.is_reduction = any(v.size != 1 for v in self.bound)
        self.places = [Substitution(self._places(k)) for k in range(len(shapes))]
        self.empty = any(0 in shape for shape in shapes)
        self.is_plain = not self.bound and not self.empty and inits == 1
        self.in_order = inits == 1 or all(row == rows[-inits] for row in rows[-inits:])

    def _loops(self) -> list[Var]:
        extents: dict[int, int] = {}
        count = 0
        for rows, shape in zip(self.rows, self.shapes):
            for (const, factors), size in zip(rows, shape):
                for loop, _ in factors:
                    count = max(count, loop + 1)
                if not const and len(factors) == 1 and factors[0][1] == 1:
                    extents.setdefault(factors[0][0], size)
        if len(extents) != count:
            raise NotReadError("a loop whose extent no operand says")
        places = self._result_places(self.rows[-self.inits])
        return [
            index_var(places[loop], extents[loop])
            if loop in places
            else Var("b", f"l{loop}", extents[loop])
            for loop in range(count)
        ]

    def _result_places(self, rows: Sequence[Row]) -> dict[int, int]:
        found = {}
        for dim, ((const, factors), size) in enumerate(zip(rows, self.shapes[-1])):
            if not const and not factors and size == 1:
                continue
            if const or len(factors) != 1 or factors[0][1] != 1 or factors[0][0] in found:
                raise NotReadError("a result that is not written once at each place")
            found[factors[0][0]] = dim
        return found

    def _places(self, number: int) -> dict[Var, Expr]:
        values: dict[Var, Expr] = {}
        for dim, ((const, factors), size) in enumerate(zip(self.rows[number], self.shapes[number])):
            var = index_var(dim, size)
            if const or len(factors) != 1 or factors[0][1] != 1:
                values[var] = total([(of_var(self.loops[d]), c) for d, c in factors], const)
            elif self.loops[factors[0][0]] != var:
                values[var] = of_var(self.loops[factors[0][0]])
        return values


loop_form = lru_cache(maxsize=1 << 10)(LoopForm)


def map_rows(maps: ir.ArrayAttr) -> tuple[tuple[Row, ...], ...]:
    """Return the results of index maps."""
    return tuple([tuple([_row(e) for e in attr.value.results]) for attr in maps])


def _row(expr: ir.AffineExpr) -> Row:
    if isinstance(expr, ir.AffineDimExpr):
        return 0, ((expr.position, 1),)
    if isinstance(expr, ir.AffineConstantExpr):
        return expr.value, ()
    if isinstance(expr, ir.AffineAddExpr):
        (a, left), (b, right) = _row(expr.lhs), _row(expr.rhs)
        sums: dict[int, int] = {}
        for d, c in (*left, *right):
            sums[d] = sums.get(d, 0) + c
        return a + b, tuple(sorted(sums.items()))
    if isinstance(expr, ir.AffineMulExpr):
        (a, left), (b, right) = _row(expr.lhs), _row(expr.rhs)
        if not right:
            return a * b, tuple([(d, c * b) for d, c in left])
        if not left:
            return a * b, tuple([(d, c * a) for d, c in right])
    raise NotReadError(f"an index map with {expr}")
