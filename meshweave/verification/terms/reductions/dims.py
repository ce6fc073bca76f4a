"""Write a reduction as a function of dims, with its bound variables numbered as they appear."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from meshweave.verification.terms.indices import Expr, Var, of_var, substitute, variables
from meshweave.verification.terms.terms import Abstraction


class OverDims(NamedTuple):
    """Hold a reduction as a function of dims.

    body: where what is reduced is read, over dims and bound variables. extents: of these. exprs, sizes: what each dim
    stands for, and how far it is defined.
    """

    body: tuple[Expr, ...]
    extents: tuple[int, ...]
    exprs: tuple[Expr, ...]
    sizes: tuple[int | None, ...]


@lru_cache(maxsize=1 << 12)
def over_dims(
    exprs: tuple[Expr, ...], limits: tuple[int | None, ...], over: tuple[Var, ...]
) -> OverDims:
    """Replace all but the bound variables by dims, and number those in the order in which they appear."""
    order = [v for e in exprs for v in _in_order(e) if v in over]
    bound = sorted(over, key=order.index)
    names = {v: of_var(Var("b", str(k), v.size)) for k, v in enumerate(bound)}
    found = Abstraction(frozenset(Var("b", str(k), v.size) for k, v in enumerate(bound)))
    body = tuple([found.expr(substitute(e, names), n) for e, n in zip(exprs, limits)])
    extents = tuple([v.size for v in bound])
    return OverDims(body, extents, tuple(found.exprs), tuple(found.sizes))


def _in_order(expr: Expr) -> list[Var]:
    return sorted(variables(expr), key=lambda v: (-weight(expr, v), v))


def weight(expr: Expr, var: Var) -> int:
    """Return what a variable counts in an expression where it stands alone: 0 where it does not."""
    return next((c for a, c in expr.terms if a == var), 0)
