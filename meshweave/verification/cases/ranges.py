"""Cut the ranges of variables where a place reaches a number: on either side of it what depends on that is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import gcd

from meshweave.verification.terms.indices import (
    DivMod,
    Expr,
    Owned,
    Var,
    bounds,
    is_number,
    of_var,
    plus,
    substitute,
    times,
    total,
    variables,
)

Cut = tuple[Expr, int]
"""A place, and a number: it matters whether the place is below it."""
Values = dict[Var, Expr]
MOST_NUMBERS = 64
"""Coordinates, or places of a layout without a formula, of which each is looked at alone."""
MOST_TURNS = 4
"""Turns of a remainder that are told apart by where they begin; more of them are written as digits."""


def any_variable(var: Var) -> bool:
    """Tell whether the range of a variable may be cut: it is no dim of a term, and no place that is computed."""
    return var.kind in "ix"


def partition(cut: Cut, allowed: Callable[[Var], bool] = any_variable) -> list[Values] | None:
    """Return what to put in the place of a variable on either side of a cut, or in more parts; None for nothing.

    Places that are divided, or that a layout without a formula gives, come first: without them places are sums.
    """
    expr, at = cut
    low, high = bounds(expr)
    if not low < at <= high:
        return None
    by_sum = _by_sum(expr, at, allowed)
    if by_sum is not None:
        return by_sum
    for atom, _ in expr.terms:
        found = partition_atom(atom, allowed)
        if found is not None:
            return found
    single = [a for a, _ in expr.terms if isinstance(a, Var) and allowed(a) and a.size > 1]
    if not single:
        return None
    var = min(single, key=lambda v: v.size)
    return halves(var, var.size // 2)


def first_partition(cuts: Sequence[Cut]) -> list[Values] | None:
    """Return what the first of some cuts that leaves anything to decide makes of a range; None for nothing."""
    return next((found for cut in cuts if (found := partition(cut)) is not None), None)


def is_outside(expr: Expr, size: int) -> bool:
    """Tell whether a place is surely not from 0 to size - 1."""
    low, high = bounds(expr)
    return high < 0 or low >= size


def same_place(a: Expr, b: Expr, valid: Sequence[tuple[Expr, int]]) -> bool:
    """Tell whether two places are surely the same wherever `valid` places are within their sizes."""
    todo, count = [(a, b, tuple(valid))], 0
    while todo:
        (one, other, guards), count = todo.pop(), count + 1
        apart = plus(one, times(other, -1))
        if (is_number(apart) and not apart.const) or any(is_outside(*g) for g in guards):
            continue
        cuts = [cut for e, n in guards for cut in ((e, 0), (e, n))]
        parts = first_partition(cuts) if count < MOST_NUMBERS else None
        if parts is None:
            return False
        for values in parts:
            here = tuple([(substitute(e, values), n) for e, n in guards])
            todo.append((substitute(one, values), substitute(other, values), here))
    return True


def _by_sum(expr: Expr, at: int, allowed: Callable[[Var], bool]) -> list[Values] | None:
    """Cut a variable where it alone says whether a sum is below a number."""
    for atom, factor in sorted(expr.terms, key=lambda t: -abs(t[1])):
        if not isinstance(atom, Var) or not allowed(atom) or atom.size < 2:
            continue
        rest = Expr(expr.const, tuple([t for t in expr.terms if t[0] != atom]))
        low, high = bounds(rest)
        ends = (low, high) if factor > 0 else (high, low)
        for end in ends:
            # the first place at which factor * place + end is on the other side of the number
            where = -(-(at - end) // factor) if factor > 0 else (end - at) // -factor + 1
            if 0 < where < atom.size:
                return halves(atom, where)
    return None


def partition_atom(
    atom: object, allowed: Callable[[Var], bool] = any_variable
) -> list[Values] | None:
    """Return what to put in the place of a variable so that a quotient becomes simpler; None for nothing."""
    if isinstance(atom, Owned):
        return _owned(atom, allowed)
    if not isinstance(atom, DivMod):
        return None
    for inner, _ in atom.of.terms:
        found = partition_atom(inner, allowed)
        if found is not None:
            return found
    low, high = bounds(atom.of)
    first, last = low // atom.by, high // atom.by
    if last - first <= MOST_TURNS:
        for turn in range(first + 1, last + 1):
            found = _by_sum(atom.of, turn * atom.by, allowed)
            if found is not None:
                return found
    for var, factor in atom.of.terms:
        if not isinstance(var, Var) or not allowed(var) or var.size < 2:
            continue
        step = atom.by // gcd(factor, atom.by)
        if step == 1:
            continue
        if var.size <= step or (var.kind == "x" and var.size <= MOST_NUMBERS):
            return numbers(var) if var.size <= MOST_NUMBERS else None
        whole = var.size - var.size % step
        return [_digits(var, step)] if whole == var.size else halves(var, whole)
    return None


def _owned(atom: Owned, allowed: Callable[[Var], bool]) -> list[Values] | None:
    *coordinates, place = atom.inputs
    for expr in coordinates:
        for var in sorted(variables(expr)):
            if allowed(var) and 1 < var.size <= MOST_NUMBERS:
                return numbers(var)
    indices = atom.indices()
    if indices is None:
        return None
    low, high = bounds(place)
    places = indices[low : high + 1]
    turns = [low + k for k, (a, b) in enumerate(pairwise(places), 1) if b != next_place(a)]
    for turn in turns:
        found = _by_sum(place, turn, allowed)
        if found is not None:
            return found
    return None


def next_place(index: int) -> int:
    """Return the index behind another one in a run; padding is behind padding."""
    return index if index < 0 else index + 1


def halves(var: Var, at: int) -> list[Values]:
    """Return the parts of a range before and from a place on."""
    return [_from(var, 0, at), _from(var, at, var.size)]


def _from(var: Var, start: int, end: int) -> Values:
    """Return the part of a range. The variable keeps its name: the one that it stands for is gone."""
    if end - start == 1:
        return {var: Expr(start)}
    return {var: plus(of_var(Var(var.kind, var.name, end - start)), Expr(start))}


def numbers(var: Var) -> list[Values]:
    """Return each value of a variable."""
    return [{var: Expr(k)} for k in range(var.size)]


def _digits(var: Var, low: int) -> Values:
    high = Var(var.kind, f"{var.name}/{low}", var.size // low)
    return {var: total(((of_var(high), low), (of_var(Var(var.kind, f"{var.name}%{low}", low)), 1)))}
