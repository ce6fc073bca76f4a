"""Write places in tensors as sums of digits: coordinates of ranks, indices of dims, quotients and remainders of such.

    4*x + i          the element i of a block of 4, on the rank with coordinate x
    4*(i / 4) + i%4  what a gather makes of it, which is i

An `Expr` is in a normal form, so that equal ones are mostly the same value; those that differ may still be equal.
Numbers are exact, quotients round down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from itertools import product
from math import gcd
from typing import NamedTuple, TypeAlias

from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.layout.places import indices_at

_MOST_SIGNS = 3
"""Terms of which each is tried forwards and backwards: two to that power are looked at."""


class Var(NamedTuple):
    """Name a number from 0 to size - 1. kind: "i" index, "x" coordinate, "b" bound, "h" dim of a term."""

    kind: str
    name: str
    size: int


class DivMod(NamedTuple):
    """Take the quotient ("/") or the remainder ("%") of `of` by a number."""

    kind: str
    of: Expr
    by: int


class Owned(NamedTuple):
    """Take the index that a layout without a formula gives a place; that of padding is `size` - 1, beyond the end.

    inputs: coordinates, then the place. layout: of the one dim that it is an index along.
    """

    kind: str
    name: str
    inputs: tuple[Expr, ...]
    size: int
    layout: Layout
    mesh: Mesh

    def indices(self) -> tuple[int, ...] | None:
        """Return the index at each place, -1 for padding; None where the coordinates are not known."""
        if any(e.terms for e in self.inputs[:-1]):
            return None
        return _indices(
            self.layout, self.mesh, self.size - 1, tuple([e.const for e in self.inputs[:-1]])
        )


Atom: TypeAlias = Var | DivMod | Owned
Range = tuple[int, int]


class Expr(NamedTuple):
    """Add multiples of atoms and a number."""

    const: int
    terms: tuple[tuple[Atom, int], ...] = ()


_expr: Callable[[tuple[int, tuple[tuple[Atom, int], ...]]], Expr] = partial(tuple.__new__, Expr)
"""Make an expression of its two fields, in half the time."""
ZERO = Expr(0)
_FAR = 1 << 60  # what a dim of a term stands for may lie anywhere


@lru_cache(maxsize=1 << 14)
def of_var(var: Var) -> Expr:
    """Return a variable as an expression; that of size 1 is kept, for its name."""
    return Expr(0, ((var, 1),))


def number(value: int) -> Expr:
    """Return a number as an expression."""
    return Expr(value)


def total(parts: Iterable[tuple[Expr, int]], const: int = 0) -> Expr:
    """Add multiples of expressions."""
    sums: dict[Atom, int] = {}
    for expr, factor in parts:
        const += expr.const * factor
        for atom, coefficient in expr.terms:
            sums[atom] = sums.get(atom, 0) + coefficient * factor
    return _normal(const, sums)


def plus(a: Expr, b: Expr) -> Expr:
    """Add two expressions."""
    if not b.terms:
        return _expr((a.const + b.const, a.terms))
    if not a.terms:
        return _expr((a.const + b.const, b.terms))
    return total(((a, 1), (b, 1)))


def times(a: Expr, factor: int) -> Expr:
    """Multiply an expression by a number."""
    if factor == 0:
        return ZERO
    if len(a.terms) == 1 and _is_unit(a.terms[0][0]):
        return _expr((a.const * factor, a.terms))
    return _expr((a.const * factor, tuple([(t, c * factor) for t, c in a.terms])))


def _normal(const: int, sums: dict[Atom, int]) -> Expr:
    for atom in [a for a, c in sums.items() if not c]:
        del sums[atom]
    quotients = [a for a in sums if isinstance(a, DivMod) and a.kind == "/"]
    for atom in sorted(quotients) if len(quotients) > 1 else quotients:
        coefficient = sums.get(atom, 0)
        if not coefficient or coefficient % atom.by:
            continue
        rest = remainder(atom.of, atom.by)
        factor = coefficient // atom.by
        if rest.const or len(rest.terms) != 1 or rest.terms[0][1] != 1:
            continue
        if sums.get(rest.terms[0][0]) == factor:
            del sums[atom], sums[rest.terms[0][0]]
            for inner, c in atom.of.terms:
                sums[inner] = sums.get(inner, 0) + c * factor
            return _normal(const + atom.of.const * factor, sums)
    if len(quotients) > 1 and (joined := _finer(sums, quotients)) is not None:
        return _normal(const + joined[0], joined[1])
    many = [item for item in sums.items() if not _is_unit(item[0])]
    if many or not sums:
        return _expr((const, tuple(sorted(many) if len(many) > 1 else many)))
    return _expr((const, ((min(sums), 1),)))  # a variable of size 1 tells two constants apart


def _finer(
    sums: Mapping[Atom, int], quotients: Iterable[DivMod]
) -> tuple[int, dict[Atom, int]] | None:
    """Join the digits of a finer quotient: 2 * (a / 32) + a % 32 / 16 is a / 16. None where there are none."""
    for low in quotients:
        inner = low.of.terms[0][0] if len(low.of.terms) == 1 else None
        if low.of.const or not isinstance(inner, DivMod) or low.of.terms[0][1] != 1:
            continue
        high = DivMod("/", inner.of, inner.by)
        steps, rest = divmod(inner.by, low.by)
        if inner.kind == "%" and not rest and sums.get(high, 0) == steps * sums.get(low, 0) != 0:
            made = {a: c for a, c in sums.items() if a not in (low, high)}
            whole = quotient(inner.of, low.by)
            for atom, c in whole.terms:
                made[atom] = made.get(atom, 0) + c * sums[low]
            return whole.const * sums[low], made
    return None


def _is_unit(atom: Atom) -> bool:
    return isinstance(atom, Var) and atom.size == 1


@lru_cache(maxsize=1 << 16)
def bounds(expr: Expr) -> Range:
    """Return the least and the largest number that an expression may be (or beyond them)."""
    low = high = expr.const
    for atom, c in expr.terms:
        a, b = _atom_bounds(atom)
        low, high = low + min(a * c, b * c), high + max(a * c, b * c)
    return low, high


def _atom_bounds(atom: Atom) -> Range:
    if not isinstance(atom, DivMod):
        return (-_FAR, _FAR) if atom.kind == "h" else (0, atom.size - 1)
    low, high = bounds(atom.of)
    return (low // atom.by, high // atom.by) if atom.kind == "/" else (0, atom.by - 1)


def inside(expr: Expr, size: int) -> bool:
    """Tell whether an expression is surely from 0 to size - 1."""
    low, high = bounds(expr)
    return low >= 0 and high < size


@lru_cache(maxsize=1 << 16)
def quotient(expr: Expr, by: int) -> Expr:
    """Divide by a positive number, rounding down."""
    return _divided(expr, by)[0]


@lru_cache(maxsize=1 << 16)
def remainder(expr: Expr, by: int) -> Expr:
    """Return what is left of a division by a positive number."""
    inner = [
        (a, c)
        for a, c in expr.terms
        if isinstance(a, DivMod) and a.kind == "%" and not c * a.by % by
    ]
    if inner:
        outer = Expr(expr.const, tuple([t for t in expr.terms if t not in inner]))
        expr = total([(outer, 1), *[(a.of, c) for a, c in inner if isinstance(a, DivMod)]])
    return _divided(expr, by)[1]


def _divided(expr: Expr, by: int) -> tuple[Expr, Expr]:
    if by == 1:
        return expr, ZERO
    whole = Expr(expr.const // by, tuple([(a, c // by) for a, c in expr.terms if c // by]))
    rest = Expr(expr.const % by, tuple([(a, c % by) for a, c in expr.terms if c % by]))
    if inside(rest, by):
        return whole, rest
    left = _counted_back(rest, by)
    if left is not None:
        kept = dict(left.terms)
        turns = [(a, n) for a, c in expr.terms if (n := (c - kept.get(a, 0)) // by)]
        return Expr((expr.const - left.const) // by, tuple(turns)), left
    for g in sorted({gcd(c, by) for _, c in rest.terms}, reverse=True):
        if 1 < g < by:
            fine = Expr(rest.const % g, tuple([(a, c % g) for a, c in rest.terms if c % g]))
            if inside(fine, g):
                coarse = Expr(
                    rest.const // g, tuple([(a, c // g) for a, c in rest.terms if c // g])
                )
                q, r = _divided(coarse, by // g)
                return plus(whole, q), plus(times(r, g), fine)
    q, r = _atoms(rest, by)
    return plus(whole, q), r


def _counted_back(rest: Expr, by: int) -> Expr | None:
    """Return what is left of a division with parts that count backwards, as `1 - x` of `(1 + x) % 2`; else None.

    rest: with all parts from 0 to by - 1, so that numbers which are left with the same have one form.
    """
    if len(rest.terms) > _MOST_SIGNS:
        return None
    for shifts in product((0, by), repeat=len(rest.terms)):
        left = Expr(rest.const, tuple([(a, c - s) for (a, c), s in zip(rest.terms, shifts)]))
        if any(shifts) and inside(left, by):
            return left
    return None


def _atoms(rest: Expr, by: int) -> tuple[Expr, Expr]:
    """Divide what no rule divides: the atoms that stand for quotient and remainder."""
    if not rest.const and len(rest.terms) == 1 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, DivMod) and atom.kind == "/":
            low = quotient(remainder(atom.of, atom.by * by), atom.by)
            return quotient(atom.of, atom.by * by), low
        if isinstance(atom, DivMod) and atom.by % by == 0:
            return Expr(0, ((DivMod("/", rest, by), 1),)), remainder(atom.of, by)
    return Expr(0, ((DivMod("/", rest, by), 1),)), Expr(0, ((DivMod("%", rest, by), 1),))


def is_number(expr: Expr) -> bool:
    """Tell whether an expression can only be its constant."""
    return all(
        _is_unit(atom) and isinstance(atom, Var) and atom.kind != "h" for atom, _ in expr.terms
    )


def substitute(expr: Expr, values: Mapping[Var, Expr]) -> Expr:
    """Put expressions in the place of variables."""
    if not expr.terms:
        return expr
    if len(expr.terms) == 1 and isinstance(expr.terms[0][0], Var):
        value = values.get(expr.terms[0][0])
        if value is None:
            return expr
        if not expr.const and expr.terms[0][1] == 1:
            return value
    parts: list[tuple[Expr, int]] = []
    changed = False
    for atom, c in expr.terms:
        new = _substituted(atom, values)
        changed = changed or new is not None
        parts.append((_expr((0, ((atom, 1),))) if new is None else new, c))
    return total(parts, expr.const) if changed else expr


def _substituted(atom: Atom, values: Mapping[Var, Expr]) -> Expr | None:
    if isinstance(atom, Var):
        return values.get(atom)
    if isinstance(atom, DivMod):
        of = substitute(atom.of, values)
        if of is atom.of:
            return None
        return quotient(of, atom.by) if atom.kind == "/" else remainder(of, atom.by)
    inputs = tuple([substitute(e, values) for e in atom.inputs])
    if all(a is b for a, b in zip(inputs, atom.inputs)):
        return None
    made = atom._replace(inputs=inputs)
    run = _of_run(made)
    return Expr(0, ((made, 1),)) if run is None else run


def _of_run(atom: Owned) -> Expr | None:
    """Return the index at places that follow each other in a run, or are all padding; None for any others."""
    indices, place = atom.indices(), atom.inputs[-1]
    low, high = bounds(place)
    if indices is None or low < 0 or high >= len(indices):
        return None
    first = indices[low]
    step = 1 if first >= 0 else 0
    if indices[low : high + 1] != tuple([first + step * k for k in range(high + 1 - low)]):
        return None
    return plus(place, Expr(first - low)) if step else Expr(atom.size - 1)


@lru_cache(maxsize=1 << 10)
def _indices(
    layout: Layout, mesh: Mesh, size: int, coordinates: tuple[int, ...]
) -> tuple[int, ...]:
    return tuple(indices_at(layout, mesh, (size,), 0, coordinates).tolist())


@lru_cache(maxsize=1 << 16)
def variables(expr: Expr) -> frozenset[Var]:
    """Return the variables of an expression."""
    found: set[Var] = set()
    for atom, _ in expr.terms:
        if isinstance(atom, Var):
            found.add(atom)
        elif isinstance(atom, DivMod):
            found |= variables(atom.of)
        else:
            found = found.union(*[variables(e) for e in atom.inputs])
    return frozenset(found)


def text(expr: Expr) -> str:
    """Write an expression: `4*x + i0`."""
    words = [f"{c}*{_word(a)}" if c != 1 else _word(a) for a, c in expr.terms]
    if expr.const or not words:
        words.append(str(expr.const))
    return " + ".join(words)


def _word(atom: Atom) -> str:
    if isinstance(atom, Var):
        return atom.name if atom.kind == "x" else atom.kind + atom.name
    if isinstance(atom, DivMod):
        return f"({text(atom.of)}){atom.kind}{atom.by}"
    return f"{atom.name}({', '.join(map(text, atom.inputs))})"
