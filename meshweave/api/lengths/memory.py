"""Find how the memory between arguments and results grows with the sizes that calls choose: plan for other bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, combinations_with_replacement, islice, product
from math import lcm, prod

from meshweave.layout.lengths import Dim, Formula, Sizes

_PARTS = 8  # bounds of which plans are made are some of the last eighths
_DIMS = 2  # of more there are too many plans to make
_MORE = 2  # plans that a formula is compared with, beside those that it comes from


@dataclass(frozen=True)
class ArenaGrowth:
    """Hold the bytes that plans for some bounds take.

    planned: these, each with its bounds. formula: gives all of them, divided by `divisor`; None where nothing does.
    """

    planned: Sequence[tuple[Sizes, int]]
    formula: Formula | None
    divisor: int = 1

    def __str__(self) -> str:
        if self.formula is None:
            said = "; ".join(f"{nbytes:,} for {_text(sizes)}" for sizes, nbytes in self.planned)
            return f"no formula of the sizes: {said}"
        right = f"({self.formula})/{self.divisor}" if self.divisor > 1 else str(self.formula)
        return f"{right} bytes, as planned for {'; '.join(_text(s) for s, _ in self.planned)}"


def _text(sizes: Sizes) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def arena_growth(
    dims: Sequence[Dim], nbytes: Callable[[Sizes], int], step: int
) -> ArenaGrowth | None:
    """Return how memory grows with the bounds of `dims`; None where these are too small to tell, or too many.

    nbytes: plans the program for these bounds. step: large bounds are multiples of it, so that no buffer is rounded up.
    """
    terms = _terms([dim.name for dim in dims])
    sizes = list(islice(_bounds(dims, step), len(terms) + _MORE))
    if len(dims) > _DIMS or len(sizes) < len(terms) + _MORE:
        return None
    planned = [(one, nbytes(one)) for one in sizes]
    rows = [[Fraction(prod(one[n] for n in names)) for names in terms] for one in sizes]
    found = _solved([[*row, Fraction(n)] for row, (_, n) in zip(rows, planned)])
    if found is None:
        return ArenaGrowth(planned, None)
    divisor = lcm(*(factor.denominator for factor in found))
    formula = Formula(0)
    for names, factor in zip(terms, found):
        if factor:
            formula = formula.plus(Formula.product(int(factor * divisor), names))
    return ArenaGrowth(planned, formula, divisor)


def _terms(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return products of sizes, each at most twice: what a buffer may be a multiple of."""
    many = chain.from_iterable(combinations_with_replacement(names, k) for k in range(4))
    return [one for one in many if all(one.count(name) < 3 for name in one)]


def _bounds(dims: Sequence[Dim], step: int) -> list[dict[str, int]]:
    """Return bounds in the upper half of what there is, the largest first, in an order that tells terms apart."""
    rows = []
    if all(dim.max < step * _PARTS // 2 for dim in dims):
        return []
    for dim in dims:
        # Beside a large dim no buffer is rounded up.
        own = 1 if dim.max < step * _PARTS // 2 else step
        most = dim.max // own
        numbers = [own * (most * k // _PARTS) for k in range(_PARTS, _PARTS // 2 - 1, -1)]
        rows.append([n for n in dict.fromkeys(numbers) if n >= dim.min])
    places = sorted(product(*(range(len(row)) for row in rows)), key=lambda at: (sum(at), at))
    return [{d.name: row[k] for d, row, k in zip(dims, rows, at)} for at in places]


def _solved(rows: list[list[Fraction]]) -> list[Fraction] | None:
    """Solve equations, more than there are unknowns; None where no numbers solve them all."""
    many = len(rows[0]) - 1
    for k in range(many):
        pivot = next((r for r in range(k, len(rows)) if rows[r][k]), None)
        if pivot is None:
            return None
        rows[k], rows[pivot] = rows[pivot], rows[k]
        rows[k] = [n / rows[k][k] for n in rows[k]]
        for r, row in enumerate(rows):
            if r != k and row[k]:
                rows[r] = [a - row[k] * b for a, b in zip(row, rows[k])]
    if any(row[-1] for row in rows[many:]):
        return None
    return [rows[k][-1] for k in range(many)]
