"""Say what a value may be: a number, a number or -inf, or anything; and its sign.

It decides which rules of arithmetic hold.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf

import numpy as np

from meshweave.verification.terms.arith import predicate_of
from meshweave.verification.terms.indices import inside
from meshweave.verification.terms.masks import seen
from meshweave.verification.terms.terms import Node, Term, Terms, dims_values

NUMBER, LOW, ANY = 2, 1, 0
"""What a value may be, for arguments that are numbers: a number; a number or -inf; anything."""
_CHOSEN = ("arith.maximumf", "arith.maxnumf")
_LEAST = ("arith.minimumf", "arith.minnumf")
_KEPT = (
    "arith.negf",
    "arith.extf",
    "arith.truncf",
    "math.absf",
    "math.tanh",
    "math.erf",
    "math.sin",
    "math.cos",
    "arith.sitofp",
    "arith.uitofp",
)
"""Ops that make numbers of numbers."""
_SIGN_KEPT = (
    "reduce",
    "counted",
    "concat",
    "at",
    "math.sqrt",
    "arith.extf",
    "arith.truncf",
    *_LEAST,
)
"""Ops, also reductions of each kind, whose results have a sign that all they read have."""
_ROOTS = {"math.sqrt": 1, "math.rsqrt": 2, "math.log": 2}
"""Ops that make numbers of numbers of a sign."""
POSITIVE, NOT_NEGATIVE, ANY_SIGN = 2, 1, 0
"""What the sign of a value may be, where it is a number."""


def level(terms: Terms, view: Term) -> int:
    """Return what a value may be: NUMBER, LOW or ANY."""
    fills = [_level(terms, f) for f in view.fills if f is not None]
    return min([_level(terms, view.node), *fills])


def _level(terms: Terms, number: int) -> int:
    found = terms.levels.get(number)
    if found is None:
        node = terms.nodes[number]
        found = _computed(terms, node)
        if found == LOW and node.op == "reduce":
            elements = seen(terms, node, terms.sizes[number])
            found = max([LOW, *[level(terms, e) for e in elements]])
        terms.levels[number] = found
    return found


def _computed(terms: Terms, node: Node) -> int:
    if any(r.guards for r in node.reads):
        return ANY  # undefined somewhere
    known = [level(terms, r) for r in node.reads]
    if node.op == "const":
        return _of_constant(node.detail[0])
    if node.op in ("argument", "part", "iota"):
        return NUMBER
    if node.op == "table":
        return _of_table(node)
    if node.op in ("symbol", "trips"):
        return int(node.detail[-1] if node.op == "symbol" else node.detail[3])
    if node.op in ("call", "at"):
        return _level(terms, node.detail[0]) if node.op == "call" else known[0]
    if node.op in ("gather", "put"):
        return min(known[: 1 if node.op == "gather" else 2])
    if node.op == "math.exp":
        return NUMBER if known[0] != ANY else ANY
    if node.op == "product":
        below = [is_not_zero(terms, r) for r, e in zip(node.reads, node.detail) if e < 0]
        known = [k for k, e in zip(known, node.detail) if e]
        return NUMBER if min(known, default=NUMBER) == NUMBER and all(below) else ANY
    if node.op == "arith.select":
        x = compared_with_low(terms, node.reads[0])
        is_guard = x == node.reads[2] and known[2] == LOW
        return min(known[1], NUMBER) if is_guard else min(known[1:])
    if node.op in _CHOSEN:
        return max(known) if ANY not in known else ANY
    if node.op == "arith.subf":
        return known[0] if known[1] == NUMBER else ANY
    if node.op == "arith.addf" or node.op == "concat":
        return min(known)
    if node.op == "counted" or node.op in _LEAST:
        return NUMBER if min(known) == NUMBER else ANY
    if node.op in _ROOTS:
        is_root = known[0] == NUMBER and sign(terms, node.reads[0]) >= _ROOTS[node.op]
        return NUMBER if is_root else ANY
    if node.op == "reduce":
        kind = node.detail[0]
        return known[0] if kind == "max" or (kind in ("sum", "min") and known[0] == NUMBER) else ANY
    return NUMBER if node.op in _KEPT and known[0] == NUMBER else ANY


def _of_table(node: Node) -> int:
    if node.type not in ("f32", "f64"):
        return ANY
    values = np.array(node.detail[0])
    if np.isfinite(values).all():
        return NUMBER
    return LOW if (np.isfinite(values) | (values == -inf)).all() else ANY


def _of_constant(value: Hashable) -> int:
    if not isinstance(value, (int, float)):
        return ANY
    return NUMBER if abs(value) < inf else LOW if value == -inf else ANY


def is_finite(terms: Terms, view: Term) -> bool:
    """Tell whether a value is surely a number wherever it is looked at."""
    return level(terms, view) == NUMBER and is_defined(terms, view)


def is_defined(terms: Terms, view: Term) -> bool:
    """Tell whether a value is no padding wherever it is looked at."""
    sizes, fills = terms.sizes[view.node], view.fills or (None,) * len(view.exprs)
    ends = zip(view.exprs, sizes, fills)
    return not view.guards and all(n is None or f is not None or inside(e, n) for e, n, f in ends)


def is_not_zero(terms: Terms, view: Term) -> bool:
    """Tell whether a value is surely not 0, nor infinite."""
    value = terms.constant_of(view)
    if value is not None:
        return isinstance(value, float) and value not in (0.0, inf, -inf)
    return sign(terms, view) == POSITIVE and level(terms, view) == NUMBER


def sign(terms: Terms, view: Term) -> int:
    """Return what the sign of a value may be, where it is a number: POSITIVE, NOT_NEGATIVE or ANY_SIGN."""
    fills = [_sign(terms, f) for f in view.fills if f is not None]
    return min([_sign(terms, view.node), *fills])


def _sign(terms: Terms, number: int) -> int:
    found = terms.signs.get(number)
    if found is None:
        node = terms.nodes[number]
        found = _sign_of(terms, node)
        if found == NOT_NEGATIVE and node.op == "reduce" and node.detail[0] in ("sum", "max"):
            elements = seen(terms, node, terms.sizes[number])
            found = max([NOT_NEGATIVE, *[sign(terms, e) for e in elements]])
        terms.signs[number] = found
    return found


def _sign_of(terms: Terms, node: Node) -> int:
    if node.op == "const":
        value = node.detail[0]
        is_low = not isinstance(value, (int, float)) or value < 0
        return ANY_SIGN if is_low else POSITIVE if value else NOT_NEGATIVE
    if node.op == "math.exp":
        return POSITIVE if level(terms, node.reads[0]) == NUMBER else NOT_NEGATIVE
    if node.op in ("math.absf", "math.rsqrt"):
        return NOT_NEGATIVE if node.op == "math.absf" else POSITIVE
    if node.op == "call":
        return _sign(terms, node.detail[0])
    known = [sign(terms, r) for r in node.reads]
    if node.op == "product":
        factors = [(s, e) for s, e in zip(known, node.detail) if e]
        squares = [max(s, NOT_NEGATIVE) if e % 2 == 0 else s for s, e in factors]
        return min(squares, default=POSITIVE)
    if node.op in ("arith.addf", *_CHOSEN):
        return max(known) if min(known) or node.op in _CHOSEN else ANY_SIGN
    if node.op == "arith.select":
        return min(known[1:])
    return min(known) if node.op in _SIGN_KEPT else ANY_SIGN


def exponent_of(terms: Terms, view: Term) -> Term | None:
    """Return x of `exp(x)`, None for any other value."""
    node = terms.nodes[view.node]
    if node.op != "math.exp" or any(f is not None for f in view.fills):
        return None
    return terms.composed(node.reads[0], dims_values(view.exprs), view.guards)


def compared_with_low(terms: Terms, test: Term) -> Term | None:
    """Return x of `x == -inf`, None for any other condition."""
    node = terms.nodes[test.node]
    if node.op != "arith.cmpf" or predicate_of(node.detail) not in (1, 8):
        return None
    x, low = [terms.composed(r, dims_values(test.exprs)) for r in node.reads]
    return x if terms.constant_of(low) == -inf else None
