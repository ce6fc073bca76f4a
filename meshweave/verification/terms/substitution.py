"""Put expressions in the place of variables, again and again: what came of it once is remembered."""

from __future__ import annotations

from collections.abc import Mapping

from meshweave.verification.terms.indices import Expr, Var, substitute
from meshweave.verification.terms.terms import Term, Terms, at_only_place, term

MOST_KEPT = 1 << 10
"""Places that are remembered."""


class Substitution:
    """Put expressions in the place of variables. values: which, in the place of which."""

    __slots__ = ("_made", "values")

    def __init__(self, values: Mapping[Var, Expr]) -> None:
        self.values = values
        self._made: dict[
            tuple[tuple[Expr, ...], tuple[int | None, ...]],
            tuple[tuple[Expr, ...], tuple[Expr, ...] | None],
        ] = {}

    def of(self, terms: Terms, view: Term) -> Term:
        """Return a view with these expressions in the place of the variables."""
        number, exprs, fills, guards = view
        if guards:
            return terms.composed(view, self.values)
        key = exprs, terms.sizes[number]
        made, plain = self._made.get(key) or self._placed(*key)
        if made == exprs:
            return view
        if plain is None or terms.nodes[number].op == "concat" or fills.count(None) != len(fills):
            return terms.view(number, made, fills)
        return term((number, plain, fills, ()))

    def _placed(
        self, exprs: tuple[Expr, ...], sizes: tuple[int | None, ...]
    ) -> tuple[tuple[Expr, ...], tuple[Expr, ...] | None]:
        """Return what becomes of places, and these as a view without fills has them; None where it has guards then."""
        if len(self._made) >= MOST_KEPT:
            self._made.clear()
        made = tuple([substitute(e, self.values) for e in exprs])
        plain, guards = at_only_place(made, sizes, (), ())
        found = self._made[exprs, sizes] = made, None if guards else tuple(plain)
        return found
