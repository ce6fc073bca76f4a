"""Compute single elements of terms, with arbitrary numbers for arguments: terms that differ there are not the same.

Precision is not modelled, so only clear differences count. What takes too long or has no rule here is left open.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from meshweave.verification.terms.arith import predicate_of, signed
from meshweave.verification.terms.indices import Atom, DivMod, Expr, Var, variables
from meshweave.verification.terms.terms import Node, Term, Terms, dim_var

Number = Any  # float, int or bool: what an element is

MOST_STEPS = 1_000
"""Elements of terms that are computed before a comparison is left open."""
TOLERANCE = 1e-6


class OpenError(Exception):
    """Say that an element is not computed here."""


class TooLongError(OpenError):
    """Say that an element takes too many others to compute."""


class Sampler:
    """Compute elements of terms."""

    def __init__(self, terms: Terms, seed: int = 0, outer: Sampler | None = None) -> None:
        self.terms, self.seed, self.outer = terms, seed, outer
        self.steps: list[int] = outer.steps if outer else [0]
        self.depth = -1
        self.symbols: dict[int, int] = {}  # the node of `outer` that each stands for
        self.calls: dict[int, Sampler] = {}
        self.known: dict[tuple[int, tuple[int, ...]], Number] = {}

    def element(self, view: Term, values: Mapping[Var, int]) -> Number:
        """Return an element. Raises OpenError where it is not known."""
        for expr, size in view.guards:
            if not 0 <= place(expr, values) < size:
                raise OpenError
        at = tuple([place(e, values) for e in view.exprs])
        outside = [
            fill
            for p, n, fill in zip(at, self.terms.sizes[view.node], view.fills or (None,) * len(at))
            if n is not None and not 0 <= p < n
        ]
        if outside:
            fill = outside[0]
            if fill is None or None in outside:
                raise OpenError
            return self.node(fill, ())
        return self.node(view.node, at)

    def node(self, number: int, at: tuple[int, ...]) -> Number:
        """Return the element of a node at places that are within its sizes."""
        key = (number, at)
        if key not in self.known:
            self.steps[0] += 1
            if self.steps[0] > MOST_STEPS:
                raise TooLongError
            self.known[key] = self._computed(number, at)
        return self.known[key]

    def _computed(self, number: int, at: tuple[int, ...]) -> Number:
        node = self.terms.nodes[number]
        values = {dim_var(k): p for k, p in enumerate(at)}
        if node.op in _LEAVES:
            return _LEAVES[node.op](self, node.detail, at, node.type)
        if node.op == "reduce":
            return self._reduced(node.detail, node.reads[0], values, node.type)
        if node.op == "counted":
            kind, count = node.detail
            value = self.element(node.reads[0], values)
            if not isinstance(count, int) or kind not in ("sum", "prod"):
                raise OpenError
            return value * count if kind == "sum" else value**count
        if node.op == "concat":
            for (start, end), piece in zip(node.detail, node.reads):
                if start <= at[0] < end:
                    return self.element(piece, values)
            raise OpenError
        if node.op == "product":
            return self._product(node, values)
        if node.op == "put":
            return self._put(node.detail, node.reads, values)
        if node.op == "gather":
            return self._gathered(node.reads, values)
        if node.op == "at":
            return self.element(node.reads[0], values)
        if node.op == "call":
            return self._within(number).node(node.detail[0], at)
        if node.op == "trips":
            return self._behind(number).symbol(node.detail[0], at)
        if node.op == "symbol":
            return self._inside(node.detail[0]).symbol(node.detail[1], at)
        if node.op == "among":
            places = [self.element(r, values) for r in node.reads]
            return int(any(0 <= p < n for p, n in zip(places, node.detail)))
        if node.op == "arith.select":
            chosen = node.reads[1 if self.element(node.reads[0], values) else 2]
            return self.element(chosen, values)
        if node.op not in _OPS and node.op not in ("arith.cmpi", "arith.cmpf"):
            raise OpenError
        types = [self.terms.nodes[r.node].type for r in node.reads]
        found = [self.element(r, values) for r in node.reads]
        return applied(node.op, node.detail, node.type, found, types)

    def _within(self, number: int) -> Sampler:
        """Return what computes the elements of the term of a call."""
        if number not in self.calls:
            node = self.terms.nodes[number]
            made = self.calls[number] = Sampler(self.terms, self.seed, self)
            _, made.depth, used = node.detail
            given = self.terms.nodes[node.reads[0].node].reads
            made.symbols = {k: r.node for k, r in zip(used, given)}
        return self.calls[number]

    def _behind(self, number: int) -> Sampler:
        """Return what computes what symbols stand for behind trips."""
        if number not in self.calls:
            node = self.terms.nodes[number]
            _, count, depth, _, own = node.detail
            first, *nexts = [self.terms.nodes[r.node] for r in node.reads]
            values = {k: after.detail[1] for k, after in zip(own, nexts)}
            made = _Trip(self, depth)
            made.symbols = {k: r.node for k, r in zip(own, first.reads)}
            for trip in range(count):
                made = _Trip(self, depth, made, (trip, count), values)
            self.calls[number] = made
        return self.calls[number]

    def _inside(self, depth: int) -> Sampler:
        """Return the sampler of a call whose symbols are of a depth."""
        inner = self
        while inner.outer is not None and inner.depth != depth:
            inner = inner.outer
        return inner

    def symbol(self, number: int, at: tuple[int, ...]) -> Number:
        """Return an element of what a symbol of this call stands for."""
        if self.outer is None:
            raise OpenError
        return self.outer.node(self.symbols[number], at)

    def _reduced(
        self, detail: tuple[Hashable, ...], body: Term, values: dict[Var, int], type_: str
    ) -> Number:
        kind, sizes = detail
        assert isinstance(sizes, tuple)
        if math.prod(sizes) > MOST_STEPS:
            raise TooLongError
        elements = []
        for places in product(*map(range, sizes)):
            inner = {Var("b", str(k), n): p for k, (n, p) in enumerate(zip(sizes, places))}
            elements.append(self.element(body, {**values, **inner}))
        fold = _FOLDS.get(str(kind))
        if fold is None:
            raise OpenError
        return _wrapped(fold(elements), type_)

    def _gathered(self, reads: Sequence[Term], values: dict[Var, int]) -> Number:
        table, *indices = reads
        at = {
            v: int(self.element(indices[int(v.name)], values))
            for e in table.exprs
            for v in _placeholders(e)
        }
        if any(not 0 <= p < v.size for v, p in at.items()):
            raise OpenError
        return self.element(table, {**values, **at})

    def _product(self, node: Node, values: dict[Var, int]) -> Number:
        parts = [self.element(r, values) for r in node.reads]
        try:
            return _wrapped(math.prod([p**e for p, e in zip(parts, node.detail)]), node.type)
        except (ZeroDivisionError, OverflowError, TypeError):
            raise OpenError from None

    def _put(self, sizes: Sequence[Any], reads: Sequence[Term], values: dict[Var, int]) -> Number:
        value, into, *pairs = reads
        at = {}
        for k, n in enumerate(sizes):
            place, begin = [self.element(r, values) for r in pairs[2 * k : 2 * k + 2]]
            at[Var("g", str(k), n)] = place - begin
        inner = all(0 <= p < v.size for v, p in at.items())
        return self.element(value, {**values, **at}) if inner else self.element(into, values)


class _Trip(Sampler):
    """Compute elements of terms over what symbols stand for in a trip: before the first, or as the trip before says.

    before: that trip. trip: its number, and how many there are. values: what each symbol stands for behind it.
    """

    def __init__(
        self,
        outer: Sampler,
        depth: int,
        before: _Trip | None = None,
        trip: tuple[int, int] = (0, 0),
        values: Mapping[int, Any] | None = None,
    ) -> None:
        super().__init__(outer.terms, outer.seed, outer)
        self.depth, self.before, self.trip, self.values = depth, before, trip, values or {}

    def symbol(self, number: int, at: tuple[int, ...]) -> Number:
        """Return an element of what a symbol stands for in this trip."""
        if self.before is None:
            return super().symbol(number, at)
        node, _, places, fills = self.values[number]
        if not places:
            return self.before.node(node, at)
        number, count = self.trip
        here = {dim_var(k): p for k, p in enumerate(at)}
        return self.before.element(
            Term(node, places, fills), {**here, Var("u", "trip", count): number}
        )


def _placeholders(expr: Expr) -> list[Var]:
    return [v for v in variables(expr) if v.kind == "g"]


def place(expr: Expr, values: Mapping[Var, int]) -> int:
    """Compute an expression."""
    return expr.const + sum([c * _atom(a, values) for a, c in expr.terms])


def _atom(atom: Atom, values: Mapping[Var, int]) -> int:
    if isinstance(atom, Var):
        return 0 if atom.size == 1 and atom.kind != "h" else values[atom]
    if isinstance(atom, DivMod):
        number = place(atom.of, values)
        return number // atom.by if atom.kind == "/" else number % atom.by
    raise OpenError


def _argument(sampler: Sampler, detail: Any, at: tuple[int, ...], type_: str) -> Number:
    source = random.Random(f"{sampler.seed} {detail} {at}")
    if type_ == "i1":
        return source.randint(0, 1)
    if "complex" in type_:
        raise OpenError
    return source.uniform(-1, 1) if "f" in type_ else source.randint(0, 3)


def _constant(sampler: Sampler, detail: Any, at: tuple[int, ...], type_: str) -> Number:
    del sampler, at, type_
    if isinstance(detail[0], str):
        raise OpenError
    return detail[0]


def _iota(sampler: Sampler, detail: Any, at: tuple[int, ...], type_: str) -> Number:
    del sampler, detail, type_
    return at[0]


def _table(sampler: Sampler, detail: Any, at: tuple[int, ...], type_: str) -> Number:
    del sampler
    if type_ in ("bf16", "index") or "complex" in type_:
        raise OpenError
    return np.array(detail[0])[at].item()


_LEAVES: dict[str, Callable[[Sampler, Any, tuple[int, ...], str], Number]] = {
    "argument": _argument,
    "const": _constant,
    "iota": _iota,
    "table": _table,
}
_FOLDS: dict[str, Callable[[list[Number]], Number]] = {
    "sum": sum,
    "prod": math.prod,
    "max": max,
    "min": min,
}


def _wrapped(value: Number, type_: str) -> Number:
    if isinstance(value, int) and type_.startswith("i") and type_[1:].isdigit():
        width = int(type_[1:])
        value %= 1 << width
        return value if width == 1 or value < 1 << (width - 1) else value - (1 << width)
    return value


def _bits(type_: str) -> int:
    """Return how many bits an integer type has."""
    return 64 if type_ == "index" else int(type_[1:])


def _same(x: Number) -> Number:
    return x


def _natural(x: Number) -> Number:
    """Return a number that is the same with and without a sign."""
    if x < 0:
        raise OpenError
    return x


def _quotient(a: Number, b: Number) -> Number:
    """Divide integers, rounding to zero."""
    size = abs(a) // abs(b)
    return size if (a < 0) == (b < 0) else -size


_OPS: dict[str, Callable[..., Number]] = {
    **dict.fromkeys(("arith.addf", "arith.addi"), operator.add),
    **dict.fromkeys(("arith.subf", "arith.subi"), operator.sub),
    **dict.fromkeys(("arith.mulf", "arith.muli"), operator.mul),
    "arith.divf": operator.truediv,
    "arith.negf": operator.neg,
    "arith.divsi": _quotient,
    "arith.remsi": lambda a, b: a - b * _quotient(a, b),
    "arith.divui": lambda a, b: _natural(a) // _natural(b),
    "arith.remui": lambda a, b: _natural(a) % _natural(b),
    "arith.shli": operator.lshift,
    "arith.shrsi": operator.rshift,
    "arith.shrui": lambda a, b: _natural(a) >> b,
    "arith.maxui": lambda a, b: max(_natural(a), _natural(b)),
    "arith.minui": lambda a, b: min(_natural(a), _natural(b)),
    **dict.fromkeys(("arith.maximumf", "arith.maxnumf", "arith.maxsi"), max),
    **dict.fromkeys(("arith.minimumf", "arith.minnumf", "arith.minsi"), min),
    "arith.andi": operator.and_,
    "arith.ori": operator.or_,
    "arith.xori": operator.xor,
    **dict.fromkeys(("arith.extf", "arith.truncf", "arith.sitofp", "arith.index_cast"), _same),
    **dict.fromkeys(("arith.extsi", "arith.trunci"), _same),
    **dict.fromkeys(("arith.extui", "arith.uitofp", "arith.index_castui"), _natural),
    "math.exp": math.exp,
    "math.log": math.log,
    "math.sqrt": math.sqrt,
    "math.rsqrt": lambda x: 1 / math.sqrt(x),
    "math.tanh": math.tanh,
    "math.erf": math.erf,
    "math.sin": math.sin,
    "math.cos": math.cos,
    "math.absf": abs,
    "math.absi": abs,
    "math.powf": math.pow,
    "math.fma": lambda a, b, c: a * b + c,
    "math.floor": math.floor,
    "math.ceil": math.ceil,
}
_COMPARE = (
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
)
_SHIFTS = ("arith.shli", "arith.shrsi", "arith.shrui")
_ORDERED = {1: 0, 2: 4, 3: 5, 4: 2, 5: 3, 6: 1, 8: 0, 9: 4, 10: 5, 11: 2, 12: 3, 13: 1}


def applied(
    name: str,
    detail: tuple[Hashable, ...],
    type_: str,
    values: Sequence[Number],
    types: Sequence[str],
) -> Number:
    """Compute a scalar op. types: of the numbers. Raises OpenError for one without a rule, or without a result."""
    values = [signed(name, t, v) for t, v in zip(types, values)]
    try:
        if name in ("arith.cmpi", "arith.cmpf"):
            number = predicate_of(detail)
            if name == "arith.cmpi" and number > 5 and min(values) < 0:
                raise OpenError
            if name == "arith.cmpi":
                number = number - 4 if number > 5 else number
            else:
                number = _ORDERED[number]
            return int(_COMPARE[number](*values))
        if name in _SHIFTS and not 0 <= values[1] < _bits(type_):
            raise OpenError
        made = _OPS[name](*values)
        if type_ == "index" and abs(made) >> (_bits(type_) - 1):
            raise OpenError  # it wraps around
        return _wrapped(made, type_)
    except (KeyError, ValueError, ZeroDivisionError, OverflowError, TypeError, IndexError):
        raise OpenError from None


def differ(a: Number, b: Number) -> bool:
    """Tell whether two numbers are clearly not the same."""
    if not all(isinstance(v, (int, float)) and math.isfinite(v) for v in (a, b)):
        return False
    return bool(abs(a - b) > TOLERANCE * max(1.0, abs(a), abs(b)))
